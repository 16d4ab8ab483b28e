"""An algebra's product and sum as traced functions of two values."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.fn.pointwise import Pointwise


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
