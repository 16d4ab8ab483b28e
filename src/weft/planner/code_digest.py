"""A digest of the code that decides what a family's kernels are.

Of a GPU family: its own folder, the folders of the families that it builds on (those that its files name),
`gpu/common`, and `fn` with the emitters. Of the CPU backend: `cpu`, `library`, and `fn` with the emitter to numba. A
family that has no kernels of its own is its file and what runs its steps; their families are counted by `of_schedule`.
Of one kernel: its file and the device code that it names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from weft.planner.schedule import Ranked

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
    digest = hashlib.sha256(module.encode())
    for file in code_of(module):
        digest.update(str(file.relative_to(_PACKAGE)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@lru_cache
def of_kernel(module: str) -> str | None:
    """The digest of the file that a kernel stands in and of all device code that it names; None outside of weft."""
    if not module.startswith(f"{_PACKAGE.name}."):
        return None
    digest = hashlib.sha256()
    for file in sorted(_named_by(module)):
        digest.update(str(file.relative_to(_PACKAGE)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@lru_cache
def of_backend(backend: str) -> str:
    """The digest of all code that runs for a backend."""
    return of_files(*_CODE[backend])


@lru_cache
def of_files(*patterns: str) -> str:
    """The digest of the files that patterns name, relative to this package."""
    digest = hashlib.sha256()
    for pattern in patterns:
        for file in sorted(_PACKAGE.glob(pattern)):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


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
    steps = map(_PACKAGE.joinpath, _STEPS if "composite" in folders else ())
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
