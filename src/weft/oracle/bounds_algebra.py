"""How far a reduction in another algebra may be off, where that is known.

max_plus, min_plus, max_times, min_max, max_min: `reduce` picks one of the combined values and rounds nothing, so the
result is off by no more than the worst of them: `u |combine(a_k, b_k)|`, and what the operands' own errors come to.

log: L = log sum exp(x_k). To first order an error d_k of x_k moves L by w_k d_k with w_k = exp(x_k - L), and
sum w_k |x_k| <= |L| + log K, since sum w_k (L - x_k) is the entropy of the weights. A partial sum P enters with the
weight exp(P - L), and exp(P - L) |P| <= |L| + 1/e: each of K steps loses a few units of |L| + 1 at most.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from weft import algebra as ready
from weft.algebra import Algebra
from weft.errors import UnsupportedError
from weft.oracle.sums import Factor, reduced
from weft.spec.notation import Label

_PICKING = (ready.max_plus, ready.min_plus, ready.max_times, ready.min_max, ready.max_min, ready.or_and)
_LOG_ULPS = 4.0  # of one logaddexp, in units of the larger of its result and 1


def reduction_bound(
    algebra: Algebra,
    x: Factor,
    y: Factor,
    output: tuple[Label, ...],
    count: int,
    eps: float,
    value: torch.Tensor,
    shape: tuple[int, ...],
) -> torch.Tensor:
    """The bound of a reduction of `count` values each, on a floating accumulator of machine epsilon `eps`."""
    check_known(algebra)
    if algebra is ready.or_and:
        return torch.zeros(shape, dtype=torch.float64, device=value.device)
    if algebra is ready.log:
        size = _finite(value)
        bound = eps * (size + math.log(max(count, 1)))
        bound = bound + _LOG_ULPS * eps * count * (size + 1)
    else:
        sizes = _largest(algebra.combine, x, y, ("value", "value"), output)
        bound = eps * sizes.reshape(shape)
    if x.exact and y.exact:
        return bound
    if algebra is ready.max_times:
        moved = _largest(torch.mul, x, y, ("off", "size"), output) + _largest(torch.mul, x, y, ("size", "off"), output)
        moved = moved + _largest(torch.mul, x, y, ("off", "off"), output)
    else:
        # The smaller of two numbers, as the larger, moves no more than the one of them that moves most.
        join = torch.maximum if algebra in (ready.min_max, ready.max_min) else torch.add
        moved = _largest(join, x, y, ("off", "off"), output)
    return bound + moved.reshape(shape)


def reduced_addend_bound(
    algebra: Algebra, bound: torch.Tensor, off: torch.Tensor, eps: float, value: torch.Tensor
) -> torch.Tensor:
    """The bound once C, which may be `off`, is reduced into values that may be off by `bound`."""
    worst = torch.maximum(bound, off.expand(bound.shape))
    return worst + _LOG_ULPS * eps * (_finite(value) + 1) if algebra is ready.log else worst


def check_known(algebra: Algebra) -> None:
    """`UnsupportedError` for an algebra of floating values of which no bound is known."""
    if algebra not in _PICKING and algebra is not ready.log:
        raise UnsupportedError(
            f"no error bound is known for the algebra {algebra.name} on floating types: only for "
            f"{', '.join(one.name for one in (*_PICKING, ready.log))}, and for any algebra on integers, which is exact"
        )


def _largest(
    join: ready.Binary, x: Factor, y: Factor, parts: tuple[str, str], output: tuple[Label, ...]
) -> torch.Tensor:
    """max over k of |join(part of a_k, part of b_k)|; infinities, which are exact, count nothing."""

    def finite(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return _finite(join(p, q))

    largest = Algebra(finite, torch.maximum, 0.0, "largest")
    sources = []
    for factor, part in ((x, parts[0]), (y, parts[1])):
        one = getattr(factor, part)
        sources.append(replace(one, stored=one.stored.double()))
    return reduced(sources[0], sources[1], output, largest, torch.float64)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values.abs().double().nan_to_num(nan=0.0, posinf=0.0)
