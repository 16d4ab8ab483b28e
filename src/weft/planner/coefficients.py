"""The fitted numbers of the cost model, and where they come from for a device.

`weft tune --calibrate` fits them to what it measures and keeps them in the cache for that device; those of some devices
ship with weft (`data/coefficients.json`); everywhere else the defaults stand, which were fitted on an H200. Read once
for each device and process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from weft.machine.store import Store
from weft.planner.schedule import Target

FORMAT = 1  # of what is kept
ROOM = "coefficients"  # of the store
SHIPPED = Path(__file__).parent.parent / "data" / "coefficients.json"


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What `weft.gpu.common.cost` multiplies by; seconds, bytes per second, and so on."""

    launch: float = 9.0e-6  # seconds
    memory_rate: float = 6.2e12  # bytes per second
    l2_rate: float = 8.0e12
    clock: float = 1.54e9  # cycles of the load-store units per second and processor that are really had
    step_seconds: float = 0.16e-6  # per step along k
    block_seconds: float = 0.41e-6  # before the first and after the last step
    overlap_1: float = 2.0  # the norms that join the pipes with 1, 2 and more blocks on a processor
    overlap_2: float = 2.4
    overlap_3: float = 3.6
    rearranged: float = 1.0  # an operand shuffled in registers slows the matrix pipe by this
    matrix: float = 1.6  # of the matrix units' rates in `cost`, what is had
    vector_rate: float = 2.5e13  # flops of multiplications and sums outside the matrix units
    families: Mapping[str, float] = field(default_factory=dict)  # measured over predicted, where it is not 1

    def overlap(self, resident: int) -> float:
        return (self.overlap_1, self.overlap_2, self.overlap_3)[min(resident, 3) - 1]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Coefficients | None:
        """What `as_json` made, or None for anything else. Every number must be positive and finite."""
        try:
            found = cls(**{name: value[name] for name in numbers()}, families=dict(value["families"]))
            every = [*(getattr(found, name) for name in numbers()), *found.families.values()]
            return found if all(math.isfinite(number) and number > 0 for number in every) else None
        except (KeyError, TypeError, ValueError):
            return None


def numbers() -> list[str]:
    """The names of the fields that are plain numbers."""
    return [each.name for each in fields(Coefficients) if each.name != "families"]


_override: list[Coefficients] = []


def coefficients(target: Target) -> Coefficients:
    """The numbers for a device."""
    return _override[-1] if _override else _known(target.kind, target.name, target.capability)


@contextmanager
def using(given: Coefficients) -> Iterator[None]:
    """Within, these numbers stand for every device: to fit them."""
    _override.append(given)
    try:
        yield
    finally:
        _override.pop()


def keep(target: Target, found: Coefficients) -> None:
    """Keep numbers that were fitted on a device; they are used from now on."""
    Store(ROOM).save(_key(target.kind, target.name, target.capability), found.as_json())
    _known.cache_clear()


@lru_cache
def _known(kind: str, name: str, capability: int) -> Coefficients:
    if kind not in ("cuda", "hip"):
        return Coefficients()
    kept = Coefficients.from_json(Store(ROOM).load(_key(kind, name, capability)))
    return kept or Coefficients.from_json(_shipped().get(name)) or Coefficients()


def _key(kind: str, name: str, capability: int) -> dict[str, Any]:
    return {"what": "coefficients", "format": FORMAT, "kind": kind, "name": name, "capability": capability}


@lru_cache
def _shipped() -> dict[str, Any]:
    try:
        return dict(json.loads(SHIPPED.read_text()))
    except (OSError, ValueError, TypeError):
        return {}
