"""JSON values on disk, one file for each key, for what is costly to find out again: ceilings, tuned schedules.

A file holds its whole key beside the value, and a digest of both before them; a reader compares both. Files are written
whole or not at all, in folders that others do not write (`weft.machine.folder`), so that processes may share them. A
file that is not as it was written counts as absent and is set aside as ``*.broken``. Nothing is unpickled or executed.

Values are read by the types of the fields that they are for: whatever a file holds, the rest of weft meets none that
its types rule out.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import math
import types
import zlib
from collections.abc import Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from weft.machine.folder import Folder, cache_directory

_Kind = TypeVar("_Kind")
_MOST = 2**63  # integers are below


def number(value: Any) -> float:
    """A number that is finite and not negative; `ValueError` where a value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf or value >= 1e308:
        raise ValueError(f"{str(value)[:40]} is no such number")
    return float(value)


def fields_of(kind: type[_Kind], saved: Any) -> _Kind:
    """A dataclass, or named tuple, of its stored fields; `ValueError` where one is missing, unknown or of another type.

    Numbers are finite and not negative, lists stand for tuples.
    """
    if not isinstance(saved, Mapping):
        raise ValueError(f"it has no fields of {kind.__name__}")
    known: Any = kind
    hints = _hints(known)
    try:
        return kind(**{name: _read(value, hints[name]) for name, value in saved.items()})
    except (KeyError, TypeError) as error:
        raise ValueError(f"it has other fields than {kind.__name__}: {error}") from None


def _read(value: Any, hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _read(value, next(each for each in inner if each is not type(None)))
    if hint is Any or (origin is Literal and value in inner):
        return value
    if hint is float:
        return number(value)
    if hint is int and not (isinstance(value, int) and 0 <= value < _MOST):
        raise ValueError(f"{str(value)[:40]} is no such integer")
    if origin is tuple and isinstance(value, list):
        return tuple(_read(each, inner[0]) for each in value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _read(each, inner[1]) for name, each in value.items()}
    if hasattr(hint, "_fields") and isinstance(value, list):
        return fields_of(hint, dict(zip(hint._fields, value, strict=True)))
    if origin is not None or not isinstance(value, hint) or isinstance(value, bool) is not (hint is bool):
        raise ValueError(f"{str(value)[:40]} is no {hint}")
    return value


@lru_cache
def _hints(kind: Hashable) -> dict[str, Any]:
    known: Any = kind
    names = [field.name for field in dataclasses.fields(known)] if dataclasses.is_dataclass(known) else known._fields
    hints = get_type_hints(known, localns={"Mapping": Mapping})
    return {name: hints[name] for name in names}


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


def as_text(content: bytes) -> str:
    """Bytes as JSON holds them."""
    return base64.b64encode(zlib.compress(content, 1)).decode()


def from_text(text: str) -> bytes:
    """The bytes of `as_text`; `ValueError` or `TypeError` where a value is none of it."""
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from None


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
