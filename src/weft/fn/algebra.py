"""An algebra's product and sum as traced functions of two values, and whether it may reduce early, tried on samples.

    reduce over k of combine(combine(a[k], b[k]), c)  =  combine(reduce over k of combine(a[k], b[k]), c)

holds where `combine` distributes over `reduce` from the left: then it reduces before all operands have met.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch

from weft.fn.pointwise import Pointwise, RecordedFunction


@dataclass(frozen=True, slots=True)
class TracedAlgebra:
    """An algebra for one accumulator type: `combine(x, y)` for the product, `reduce(p, q)` for the sum.

    Both take and yield values of that type, to which A's and B's values are converted first. `identity` is a Python
    number that the type holds and that `reduce` does not change anything with: the value of an empty sum and of lanes
    that are masked off. Algebras compare by what they compute; `name` is for messages.
    """

    combine: Pointwise
    reduce: Pointwise
    identity: int | float | complex | bool
    name: str = field(default="algebra", compare=False)


_SAMPLES = 7  # values drawn of each kind
_ROUNDING = 64  # units in the last place of the largest value involved


@dataclass(frozen=True, slots=True)
class Early:
    """`broken` is the law that fails, with a sample; empty where reducing early changes nothing. `unsigned`: then, too,
    where no value is negative."""

    broken: str = ""
    unsigned: bool = False

    @property
    def never(self) -> bool:
        """Whether the formula asks for all operands before anything is reduced."""
        return bool(self.broken) and not self.unsigned


@lru_cache(maxsize=256)
def early(algebra: TracedAlgebra, dtype: torch.dtype) -> Early:
    """Whether values of an accumulator type may be reduced early. A function in Triton cannot be tried: never then."""
    if not all(isinstance(part, RecordedFunction) for part in (algebra.combine, algebra.reduce)):
        return Early(f"{algebra.name} is written in Triton: whether combine distributes over reduce cannot be tried")
    values = _values(dtype)
    broken = _broken(algebra, values)
    signed = dtype.is_floating_point or (not dtype.is_complex and dtype is not torch.bool)
    if not broken or not signed:
        return Early(broken)
    return Early(broken, unsigned=not _broken(algebra, values[values >= 0]))


def _broken(algebra: TracedAlgebra, values: torch.Tensor) -> str:
    """The law with the first triple for which it fails."""
    combined = _called(algebra.combine, *_all(values, values))
    if combined.is_floating_point():  # an empty sum; of whole numbers it wraps around
        combined = torch.cat([combined[combined.isfinite()], combined.new_tensor([algebra.identity])])
    picked = torch.linspace(0, len(combined) - 1, 4 * _SAMPLES, device="cpu").long().unique()
    p, q, z = _all(combined[picked], combined[picked], values)
    one = _called(algebra.combine, _called(algebra.reduce, p, q), z)
    parts = _called(algebra.combine, p, z), _called(algebra.combine, q, z)
    other = _called(algebra.reduce, *parts)
    wrong = _differ(one, other, torch.stack([p, q, z, *parts]))
    if not bool(wrong.any()):
        return ""
    at = int(wrong.nonzero()[0])
    return (
        f"combine of {algebra.name} does not distribute over reduce: for p={p[at].item():g}, q={q[at].item():g}, "
        f"z={z[at].item():g} combine(reduce(p, q), z) is {one[at].item():g}, "
        f"reduce(combine(p, z), combine(q, z)) is {other[at].item():g}"
    )


def _called(function: Pointwise, *values: torch.Tensor) -> torch.Tensor:
    found = function(*values)
    assert isinstance(found, torch.Tensor)
    return found.to(values[0].dtype)


def _all(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(each.reshape(-1) for each in torch.meshgrid(*values, indexing="ij"))


def _values(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([False, True], device="cpu")
    whole = torch.tensor([3, -2, 1, 0, 2, -1, 5], device="cpu")
    if not (dtype.is_floating_point or dtype.is_complex):
        return (whole if dtype.is_signed else whole.abs()).to(dtype)
    drawn = torch.randn(_SAMPLES, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    if dtype.is_complex:
        return torch.cat([whole, torch.complex(drawn, drawn.flip(0))]).to(dtype)
    return torch.cat([whole, drawn]).to(dtype)


def _differ(one: torch.Tensor, other: torch.Tensor, involved: torch.Tensor) -> torch.Tensor:
    """Where two results differ by more than rounding; not where one is NaN or both leave the type's range."""
    if not (one.is_floating_point() or one.is_complex()):
        return one != other
    size = torch.cat([involved, one[None], other[None]]).abs().nan_to_num(0.0, 0.0, 0.0).amax(0).clamp(min=1.0)
    apart = (one - other).abs()
    known = ~(one.isnan() | other.isnan() | (one == other))
    return known & (apart > _ROUNDING * torch.finfo(one.dtype).eps * size)
