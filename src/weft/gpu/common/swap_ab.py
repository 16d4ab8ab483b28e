"""A contraction with A and B swapped: D stays, and what stood along m stands along n.

Output tiles are made of two parts along n alone. Where it is m that no power of two covers well, B gives the rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from weft.spec import Contraction
from weft.spec.contraction import with_operands_swapped


class Swappable(Protocol):
    """A schedule that says whether B gives the rows of its tiles."""

    @property
    def swap_ab(self) -> bool: ...


def in_kernel_order(contraction: Contraction, schedule: Swappable) -> Contraction:
    """The contraction as a schedule's kernel sees it."""
    return swap_ab(contraction) if schedule.swap_ab else contraction


@lru_cache(maxsize=256)
def swap_ab(contraction: Contraction) -> Contraction:
    """A in the place of B and B in that of A, with their functions. Products of real numbers do not mind."""
    return replace(
        contraction,
        modes=tuple(map(with_operands_swapped, contraction.modes)),
        a=contraction.b,
        b=contraction.a,
        a_fn=contraction.b_fn,
        b_fn=contraction.a_fn,
        a_args=contraction.b_args,
        b_args=contraction.a_args,
        conjugate_a=contraction.conjugate_b,
        conjugate_b=contraction.conjugate_a,
    )
