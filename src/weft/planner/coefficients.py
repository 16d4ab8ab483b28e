"""The fitted numbers of the cost models, and where they come from for a device.

Those of GPUs were fitted on an H200 and are data: `data/costs/h200.json` has each with its unit and the commit and day
it came with. Those of CPUs are in a file for each length of vectors (`weft.cpu.host`).

Those of the section "gathering" are the `Coefficients`: `weft tune --calibrate` fits them anew to what it measures on a
device, with a factor for each family that has a model of its own, and keeps them in the cache for as long as the models
stay as they are. Files of other devices, `data/costs/*.json` with that section, ship with weft. Everywhere else those
of the H200 stand, and `weft warm` begins with a short calibration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from weft.machine.store import Store, fields_of
from weft.planner.keys import of_files
from weft.planner.schedule import Target
from weft.planner.validity import generation, outdate

FORMAT = 2  # of what is kept
ROOM = "coefficients"  # of the store
SHIPPED = Path(__file__).parent.parent / "data" / "costs"  # a file for each device
FITTED_ON = "h200.json"
_MODELS = ("gpu/**/cost.py", "gpu/**/model.py", "gpu/**/family.py", "gpu/complex/*.py", "gpu/composite/*.py")


class Fitted:
    """The constants of one section of a file, by default the H200's; `used` are the names that were read."""

    def __init__(self, section: str, file: str) -> None:
        entries = json.loads((SHIPPED / file).read_text())["sections"][section]["values"]
        self._values: dict[str, Any] = {name: entry["value"] for name, entry in entries.items()}
        self.used: set[str] = set()

    def __call__(self, name: str) -> float:
        self.used.add(name)
        value: float = self._values[name]
        return value

    def series(self, name: str) -> Sequence[float]:
        self.used.add(name)
        values: Sequence[float] = self._values[name]
        return values

    def table(self, name: str) -> Mapping[str, float]:
        self.used.add(name)
        values: Mapping[str, float] = self._values[name]
        return values


@cache
def fitted(section: str, file: str = FITTED_ON) -> Fitted:
    """The constants of a section; one object for each, so that what is used of it is known."""
    return Fitted(section, file)


_FITTED = fitted("gathering")


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Coefficients of `weft.gpu.common.cost`: seconds, bytes per second, and so on."""

    launch: float = _FITTED("launch")  # seconds
    memory_rate: float = _FITTED("memory_rate")  # bytes per second
    l2_rate: float = _FITTED("l2_rate")
    clock: float = _FITTED("clock")  # cycles of the load-store units per second and processor that are really had
    step_seconds: float = _FITTED("step_seconds")  # per step along k
    block_seconds: float = _FITTED("block_seconds")  # before the first and after the last step
    overlap_1: float = _FITTED("overlap_1")  # the norms that join the pipes with 1, 2 and more blocks on a processor
    overlap_2: float = _FITTED("overlap_2")
    overlap_3: float = _FITTED("overlap_3")
    rearranged: float = _FITTED("rearranged")  # an operand shuffled in registers slows the matrix pipe by this
    matrix: float = _FITTED("matrix")  # of the matrix units' rates in `cost`, what is had
    vector_rate: float = _FITTED("vector_rate")  # flops of multiplications and sums outside the matrix units
    families: Mapping[str, float] = field(default_factory=dict)  # measured over predicted, where it is not 1

    def overlap(self, resident: int) -> float:
        return (self.overlap_1, self.overlap_2, self.overlap_3)[min(resident, 3) - 1]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Coefficients | None:
        """Coefficients from a value that `as_json` made; None for any other, or a number not positive and finite."""
        try:
            known = {each.name for each in fields(cls)}
            found = fields_of(cls, {name: each for name, each in value.items() if name in known})
            every = [*(getattr(found, name) for name in numbers()), *found.families.values()]
            return found if all(every) and known <= value.keys() else None
        except (AttributeError, ValueError):
            return None


def numbers() -> list[str]:
    """The names of the fields that are plain numbers."""
    return [each.name for each in fields(Coefficients) if each.name != "families"]


_override: list[Coefficients] = []


def coefficients(target: Target) -> Coefficients:
    """The numbers for a device."""
    return _override[-1] if _override else _known(target.kind, target.name, target.capability, generation()[0])


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
    outdate()


def is_fitted(target: Target) -> bool:
    """Whether there are numbers of this very device: kept ones of these models, or some that ship with weft."""
    return _own(target.kind, target.name, target.capability) is not None


@lru_cache
def _known(kind: str, name: str, capability: int, _changes: int) -> Coefficients:
    """The numbers on disk, read again after each change."""
    return (_own(kind, name, capability) if kind in ("cuda", "hip") else None) or Coefficients()


def _own(kind: str, name: str, capability: int) -> Coefficients | None:
    kept = Coefficients.from_json(Store(ROOM).load(_key(kind, name, capability)))
    return kept or Coefficients.from_json(_shipped().get(name))


def _key(kind: str, name: str, capability: int) -> dict[str, Any]:
    """A device, and the models that its numbers are of."""
    models = of_files(*_MODELS, f"data/costs/{FITTED_ON}")
    return {
        "what": "coefficients", "format": FORMAT, "kind": kind, "name": name, "capability": capability,
        "models": models,
    }  # fmt: skip


@lru_cache
def _shipped() -> dict[str, Any]:
    """Coefficients of devices by name."""
    found = {}
    for file in sorted(SHIPPED.glob("*.json")):
        try:
            content = json.loads(file.read_text())
            section = content["sections"]["gathering"]
            values = {name: entry["value"] for name, entry in section["values"].items()}
            found[content["device"]] = values | {"families": section.get("families", {})}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # a file that somebody has damaged is none
    return found
