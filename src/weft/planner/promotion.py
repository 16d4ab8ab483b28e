"""When a better kernel takes over from the one that serves: a rule of predicted times alone, and what it has decided.

A plan begins with what costs nothing to begin with: the library tier. Every call of it
loses what a better kernel would have saved by the model's count. The better one is prepared alongside the calls once
that is worth while. It takes over after as many calls as take a quarter longer than preparing takes: by then it is
there, and nobody waits. Clocks have no part in it: what `weft.plans.guard` has timed takes the place of predictions. A
change to a specialised kernel is kept on disk, and the next process prepares that kernel from the first call on.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from weft.base.interpreter import turns_off
from weft.machine.counts import distinct_elements
from weft.machine.store import Store
from weft.planner.coefficients import coefficients, fitted
from weft.planner.keys import NotSerializable, of_schedule, serialize_schedule
from weft.planner.planner import Choice
from weft.planner.schedule import Description, Target
from weft.planner.tuned import ROOM as TUNED
from weft.planner.tuned import key as tuned_key
from weft.planner.tuned import restored
from weft.planner.validity import here, now
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation

Name: TypeAlias = Literal["library", "specialised"]
LIBRARY: Name = "library"
SPECIALISED: Name = "specialised"

ROOM = "promotions"  # of the store
_PROMOTED: dict[str, Any] = {"what": "promotion", "format": 2}  # in the key of a tuned schedule
_OTHERS = "the others were not asked: this schedule served in an earlier process"
FASTER = 0.9  # of the time of what serves: a kernel that takes more does not take over
_FASTER_LONG = 0.97  # and of a long call on a GPU, which is timed there: a kernel that is no faster goes again
LONG = 2e-4  # seconds of such a call

_FITTED = fitted("tiers")
COMPILING = _FITTED("compiling")  # seconds that planning, compiling and loading one GPU kernel takes
COMPILING_CPU = _FITTED("compiling_cpu")  # and those of one function for a CPU
LOADING = _FITTED("loading")  # seconds that planning and loading one takes that is compiled already
IMPORTING = _FITTED("importing")  # and those of Triton and the families, once in a process
LOOKING = _FITTED("looking")  # seconds that it takes to find out what would be better
TESTING = _FITTED("testing")  # seconds of the self-test of a family that is new to the machine
TESTING_FIRST = _FITTED("testing_first")  # and on a GPU where none was tested yet
LEAST = _FITTED("least")  # seconds of a kernel that does next to nothing

_PATIENCE = 4  # times of what looking takes that calls have taken before anybody looks
WORTH = 0.01  # seconds that calls have lost before a better kernel is prepared
WORTH_CPU = 0.25  # and of what compiling takes in this process, which waits for it at its end
_MARGIN = 1.25  # times of what preparing takes that pass until the better kernel takes over


@dataclass(frozen=True, slots=True)
class Tier:
    """Which kind of kernel serves a plan, why, and from which of its calls on a better one does."""

    name: Name
    why: str
    then: Name | None = None  # the kind that takes over; None: nothing does, as far as is known
    early: int = 0  # number of the call that begins to prepare it
    switch_at: int | None = None  # number of the call that it serves first
    better: float = 0.0  # seconds of a call from then on, as predicted
    look_at: int | None = None  # number of the call that finds out what would be better; None: that is known


def begins_with_library(kind: str) -> bool:
    """Whether "auto" begins with the library tier on a kind of device, where `WEFT_TIERS` is not 0."""
    return kind in ("cpu", "cuda", "hip") and not turns_off(os.environ.get("WEFT_TIERS"))


def looks_at(seconds: float) -> int:
    """The call of a library tier that takes `seconds` at which it is found out what would be better: not the first."""
    return max(2, 1 + math.floor(_PATIENCE * LOOKING / max(seconds, 1e-9)))


def bar(seconds: float, kind: str) -> float:
    """The seconds that a kernel may take at most to take over, on a kind of device, from one that takes `seconds`."""
    return (_FASTER_LONG if kind != "cpu" and seconds >= LONG else FASTER) * seconds


def taken_over(
    tier: Tier, call: int, seconds: float, offer: Name, better: float, ready: float, tuned: bool = False,
    worth: float = WORTH, kind: str = "cpu", period: float = 0.0,
) -> Tier:  # fmt: skip
    """The tier of a plan whose calls take `seconds`, once it is known that `offer` would take `better` seconds, and
    `ready` to prepare, which begins once calls have lost `worth` seconds; `call` is the number of the call that is
    about to run. A schedule that was `tuned` is the fastest whatever is predicted. `kind`: of device. `period`: seconds
    from call to call, where that is longer."""
    later = math.floor(_MARGIN * ready / max(seconds, period, 1e-9))
    if tuned:
        return Tier(tier.name, tier.why, offer, call, call + later, better)
    if better > bar(seconds, kind):
        return Tier(tier.name, f"{tier.why}; no {offer} kernel would be faster by enough")
    begin = call + math.floor(min(worth, ready) / (seconds - better))
    return Tier(tier.name, tier.why, offer, begin, begin + later, better)


def expected(description: Description, target: Target) -> float:
    """Seconds that a specialised kernel takes at least on a GPU, without planning one: whether it is faster by enough
    is asked of its own model once it is planned."""
    by = coefficients(target)
    modes = description.modes
    layouts: tuple[Any, ...]
    if isinstance(description, Permutation):
        layouts, seconds = (description.x, None, description.c, description.d), 0.0
    else:
        layouts = (description.a, description.b, description.c, description.d)
        seconds = 2.0 * math.prod([mode.extent for mode in modes]) / _rate(description, target)
    size = 0
    for tensor, layout in enumerate(layouts):
        if layout is not None:
            extents, strides = [mode.extent for mode in modes], [mode.strides[tensor] for mode in modes]
            size += layout.dtype.itemsize * distinct_elements(extents, strides)
    return LEAST + max(size / by.memory_rate, seconds)


def _rate(contraction: Contraction, target: Target) -> float:
    """Flops per second of the faster of matrix instructions and the vendor's library, where they make such products."""
    by, arithmetic = coefficients(target), contraction.arithmetic
    if contraction.algebra is not None or min(contraction.m, contraction.n) == 1:
        return by.vector_rate
    product, precision = dtype_name(arithmetic.product), arithmetic.precision
    known: float = fitted("common").table("matrix_rate").get(f"{product} {precision}", by.vector_rate)
    library: float = fitted("blas").table("rates").get(product, 0.0) if precision == "ieee" else 0.0
    return max(known, library)


class StoredChoice(NamedTuple):
    """A specialised kernel that an earlier process has found: prepared first in this one."""

    why: str
    choice: Choice | None  # with that schedule alone; None where it is to be planned
    tuned: bool = False  # by measuring


def kept(description: Description, backend: str, target: Target, workspace_limit: int | None) -> StoredChoice | None:
    """The stored record of a contraction that a specialised kernel has served or that was tuned; None without one."""
    if not here(target) or not any(_holds_any(room) for room in (ROOM, TUNED)):
        return None
    place = tuned_key(description, backend, target, workspace_limit)
    if place is None:
        return None
    if Store(TUNED).load(place) is not None:
        return StoredChoice("a tuned schedule is stored", None, tuned=True)
    value = Store(ROOM).load(place | _PROMOTED)
    if not isinstance(value, dict):
        return None
    rank, choice = restored(value.get("serialized"), value.get("family"), description, backend, target), None
    most = math.inf if workspace_limit is None else workspace_limit
    if rank is not None and rank.schedule.workspace_bytes <= most and of_schedule(rank) == value.get("code"):
        choice = Choice(description, backend, target, rank, (rank,), (_OTHERS,))
    return StoredChoice("it served in an earlier process", choice)


def demote(choice: Choice, workspace_limit: int | None) -> None:
    """Forget on disk that a specialised kernel served: the device has shown another one to be faster."""
    place = tuned_key(choice.description, choice.backend, choice.target, workspace_limit)
    if place is not None and here(choice.target):
        Store(ROOM).forget(place | _PROMOTED)


def promote(choice: Choice, workspace_limit: int | None, tier: Tier) -> None:
    """Keep on disk that the schedule of a choice serves."""
    description, best = choice.description, choice.best
    place = tuned_key(description, choice.backend, choice.target, workspace_limit)
    if place is None or not here(choice.target):
        return
    value = {"switch_at": tier.switch_at, "text": description.text, "date": now()}
    with suppress(NotSerializable):
        serialized = serialize_schedule(best.schedule, description)
        value |= {"family": best.family.__name__, "serialized": serialized, "code": of_schedule(best)}
    Store(ROOM).save(place | _PROMOTED, value)


def _holds_any(room: str) -> bool:
    """Whether anything is stored there: looking costs a microsecond, a key a hundred."""
    return Store(room).directory.is_dir()
