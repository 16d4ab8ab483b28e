"""Keys and values that outlive the process: descriptions and schedules as plain JSON, and digests of weft's code.

Every field that takes part in comparing two values is serialized, so a field that is added later makes other keys by
itself. Labels are left out: modes differ by where they stand, and a contraction is the same whatever its
letters. A function is the digest of what it computes. What another process would not understand raises
`NotSerializable`.

A digest is of the code that decides what a family's kernels are. Of a GPU family: its own folder, the folders of the
families that it builds on (those that its files name), `gpu/common`, and `fn` with the emitters. Of the CPU backend:
`cpu`, `library`, and `fn` with the emitter to numba. A family that has no kernels of its own is its file and what runs
its steps; their families are counted by `of_schedule`. Of one kernel: its file and the device code that it names.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from weft.fn import Pointwise
from weft.planner.schedule import Description, Ranked, Schedule
from weft.spec import Mode

Names = Mapping[Any, str]


class NotSerializable(TypeError):
    """A value that means something in this process only."""


def serialize_description(description: Description) -> Any:
    """A contraction or permutation; equal for equal ones whatever their labels."""
    return _serialize(description, _positions(description))


def serialize_schedule(schedule: Schedule, description: Description) -> Any:
    """A schedule of a description."""
    return _serialize(schedule, _positions(description))


def digest(serialized: Any) -> str:
    """A digest of a serialized value, short enough for a file."""
    return hashlib.sha256(json.dumps(serialized, sort_keys=True).encode()).hexdigest()[:32]


def _positions(description: Description) -> Names:
    """The text that stands for each label that is a string, where a label is named outside of its mode."""
    labels = [label for mode in description.modes for label in mode.labels]
    return {label: f"label {at}" for at, label in enumerate(labels) if isinstance(label, str)}


def _serialize(value: Any, names: Names) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value.hex()  # infinities and NaN too, which JSON lacks
    if isinstance(value, complex):
        return {"is": "complex", "parts": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, Pointwise):
        return {"is": "function", "digest": hashlib.sha256(value.identity.encode()).hexdigest()}
    if isinstance(value, Mode):
        return [value.extent, value.role.value, list(value.strides)]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Sequence):
        return [_serialize(item, names) for item in value]
    if isinstance(value, Mapping):
        return [[_serialize(key, names), _serialize(item, names)] for key, item in value.items()]
    if hasattr(value, "ranked"):  # a choice within a schedule: what was chosen counts, not among what
        return _serialize(value.best.schedule, _positions(value.description))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.compare]
        return {"is": type(value).__name__} | {name: _serialize(getattr(value, name), names) for name in fields}
    raise NotSerializable(f"a {type(value).__name__} means something in this process only")


# -- digests of code ---------------------------------------------------------------------------------------------------

_PACKAGE = Path(__file__).parent.parent
_CODE = {  # by backend
    "triton": ("gpu/**/*.py", "fn/**/*.py"),
    "cpu": ("cpu/**/*.py", "library/**/*.py", "fn/*.py", "fn/numba/*.py"),
}
_STEPS = ("planner/program.py", "base/lifetimes.py")  # what runs the steps of a program
_IMPORT = re.compile(r"from (weft\.gpu[.\w]*) import (\([^)]*\)|[^\n]*)")
_GPU_FAMILY = re.compile(r"\bweft\.gpu\.(\w+)")


def of_schedule(rank: Ranked) -> str:
    """The digest of all families that a schedule and its steps are of."""
    names = sorted(set(_families(rank)))
    return hashlib.sha256(" ".join(map(of_family, names)).encode()).hexdigest()[:16]


@lru_cache
def of_family(module: str) -> str:
    """The digest of one family, by the name of its module."""
    return _digest(code_of(module), module)


@lru_cache
def of_kernel(module: str) -> str | None:
    """The digest of the file that a kernel stands in and of all device code that it names; None outside of weft."""
    if not module.startswith(f"{_PACKAGE.name}."):
        return None
    return _digest(sorted(_named_by(module)))


def _digest(files: Iterable[Path], first: str = "") -> str:
    """The digest of these files, with their places in this package."""
    found = hashlib.sha256(first.encode())
    for file in files:
        found.update(str(file.relative_to(_PACKAGE)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


@lru_cache
def of_backend(backend: str) -> str:
    """The digest of all code that runs for a backend."""
    return of_files(*_CODE[backend])


@lru_cache
def of_files(*patterns: str) -> str:
    """The digest of the files that patterns name, relative to this package."""
    return _digest(file for pattern in patterns for file in sorted(_PACKAGE.glob(pattern)))[:16]


def code_of(module: str) -> list[Path]:
    """The files that decide what a family's kernels are."""
    room, *below = module.split(".")[1:]
    if room in ("cpu", "library"):
        return sorted(file for pattern in _CODE["cpu"] for file in _PACKAGE.glob(pattern))
    if room != "gpu":
        return [_PACKAGE.joinpath(room, *below).with_suffix(".py"), *map(_PACKAGE.joinpath, _STEPS)]
    folders, waiting = {"common"}, [below[0]]
    while waiting:
        folder = waiting.pop()
        folders.add(folder)
        named = {name for file in _files(folder) for name in _GPU_FAMILY.findall(file.read_text())}
        waiting += sorted(name for name in named - folders if (_PACKAGE / "gpu" / name).is_dir())
    steps = map(_PACKAGE.joinpath, _STEPS if folders & {"complex", "composite"} else ())
    return sorted((*(file for folder in folders for file in _files(folder)), *_PACKAGE.glob("fn/**/*.py"), *steps))


def _named_by(module: str) -> set[Path]:
    """The files of the folder `gpu` that a module consists of: its own, and those that it imports, and so on."""
    found, waiting = set(), [module]
    while waiting:
        file = _PACKAGE.parent.joinpath(*waiting.pop().split(".")).with_suffix(".py")
        if file in found or not file.is_file():
            continue
        found.add(file)
        for room, names in _IMPORT.findall(file.read_text()):
            waiting += [room, *(f"{room}.{name}" for name in re.findall(r"\w+", names))]
    return found


def _files(folder: str) -> list[Path]:
    return sorted((_PACKAGE / "gpu" / folder).glob("**/*.py"))


def _families(rank: Ranked) -> Iterator[str]:
    """The modules of the families that a ranked schedule is of: its own, and those of its steps."""
    yield rank.family.__name__
    for choice in getattr(rank.schedule, "choices", ()):
        yield from _families(choice.best)
