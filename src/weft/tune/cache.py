"""The contents of weft's cache: listed, verified, carried elsewhere, removed. See `weft.machine.store` for its files.

Only what weft writes counts: files of its names in folders of its names, no links. Whatever else is stored there is not
listed and not removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import UnsupportedError, WeftError
from weft.machine.folder import Folder
from weft.machine.store import Store, cache_directory, understood

FORMAT = 1  # of exported files
ABOUT = {
    "schedules": "tuned schedules",
    "tuning": "tunings that were interrupted",
    "ceilings": "what devices were measured to do",
    "coefficients": "cost models fitted to devices",
    "energy": "models of what cards draw",
    "micro": "what microbenchmarks found of devices",
    "probes": "whether an untested Triton compiles kernels",
    "promotions": "contractions that were promoted to specialised kernels",
    "selftest": "what the self-test of kernels found",
    "cubins": "machine code of kernels",
    "side-by-side": "which networks' kernels were compiled",
    "cpu": "machine code for the CPU",
    "jax": "handlers of JAX's custom calls",
}
MACHINE_CODE = "cpu"
STAYING = (MACHINE_CODE, "cubins", "jax")  # code that is run as it is: not exported, and not taken from others
_VALUE = re.compile(r"[0-9a-f]{32}(\.json|\.broken|\w{8}\.tmp)")
# Of earlier versions: folders of machine code, one for each state of the software, and what they held.
_SOFTWARE = re.compile(r"[0-9a-f]{16}")
_FORMER = re.compile(
    rf"weft_cpu_[0-9a-f]{{24}}(\w{{8}}\.tmp|\.py|\.[\w.-]+\.(pyc|nbi|nbc)[\w.-]*)|[0-9a-f]{{64}}(\.o|\w{{8}}\.tmp)"
    rf"|{_VALUE.pattern}"
)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One file of the cache. `fault` says what is wrong with it; key and value are None then, as of old files."""

    room: str
    file: Path
    size: int
    key: dict[str, Any] | None
    value: Any
    fault: str = ""

    @property
    def what(self) -> str:
        """The entry's subject, in a few words."""
        if self.key is None:
            return self.fault
        value = self.value if isinstance(self.value, dict) else {}
        environment = self.key.get("environment", self.key)
        device = environment.get("name", "") if isinstance(environment, dict) else ""
        parts = (value.get("text"), value.get("schedule"), device, str(value.get("date") or "")[:10])
        return ", ".join(str(part) for part in parts if part)


def known(rooms: tuple[str, ...]) -> tuple[str, ...]:
    """Rooms by their names. `UnsupportedError` where the cache has no such room."""
    for room in rooms:
        if room not in ABOUT:
            raise UnsupportedError(f"the cache has no room {room!r}: its rooms are {', '.join(ABOUT)}")
    return rooms


def entries(root: Path | None = None) -> Iterator[CacheEntry]:
    """Every file of weft's in the cache's rooms, readable or not."""
    root = root or cache_directory()
    for folder in _folders(root, ABOUT):
        yield from _values(folder.name, folder)
        for software in _folders(folder, _SOFTWARE) if folder.name == MACHINE_CODE else ():
            for former in (software, *_folders(software, ("__pycache__", "objects"))):
                for file in _files(former, _FORMER):
                    yield CacheEntry(MACHINE_CODE, file, _size(file), None, None)


def _folders(root: Path, names: Any) -> list[Path]:
    """Folders that are no links, of some names or of a pattern's."""
    known = names.fullmatch if isinstance(names, re.Pattern) else names.__contains__
    return [Path(each) for each in _listed(root) if known(each.name) and each.is_dir(follow_symlinks=False)]


def _files(folder: Path, names: re.Pattern[str]) -> list[Path]:
    """Files that are no links, of a pattern's names."""
    found = _listed(folder)
    return [Path(each) for each in found if names.fullmatch(each.name) and each.is_file(follow_symlinks=False)]


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        return sorted(found, key=lambda entry: entry.name)
    return []


def _values(room: str, folder: Path) -> Iterator[CacheEntry]:
    return (_value(room, file) for file in _files(folder, _VALUE))


def _value(room: str, file: Path) -> CacheEntry:
    """A file of the store."""
    size, content = _content(file)
    if isinstance(content, str):
        return CacheEntry(room, file, size, None, None, content)
    try:
        key, value = understood(content)
        if Store(file.parent.name, file.parent.parent).path(key).name != file.name:
            raise ValueError("its name is not the digest of its key")
    except ValueError as error:
        return CacheEntry(room, file, size, None, None, str(error))
    return CacheEntry(room, file, size, key, value)


def _content(file: Path) -> tuple[int, bytes | str]:
    """Bytes, and what they are; or why that is not known."""
    if file.suffix != ".json":
        return _size(file), f"it was set aside or left behind ({file.suffix})"
    if (fault := Folder(file.parent).fault()) is not None:
        return _size(file), f"its folder is not used: {fault}"
    content = Folder(file.parent).read(file.name)
    return _size(file), content if content is not None else "it cannot be read, or others may write it"


def _size(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.lstat().st_size
    return 0


def exported(rooms: tuple[str, ...] = ()) -> dict[str, Any]:
    """All readable entries (of some rooms) as one JSON value; machine code stays on its machine."""
    kept = [
        entry
        for entry in entries()
        if entry.key is not None and entry.room not in STAYING and (not rooms or entry.room in rooms)
    ]
    return {
        "what": "weft cache",
        "format": FORMAT,
        "entries": [{"room": entry.room, "key": entry.key, "value": entry.value} for entry in kept],
    }


def imported(document: Any) -> int:
    """Save every entry of an exported value, replacing what is there; how many were kept.

    `WeftError` where it is none.
    """
    try:
        if document["what"] != "weft cache" or document["format"] != FORMAT:
            raise ValueError
        found = [(str(entry["room"]), dict(entry["key"]), entry["value"]) for entry in document["entries"]]
        json.dumps(found, allow_nan=False, sort_keys=True)
    except (TypeError, KeyError, ValueError, RecursionError):
        raise WeftError("this is no cache that weft has exported") from None
    for room, _, _ in found:
        if room not in ABOUT or room in STAYING:
            raise WeftError(f"'{room}' is no room of the cache")
    return sum(Store(room).save(key, value) for room, key, value in found)


def cleared(rooms: tuple[str, ...] = ()) -> tuple[int, int]:
    """Remove all files of weft's (of some rooms), unreadable ones too; how many, and their bytes."""
    count = size = 0
    for entry in list(entries()):
        if (not rooms or entry.room in rooms) and Folder(entry.file.parent).remove(entry.file.name):
            count, size = count + 1, size + entry.size
    return count, size
