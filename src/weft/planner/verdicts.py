"""Which families are not used on a machine, because they computed something wrong there in the self-test.

`weft.selftest` runs the tests and writes what they found; the planner reads here which families to leave out. A record
belongs to a family on one kind of device, with one driver, torch and Triton and one state of weft's own code: where one
of them changes there is none, and the family is tested anew. No kernels are imported here.

`WEFT_SELFTEST` in the environment: "0" turns the self-test off, and what it found before does not count then;
"interpreter" has it cover Triton's interpreter too, which is slow. Anything else, and the default, is real devices
only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from weft.base.interpreter import turns_off
from weft.base.log import warn
from weft.machine.stamp import device_stamp
from weft.machine.store import Store, fields_of
from weft.planner.keys import of_backend, of_files
from weft.planner.registry import short_name, versions
from weft.planner.schedule import Target
from weft.planner.validity import here, outdate

FORMAT = 1  # of keys and values
ROOM = "selftest"  # of the store
_MACHINE = ("kind", "name", "capability", "driver", "toolkit", "torch", "triton")  # of a device's stamp


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding of one test of a family."""

    reason: str | None  # what was wrong, in a few words; None where nothing was
    date: str  # ISO 8601
    seconds: float  # that it took
    absent: str | None = None  # why there was nothing to test on this device
    passing: bool = False  # whether another process may find otherwise


_Place = tuple[str, str, str, str, int]  # family, backend, and the kind of device
_found: dict[_Place, dict[str, Verdict]] = {}  # by the names of the tests
_warned: set[_Place] = set()


def applies(backend: str, target: Target) -> bool:
    """Whether families are tested before they are used for a target: one that is here, and no interpreter."""
    setting = os.environ.get("WEFT_SELFTEST", "1").lower()
    if turns_off(setting) or backend not in ("triton", "cpu"):
        return False
    if target.kind == "interpreter":
        return setting == "interpreter"
    return here(target)


def failures(backend: str, target: Target, families: tuple[str, ...]) -> Mapping[str, str]:
    """A sentence for each of these families (by module) that has failed on the target's device."""
    if not applies(backend, target):
        return {}
    return {family: why for family in families if (why := failure(family, backend, target)) is not None}


def failure(family: str, backend: str, target: Target) -> str | None:
    """Why a family is not used on the target's device; None where it has passed, or was not tested yet."""
    for name, verdict in known(family, backend, target).items():
        if verdict.reason is not None:
            where = "in this process" if verdict.passing else "on this machine"
            return f"excluded {where}, its self-test failed under {versions(backend)}: {verdict.reason} ({name})"
    return None


def known(family: str, backend: str, target: Target) -> Mapping[str, Verdict]:
    """The verdict of each test of a family, by the test's name: found by this process, or stored by another."""
    place = _place(family, backend, target)
    if place not in _found:
        _found[place] = _read(Store(ROOM).load(key(family, backend, target)))
    return _found[place]


def record(family: str, backend: str, target: Target, verdicts: Mapping[str, Verdict]) -> None:
    """Keep what tests of a family found, in place of what was kept of the same tests.

    That there was nothing to test, or what another process may find otherwise, is remembered by this one alone.
    """
    before = failure(family, backend, target)
    place = _place(family, backend, target)
    _found[place] = {**known(family, backend, target), **verdicts}
    value = {name: _stored(verdict) for name, verdict in _found[place].items() if _lasts(verdict)}
    if any(map(_lasts, verdicts.values())):
        Store(ROOM).save(key(family, backend, target), value)
    if failure(family, backend, target) != before:
        outdate()  # what was planned with the family, or without it


def warn_once(family: str, backend: str, target: Target) -> None:
    """Say that a family is not used, once for each family in a process."""
    place = _place(family, backend, target)
    if place in _warned:
        return
    _warned.add(place)
    why = failure(family, backend, target)
    warn(
        f"weft does without its family {short_name(family)} on {target.name}: {why}. "
        "`weft doctor` tests every family; WEFT_SELFTEST=0 uses them untested."
    )


def forget() -> None:
    """Forget what this process knows, not what is stored."""
    _found.clear()
    _warned.clear()
    _machine.cache_clear()
    outdate()


def key(family: str, backend: str, target: Target) -> dict[str, Any]:
    """The place of a family's record in the store."""
    return {
        "what": "selftest",
        "format": FORMAT,
        "family": family,
        "backend": backend,
        "environment": _machine(target),
        "code": of_backend(backend),
        "tests": of_files("selftest/*.py"),
    }


@lru_cache
def _machine(target: Target) -> dict[str, Any]:
    stamp = device_stamp(target.device) | {"kind": target.kind}
    return {name: stamp[name] for name in _MACHINE if name in stamp}


def _place(family: str, backend: str, target: Target) -> _Place:
    return family, backend, target.kind, target.name, target.capability


def _lasts(verdict: Verdict) -> bool:
    return verdict.absent is None and not verdict.passing


def _stored(verdict: Verdict) -> dict[str, Any]:
    return {name: value for name, value in asdict(verdict).items() if name != "passing"}


def _read(value: Any) -> dict[str, Verdict]:
    """The verdicts of a stored value; none where it is not understood."""
    try:
        return {name: fields_of(Verdict, fields) for name, fields in value.items()} if isinstance(value, dict) else {}
    except ValueError:
        return {}
