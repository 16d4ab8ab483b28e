"""JSON values on disk, one file for each key, for what is costly to find out again: ceilings, tuned schedules.

A file holds its whole key beside the value, and a digest of both before them; a reader compares both. Files are written
whole or not at all, in folders that others do not write (`weft.machine.folder`), so that processes may share them. A
file that is not as it was written counts as absent and is set aside as ``*.broken``. Nothing is unpickled or executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.machine.folder import Folder, cache_directory

SCHEMA = 2  # of the files; part of their names, so that versions of weft do not disturb one another


class Store:
    """A mapping from JSON keys to JSON values under one directory; `name` is the directory's last part."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.directory = (root or cache_directory()) / name
        self._folder = Folder(self.directory)

    def load(self, key: Mapping[str, Any]) -> Any | None:
        """The value saved for exactly this key, or None."""
        file = self.path(key)
        content = self._folder.read(file.name)
        if content is None:
            return None
        with contextlib.suppress(ValueError):
            found, value = understood(content)
            if _canonical(found) == _canonical(key):
                return value
        self._folder.set_aside(file.name)
        return None

    def save(self, key: Mapping[str, Any], value: Any) -> bool:
        """Remember `value`, replacing what was there. A directory that cannot be written is a warning, no error."""
        text = json.dumps({"schema": SCHEMA, "key": key, "value": value}, allow_nan=False)
        return self._folder.write(self.path(key).name, _with_digest(text.removeprefix("{")))

    def forget(self, key: Mapping[str, Any]) -> None:
        """Remove what is saved for this key, if anything is."""
        self._folder.remove(self.path(key).name)

    def touch(self, key: Mapping[str, Any]) -> None:
        """Count the value of `key` as used just now."""
        self._folder.touch(self.path(key).name)

    def bound(self, most: int) -> None:
        """Forget values that were longest unused, but for so many."""
        self._folder.bound(".json", most)

    def path(self, key: Mapping[str, Any]) -> Path:
        """Where the value of `key` lies, whether or not it is there."""
        digest = hashlib.sha256(f"{SCHEMA}:{_canonical(key)}".encode()).hexdigest()
        return self.directory / f"{digest[:32]}.json"


def understood(content: bytes) -> tuple[dict[str, Any], Any]:
    """Key and value of a file's content. `ValueError` says why there are none."""
    try:
        text = content.decode()
        entry = json.loads(text, parse_constant=_refused)
        schema, key, value = entry["schema"], entry["key"], entry["value"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("it is no JSON of weft's") from None
    if schema != SCHEMA:
        raise ValueError(f"it has schema {schema}, this version reads {SCHEMA}")
    if not isinstance(key, dict) or text != _with_digest(text.partition("\n")[2]):
        raise ValueError("it is not as it was written")
    return key, value


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _with_digest(rest: str) -> str:
    """The text of a JSON object but for its first brace, behind a line with the digest of it."""
    return f'{{"digest": "{hashlib.sha256(rest.encode()).hexdigest()[:32]}",\n{rest}'


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=False)
