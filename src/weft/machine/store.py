"""JSON values on disk, one file for each key, for what is costly to find out again: ceilings, tuned schedules.

A file holds its whole key beside the value, and a reader compares it. Files are written whole or not at all
(temporary file, fsync, rename), so that processes may share a directory. A file that cannot be understood counts as
absent and is set aside as ``*.broken``. Nothing is unpickled or executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.base.files import write_whole

SCHEMA = 1  # of the files; part of their names, so that versions of weft do not disturb one another


def cache_directory() -> Path:
    """``WEFT_CACHE_DIR``, else ``weft`` in ``XDG_CACHE_HOME``, else ``~/.cache/weft``."""
    if chosen := os.environ.get("WEFT_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "weft"


class Store:
    """A mapping from JSON keys to JSON values under one directory; `name` is the directory's last part."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.directory = (root or cache_directory()) / name

    def load(self, key: Mapping[str, Any]) -> Any | None:
        """The value saved for exactly this key, or None."""
        file = self.path(key)
        try:
            text = file.read_bytes()
        except OSError:
            return None
        try:
            entry = json.loads(text)
            if entry["schema"] == SCHEMA and _canonical(entry["key"]) == _canonical(key):
                return entry["value"]
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        with contextlib.suppress(OSError):
            os.replace(file, file.with_suffix(".broken"))
        return None

    def save(self, key: Mapping[str, Any], value: Any) -> None:
        """Remember `value`, replacing what was there. A directory that cannot be written is a warning, no error."""
        text = json.dumps({"schema": SCHEMA, "key": key, "value": value}, indent=1, allow_nan=False)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(self.path(key), text)
        except OSError as error:
            warnings.warn(f"weft cannot write its cache in {self.directory}: {error}", RuntimeWarning, stacklevel=2)

    def forget(self, key: Mapping[str, Any]) -> None:
        """Remove what is saved for this key, if anything is."""
        with contextlib.suppress(OSError):
            self.path(key).unlink()

    def path(self, key: Mapping[str, Any]) -> Path:
        """Where the value of `key` lies, whether or not it is there."""
        digest = hashlib.sha256(f"{SCHEMA}:{_canonical(key)}".encode()).hexdigest()
        return self.directory / f"{digest[:32]}.json"


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=False)
