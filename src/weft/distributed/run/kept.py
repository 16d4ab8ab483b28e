"""Plans that are kept for later calls: one is used again where every rank says what it said when all of them made it.

A rank sees its own parts, and parts that look the same belong to different whole tensors. So each plan has a number,
which its ranks drew together, and a rank keeps under all that its call says the numbers of the plans that it said so
for. A call goes by a plan whose number all ranks find under what they say now: each has the parts that it had then.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from weft.api.lookup import read_notation
from weft.base.bounded_cache import BoundedCache
from weft.distributed.group.link import fitted_link
from weft.distributed.group.ranks import Ranks
from weft.distributed.run.asked import is_dtensor
from weft.distributed.run.plan import DistributedPlan
from weft.engine.memo import Memo, MemoPlace
from weft.errors import WeftError
from weft.fn.fingerprint import fingerprints
from weft.planner.request import HOOKS

_ALIKE = 64  # plans that are kept under what one rank says

_PLANS = Memo("distributed: plans", 256)  # by all that a call says on this rank: plans by number


def kept_or_made(
    ranks: Ranks, what: str, said: Hashable | None, make: Callable[[], DistributedPlan]
) -> DistributedPlan:
    """The plan of an earlier call that said the same on every rank, else one that all of them make now.

    `said`: all that this rank says, its parts' shapes included; None for what cannot be distinguished.
    """
    place = None if said is None else _PLANS.place((ranks.group, ranks.name, said))
    plans: BoundedCache | None = None if place is None else _PLANS.get(place)
    mine = [] if plans is None else plans.keys()
    number, every = ranks.numbered(f"{what}: known", mine)
    common = set(mine).intersection(*every)
    known: DistributedPlan | None = plans.get(max(common)) if plans is not None and common else None
    if known is not None:
        return known
    made = make()
    if place is not None:
        _keep(place, number, made)
    return made


def _keep(place: MemoPlace, number: int, made: DistributedPlan) -> None:
    plans: BoundedCache = _PLANS.get(place) or BoundedCache(_ALIKE)
    plans.put(number, made)
    _PLANS.put(place, plans)


def said_of(
    ranks: Ranks, over: tuple[Any, Any], equation: Any, a: Any, b: Any, placements: Any, link: Any,
    options: Mapping[str, Any],
) -> Hashable | None:  # fmt: skip
    """All that a call says on this rank; `over` are its group and mesh. None for what cannot be distinguished."""
    prints = fingerprints(tuple(options.get(name) for name in HOOKS))
    if prints is None or type(options.get("algebra", "")) is not str:
        return None
    try:
        tensors = tuple((_facts(one), is_dtensor(one) and tuple(one.placements)) for one in (a, b))
        operands = tuple(
            (name, _frozen(modes), _facts(tensor)) for name, (modes, tensor) in (options.get("operands") or {}).items()
        )
        others = tuple(
            (name, _frozen(value)) for name, value in sorted(options.items()) if name not in (*HOOKS, "operands")
        )
        named = equation if isinstance(equation, str) else read_notation(equation)
        fitted = fitted_link(ranks, a.device) if link is None else link
        said = (
            _frozen(over), ranks.timeout, named, tensors, _frozen(placements), fitted, prints, operands, others,
        )  # fmt: skip
        hash(said)
    except (TypeError, ValueError, AttributeError, WeftError):  # it is refused where all ranks read it
        return None
    return said


def _facts(tensor: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _frozen(value: Any) -> Any:
    """Mappings and sequences as tuples, which have a hash where what they hold has one."""
    if isinstance(value, Mapping):
        return tuple((name, _frozen(one)) for name, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_frozen, value))
    return value
