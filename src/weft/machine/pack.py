"""The pack: code built ahead of time, which the distribution weft-tensor-kernels installs beside weft.

A pack is a folder with one file a shelf: ``x86-64-v3.pack`` holds objects for CPUs of that level. A shelf
maps keys to code, each compressed on its own and read when it is asked for. Keys say what code was made of, so code of
another version of weft is never found. Each entry is checked by its digest; a file that is not as it was written
counts as absent, and one warning says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from weft.base.files import write_whole
from weft.base.interpreter import turns_off
from weft.base.log import warn

PACKAGE = "weft_kernels"  # of the distribution weft-tensor-kernels
_MAGIC = b"weft pack 1\n"
_HEAD = len(_MAGIC) + 32 + 8  # the digest of the index, and its length


def folder() -> Path | None:
    """Where the shelves lie; None where there is no pack, or ``WEFT_KERNELS=0`` turns it off."""
    chosen = os.environ.get("WEFT_KERNELS")
    if chosen is not None:
        return None if turns_off(chosen) else Path(chosen)
    return _installed()


@lru_cache(maxsize=1)
def _installed() -> Path | None:
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(PACKAGE)
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)))
    return None


def shelf(name: str) -> Shelf | None:
    """A file of the pack; None where there is none."""
    place = folder()
    return _opened(place / f"{name}.pack") if place is not None else None


def find(name: str, key: str) -> bytes | None:
    """The code of a key on a shelf; None where the pack has none."""
    found = shelf(name)
    return None if found is None else found.get(key)


class Shelf:
    """One file of a pack. `ValueError` where it is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as stream:
            head = stream.read(_HEAD)
            if len(head) < _HEAD or not head.startswith(_MAGIC):
                raise ValueError("it is no pack of this version")
            size = int.from_bytes(head[-8:], "little")
            if size > os.fstat(stream.fileno()).st_size:
                raise ValueError("it is cut short")
            index = stream.read(size)
        if hashlib.sha256(index).digest() != head[len(_MAGIC) : -8]:
            raise ValueError("its index is not as it was written")
        content = json.loads(index)
        self.about: dict[str, Any] = content["about"]
        self._entries: dict[str, tuple[int, int, str]] = content["entries"]
        if not isinstance(self.about, dict) or not isinstance(self._entries, dict):
            raise ValueError("its index is none")
        self._first = _HEAD + size

    def __len__(self) -> int:
        return len(self._entries)

    def keys(self) -> list[str]:
        return list(self._entries)

    def get(self, key: str) -> bytes | None:
        """The code of a key, checked; None where it is not there or damaged."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        with contextlib.suppress(OSError, OverflowError, TypeError, ValueError, zlib.error):
            start, length, digest = entry
            with open(self.path, "rb") as stream:
                stream.seek(self._first + start)
                content = zlib.decompress(stream.read(min(length, os.fstat(stream.fileno()).st_size)))
            if hashlib.sha256(content).hexdigest() == digest:
                return content
        _tell(self.path, "an entry is not as it was written")
        return None


def write_shelf(path: Path, entries: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    """Write a shelf, whole or not at all; `about` says what made it."""
    parts, places, start = [], {}, 0
    for key, content in sorted(entries.items()):
        part = zlib.compress(content, 9)
        places[key] = (start, len(part), hashlib.sha256(content).hexdigest())
        parts.append(part)
        start += len(part)
    index = json.dumps({"about": dict(about), "entries": places}, sort_keys=True).encode()
    head = _MAGIC + hashlib.sha256(index).digest() + len(index).to_bytes(8, "little")
    write_whole(path, b"".join((head, index, *parts)))


@lru_cache(maxsize=64)
def _opened(path: Path) -> Shelf | None:
    if not path.exists():
        return None
    try:
        return Shelf(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        _tell(path, error)
        return None


@lru_cache(maxsize=64)
def _tell(path: Path, why: object) -> None:
    warn(f"weft does without {path}: {why}")
