"""The pair of operations that a micro-kernel computes, and how it treats NaN. All of them are commutative."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from weft.algebra import Algebra, gf2, max_min, max_plus, max_times, min_max, min_plus
from weft.cpu.gett.forms import matrix_form
from weft.errors import WeftError
from weft.fn.algebra import TracedAlgebra
from weft.spec import Contraction

PAIRS = (
    ("mul", "add"), ("add", "max"), ("add", "min"), ("mul", "max"), ("max", "min"), ("min", "max"), ("and", "xor"),
)  # fmt: skip


class Operation(NamedTuple):
    """An entry of `OPERATIONS`; kernels know it by its place there."""

    combine: str
    reduce: str
    exact: bool = False  # whether NaN is looked for: needed where there may be some
    conjugates_row: bool = False
    conjugates_result: bool = False
    real_row: bool = False  # whether complex products are of the row's real parts alone

    def identity(self, kind: Any) -> float | int:
        """The identity of `reduce`, as LLVM writes it for a vector `Kind`."""
        if self.reduce in ("add", "xor"):
            return 0 if kind.whole else 0.0
        sign = -1 if self.reduce == "max" else 1
        if not kind.whole:
            return sign * math.inf
        return -(1 << (8 * kind.size - 1)) if sign < 0 else (1 << (8 * kind.size - 1)) - 1


OPERATIONS = (
    *(Operation("mul", "add", False, *flags) for flags in itertools.product((False, True), repeat=3)),
    *(Operation(combine, reduce, exact) for combine, reduce in PAIRS[1:] for exact in (False, True)),
)  # fmt: skip

_READY: dict[tuple[str, str], Algebra] = {
    ("add", "max"): max_plus, ("add", "min"): min_plus, ("mul", "max"): max_times, ("max", "min"): min_max,
    ("min", "max"): max_min, ("and", "xor"): gf2,
}  # fmt: skip


@lru_cache
def ready_pair(algebra: TracedAlgebra, accumulate: torch.dtype) -> tuple[str, str] | None:
    """The operations of an algebra, recognised by what it computes; None where no kernel has them."""
    if accumulate.is_complex:
        return None
    for pair, ready in _READY.items():
        try:
            known = ready.traced(accumulate)
        except WeftError:  # which does not work on that type
            continue
        if (algebra.combine, algebra.reduce) == (known.combine, known.reduce):
            return pair
    return None


def operation_of(contraction: Contraction, swapped: bool, real_row: bool) -> Operation | None:
    """The operation of a supported contraction's micro-kernel; None for an algebra whose kernel is written for it."""
    if contraction.algebra is not None:
        accumulate = contraction.arithmetic.accumulate
        if matrix_form(contraction.algebra, accumulate) is not None:
            return Operation("mul", "add")
        pair = ready_pair(contraction.algebra, accumulate)
        return Operation(*pair) if pair is not None else None
    row, slot = (conjugated(contraction, name) for name in ("BA" if swapped else "AB"))
    return Operation("mul", "add", False, row != slot, slot, real_row)


def conjugated(contraction: Contraction, name: str) -> bool:
    """Whether the products conjugate an operand; where a stage has its values, that does it."""
    if contraction.algebra is not None:
        return False
    if name == "A":
        return contraction.conjugate_a and contraction.a.dtype.is_complex and contraction.a_fn is None
    return contraction.conjugate_b and contraction.b.dtype.is_complex and contraction.b_fn is None
