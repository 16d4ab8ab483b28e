"""What lies in weft's cache: listed, verified, carried elsewhere, removed. See `weft.machine.store` for its files."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.machine.store import SCHEMA, Store, cache_directory

FORMAT = 1  # of exported files
ABOUT = {
    "schedules": "tuned schedules",
    "tuning": "tunings that were interrupted",
    "ceilings": "what devices were measured to do",
    "coefficients": "cost models fitted to devices",
    "energy": "models of what cards draw",
    "micro": "what microbenchmarks found of devices",
    "probes": "whether an untested Triton compiles kernels",
    "promotions": "contractions that were promoted to kernels made to measure",
    "selftest": "what the self-test of kernels found",
}
_ROOM = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the cache. `fault` says what is wrong with it; key and value are None then."""

    room: str
    file: Path
    size: int
    key: dict[str, Any] | None
    value: Any
    fault: str = ""

    @property
    def what(self) -> str:
        """What the entry is about, in a few words."""
        if self.key is None:
            return self.fault
        value = self.value if isinstance(self.value, dict) else {}
        environment = self.key.get("environment", self.key)
        device = environment.get("name", "") if isinstance(environment, dict) else ""
        parts = (value.get("text"), value.get("schedule"), device, str(value.get("date") or "")[:10])
        return ", ".join(str(part) for part in parts if part)


def entries(root: Path | None = None) -> Iterator[Entry]:
    """Every file in the cache's rooms, readable or not."""
    root = root or cache_directory()
    if not root.is_dir():
        return
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and _ROOM.fullmatch(path.name)):
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            yield _read(folder, file)


def _read(folder: Path, file: Path) -> Entry:
    try:
        size, text = file.stat().st_size, file.read_bytes()
    except OSError as error:
        return Entry(folder.name, file, 0, None, None, f"it cannot be read: {error}")
    if file.suffix != ".json":
        return Entry(folder.name, file, size, None, None, f"it was set aside or left behind ({file.suffix})")
    try:
        entry = json.loads(text)
        schema, key, value = entry["schema"], entry["key"], entry["value"]
        if schema != SCHEMA:
            return Entry(folder.name, file, size, None, None, f"it has schema {schema}, this version reads {SCHEMA}")
        if Store(folder.name, folder.parent).path(key).name != file.name:
            return Entry(folder.name, file, size, None, None, "its name is not the digest of its key")
    except (ValueError, TypeError, KeyError, RecursionError):
        return Entry(folder.name, file, size, None, None, "it is no JSON of weft's")
    return Entry(folder.name, file, size, dict(key), value)


def exported(rooms: tuple[str, ...] = ()) -> dict[str, Any]:
    """All readable entries (of some rooms) as one JSON value."""
    kept = [entry for entry in entries() if entry.key is not None and (not rooms or entry.room in rooms)]
    return {
        "what": "weft cache",
        "format": FORMAT,
        "entries": [{"room": entry.room, "key": entry.key, "value": entry.value} for entry in kept],
    }


def imported(document: Any) -> int:
    """Save every entry of an exported value, replacing what is there; how many. `WeftError` where it is none."""
    try:
        if document["what"] != "weft cache" or document["format"] != FORMAT:
            raise ValueError
        found = [(str(entry["room"]), dict(entry["key"]), entry["value"]) for entry in document["entries"]]
        json.dumps(found, allow_nan=False)
    except (TypeError, KeyError, ValueError):
        raise WeftError("this is no cache that weft has exported") from None
    for room, _, _ in found:
        if not _ROOM.fullmatch(room):
            raise WeftError(f"'{room}' is no room of the cache")
    for room, key, value in found:
        Store(room).save(key, value)
    return len(found)


def cleared(rooms: tuple[str, ...] = ()) -> tuple[int, int]:
    """Remove all files (of some rooms), unreadable ones too; how many, and their bytes."""
    count = size = 0
    for entry in list(entries()):
        if not rooms or entry.room in rooms:
            with contextlib.suppress(OSError):
                entry.file.unlink()
                count, size = count + 1, size + entry.size
    return count, size
