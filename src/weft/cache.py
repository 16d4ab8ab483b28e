"""weft's files on disk, for programs: their folder, a list of them, export, import and removal.

>>> import weft
>>> sorted(weft.cache.info())
['bytes', 'files', 'folder', 'rooms']

The rooms are "schedules", "tuning", "ceilings", "coefficients", "probes", "selftest", "cpu" for machine code, and a few
more; `weft cache` on the command line does the same. Only weft's own files count, and links are not followed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from weft.base.files import hand_out
from weft.errors import WeftError
from weft.machine.store import cache_directory
from weft.planner.validity import outdate
from weft.spec.arguments import reads
from weft.tune.cache import ABOUT, cleared, entries, exported, imported, known


class Room(TypedDict):
    """The contents of one room of the cache."""

    files: int
    bytes: int
    about: str


class Info(TypedDict):
    """The contents of the cache."""

    folder: Path
    files: int
    bytes: int
    rooms: dict[str, Room]


def folder() -> Path:
    """The cache's folder: `WEFT_CACHE_DIR`, else ``weft`` in `XDG_CACHE_HOME` or ``~/.cache``. It may not exist."""
    return cache_directory()


def info() -> Info:
    """Folder, and files and bytes of the whole and of each room that has any."""
    rooms: dict[str, Room] = {}
    for entry in entries():
        room = rooms.setdefault(entry.room, Room(files=0, bytes=0, about=ABOUT.get(entry.room, "of another version")))
        room["files"] += 1
        room["bytes"] += entry.size
    files, size = sum(room["files"] for room in rooms.values()), sum(room["bytes"] for room in rooms.values())
    return Info(folder=folder(), files=files, bytes=size, rooms=rooms)


@reads("cache.clear")
def clear(*rooms: str) -> int:
    """Remove all files, or those of some rooms; how many. Plans of this process are made anew at their next use."""
    count, _ = cleared(known(rooms))
    outdate()
    return count


@reads("cache.export")
def export(file: str | Path | None = None, *rooms: str) -> dict[str, Any]:
    """All readable entries (of some rooms) as one JSON value, written to `file` too where that is given."""
    document = exported(known(rooms))
    if file is not None:
        try:
            hand_out(Path(file), json.dumps(document, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise WeftError(f"{str(file)[:200]} cannot be written ({error.strerror})") from None
    return document


@reads("cache.import_")
def import_(source: str | Path | dict[str, Any]) -> int:
    """Take over the entries of an exported file or value; how many. `WeftError` where it is none.

    Tuned schedules serve where device and software are the same.
    """
    document: Any = source
    if isinstance(source, (str, Path)):
        try:
            document = json.loads(Path(source).read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise WeftError(f"{source} is no cache that weft has exported ({error})") from None
    count = imported(document)
    outdate()
    return count
