"""When a contraction at hand is worth a kernel of its own: a rule of predicted times alone, and what it has decided.

Every call at hand loses what a kernel made to measure would have saved by the model's count. Once that adds up to what
planning and compiling such a kernel costs, the contraction is promoted: the next call runs the kernel made to measure.
Clocks have no part in it, so that two runs of a program on the same caches agree bit for bit. A promotion is kept on
disk, and the next process begins with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from weft.machine.counts import distinct_elements
from weft.machine.store import Store
from weft.planner.coefficients import coefficients, fitted
from weft.planner.schedule import Description, Target
from weft.planner.tuned import ROOM as TUNED
from weft.planner.tuned import key as tuned_key
from weft.planner.validity import here, now
from weft.spec import Contraction
from weft.spec.permutation import Permutation

ROOM = "promotions"  # of the store
FORMAT = 1

_FITTED = fitted("tiers")
COMPILING = _FITTED("compiling")  # seconds that planning, compiling and loading one kernel takes
MADE = _FITTED("made")  # times that a kernel made to measure takes of what memory or arithmetic alone would
LEAST = _FITTED("least")  # seconds of a kernel that does next to nothing


@dataclass(frozen=True, slots=True)
class Tier:
    """Which kind of kernel serves a plan, why, and from which of its calls on the other one does."""

    name: Literal["at hand", "made to measure"]
    why: str
    switch_at: int | None = None  # number of the call that runs the first kernel made to measure; None: none does
    lost: float = 0.0  # seconds that each call at hand loses by the model's count

    @property
    def early(self) -> int:
        """The call at which compiling begins beside."""
        return max(1, (self.switch_at or 1) // 2)


def expected(description: Description, target: Target) -> float:
    """Seconds that a kernel made to measure is expected to take, without planning one."""
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
    return LEAST + MADE * max(size / by.memory_rate, seconds)


def _rate(contraction: Contraction, target: Target) -> float:
    """Flops per second of the faster of matrix instructions and the vendor's library, where they make such products."""
    by, arithmetic = coefficients(target), contraction.arithmetic
    if contraction.algebra is not None or min(contraction.m, contraction.n) == 1:
        return by.vector_rate
    product, precision = str(arithmetic.product).removeprefix("torch."), arithmetic.precision
    known: float = fitted("common").table("matrix_rate").get(f"{product} {precision}", by.vector_rate)
    library: float = fitted("blas").table("rates").get(product, 0.0) if precision == "ieee" else 0.0
    return max(known, library)


def tier(description: Description, target: Target, seconds: float) -> Tier:
    """The rule for a contraction that takes `seconds` at hand, as predicted."""
    lost = seconds - expected(description, target)
    if lost <= 0:
        return Tier("at hand", "a kernel made to measure would not be faster")
    if lost >= COMPILING:
        return Tier("made to measure", "the first call at hand would lose more than compiling takes", None, lost)
    return Tier("at hand", "it needs no compiling", 1 + math.ceil(COMPILING / lost), lost)


def is_stored(description: Description, backend: str, target: Target, workspace_limit: int | None) -> str | None:
    """Why a contraction begins with a kernel made to measure: it was promoted, or tuned; None where it was neither."""
    if not here(target) or not any(_holds_any(room) for room in (ROOM, TUNED)):
        return None
    for room, why in ((ROOM, "promoted by an earlier process"), (TUNED, "a tuned schedule is stored")):
        place = _key(description, backend, target, workspace_limit, room)
        if place is not None and Store(room).path(place).exists() and Store(room).load(place) is not None:
            return why
    return None


def promote(description: Description, backend: str, target: Target, workspace_limit: int | None, tier: Tier) -> None:
    """Keep on disk that a contraction is promoted."""
    place = _key(description, backend, target, workspace_limit, ROOM)
    if place is not None and here(target):
        Store(ROOM).save(place, {"switch_at": tier.switch_at, "text": description.text, "date": now()})


def _key(
    description: Description, backend: str, target: Target, workspace_limit: int | None, room: str
) -> dict[str, Any] | None:
    place = tuned_key(description, backend, target, workspace_limit)
    if place is not None and room == ROOM:
        place |= {"what": "promotion", "format": FORMAT}
    return place


def _holds_any(room: str) -> bool:
    """Whether anything is stored there: looking costs a microsecond, a key a hundred."""
    return Store(room).directory.is_dir()
