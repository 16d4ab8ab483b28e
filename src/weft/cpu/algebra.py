"""Another algebra than plus-times on torch tensors: its two functions, by torch's own operations where it has them.

A function is recognised by its identity, that is by what it computes. One that torch has no single operation for runs
as it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, TypeAlias

import torch

from weft.cpu.aux_operands import evaluated
from weft.cpu.logarithms import logsumexp
from weft.errors import WeftError
from weft.fn import Pointwise, trace
from weft.fn.algebra import TracedAlgebra

Binary: TypeAlias = Callable[..., torch.Tensor]

# torch's own operations of two values, and what reduces a whole dimension by them in one pass.
_BINARY: tuple[Binary, ...] = (
    torch.add,
    torch.mul,
    torch.maximum,
    torch.minimum,
    torch.bitwise_and,
    torch.bitwise_xor,
    torch.logaddexp,
)
_FOLDS: dict[Binary, Callable[..., object]] = {
    torch.maximum: torch.amax,
    torch.minimum: torch.amin,
    torch.logaddexp: logsumexp,
}


class Combine(Protocol):
    """Two blocks combined, in `out` where that is given."""

    def __call__(self, p: torch.Tensor, q: torch.Tensor, /, out: torch.Tensor | None = None) -> torch.Tensor: ...


class Operation:
    """`combine` or `reduce` of an algebra, on tensors of the accumulator's type that broadcast together."""

    def __init__(self, function: Pointwise, dtype: torch.dtype) -> None:
        self.known = next((op for op in _BINARY if _identity(op, dtype) == function.identity), None)
        self._function = function
        self._dtype = dtype

    def __call__(self, p: torch.Tensor, q: torch.Tensor, /, out: torch.Tensor | None = None) -> torch.Tensor:
        """The function of two values, in `out` where that is given; it may be `p` or `q`."""
        if self.known is not None:
            return self.known(p, q, out=out)
        result = evaluated(self._function, p, q).to(self._dtype)
        return result if out is None else out.copy_(result)


class Operations:
    """An algebra's functions for the type that it was traced for."""

    def __init__(self, algebra: TracedAlgebra, accumulate: torch.dtype) -> None:
        self.combine = Operation(algebra.combine, accumulate)
        self.reduce = Operation(algebra.reduce, accumulate)
        known = self.reduce.known
        # Logarithms of complex numbers have no largest one to be taken out.
        self._whole = None if known is None or accumulate.is_complex else _FOLDS.get(known)

    def combining(self, a_left: bool) -> Combine:
        """`combine` of blocks called left and right: its first value is A's, which may be on the right."""
        combine = self.combine
        return combine if a_left else lambda left, right, out=None: combine(right, left, out)

    @property
    def logarithms(self) -> bool:
        """Whether this is the algebra of logarithms, of real numbers."""
        return self.combine.known is torch.add and self._whole is logsumexp

    @property
    def folds_in_one_pass(self) -> bool:
        return self._whole is not None

    def fold(self, pairs: torch.Tensor, dim: int, out: torch.Tensor) -> None:
        """Reduce one dimension, which is not empty."""
        if self._whole is not None:
            self._whole(pairs, dim, out=out)
        else:
            out.copy_(halved(pairs, dim, self.reduce))


@lru_cache
def operations(algebra: TracedAlgebra, accumulate: torch.dtype) -> Operations:
    return Operations(algebra, accumulate)


def halved(pairs: torch.Tensor, dim: int, reduce: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Reduce one dimension, not empty, by halves: about as many calls as its extent has digits in binary."""
    odd: torch.Tensor | None = None
    while (extent := pairs.shape[dim]) > 1:
        half = extent // 2
        if extent % 2:
            last = pairs.narrow(dim, extent - 1, 1)
            odd = last if odd is None else reduce(odd, last)
        pairs = reduce(pairs.narrow(dim, 0, half), pairs.narrow(dim, half, half))
    return (pairs if odd is None else reduce(pairs, odd)).squeeze(dim)


@lru_cache
def _identity(operation: Binary, dtype: torch.dtype) -> str | None:
    """Of one of torch's operations as a function; None where it has none of this type, or yields another."""
    try:
        traced = trace(lambda p, q: operation(p, q), (dtype, dtype), names=("q",), hook="operation")
    except WeftError:
        return None
    return traced.identity if traced.result == dtype else None
