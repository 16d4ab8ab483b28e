"""Which versions the project has tested together (`data/tested.json`), and whether those at hand are among them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TESTED = Path(__file__).parent.parent / "data" / "tested.json"
# What has to agree, and how many numbers of its version: releases that differ in the last one count as the same.
_PARTS = {"torch": 2, "triton": 2, "cuda": 1, "python": 2, "capability": 2}


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a machine: the version at hand, and those that were tested."""

    name: str
    version: str
    tested: tuple[str, ...]
    known: bool  # whether the version at hand is among them


@lru_cache
def runs() -> tuple[dict[str, Any], ...]:
    """The combinations that were tested: backend, device, versions, and how."""
    return tuple(json.loads(TESTED.read_text())["runs"])


def components(backend: str, versions: Mapping[str, str | None]) -> list[Component]:
    """Each part that matters to a backend, held against what was tested with it."""
    found = []
    for name, length in _PARTS.items():
        tested = tuple(dict.fromkeys(run[name] for run in runs() if run["backend"] == backend and name in run))
        here = versions.get(name)
        if tested and here:
            known = _short(here, length) in {_short(version, length) for version in tested}
            found.append(Component(name, here, tested, known))
    return found


def together(backend: str, versions: Mapping[str, str | None]) -> bool:
    """Whether one run of the tests had all of these versions at once."""
    return any(_agrees(run, versions) for run in runs() if run["backend"] == backend)


def _agrees(run: Mapping[str, str], versions: Mapping[str, str | None]) -> bool:
    return all(
        _short(versions.get(name) or "", length) == _short(run[name], length)
        for name, length in _PARTS.items()
        if name in run
    )


def _short(version: str, length: int) -> tuple[str, ...]:
    return tuple(version.partition("+")[0].split(".")[:length])
