"""The functions that go from values to scaled exponentials, and from sums of their products back to logarithms."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from weft.fn import Pointwise, trace
from weft.spec import Contraction

# Logarithms, by accumulator: of what each factor is scaled by, exact in that type, so that products stay in range.
SCALE = {torch.float32: 37.0, torch.float64: 332.0}


def factor_fn(accumulate: torch.dtype) -> Pointwise:
    """exp(value - top + scale), the rounding of both sums made good. A top of -inf is of a row without terms."""
    scale = SCALE[accumulate]

    def factor(value: Tensor, top: Tensor) -> Tensor:
        top = torch.where(top == -math.inf, 0.0, top)
        off, first = _sum(value, -top)
        power, second = _sum(off, scale)
        lost = torch.where(torch.abs(power) < math.inf, first + second, 0.0)
        return torch.exp(power) * (1 + lost)

    return trace(factor, (accumulate, accumulate), names=("top",), hook="factor")


def _sum(x: Tensor, y: Any) -> tuple[Tensor, Tensor]:
    """A rounded sum and what rounding took (Knuth, The Art of Computer Programming 2, 4.2.2, theorem B)."""
    total = x + y
    of_y = total - x
    return total, (x - (total - of_y)) + (y - of_y)


def epilogue_fn(contraction: Contraction) -> Pointwise:
    """From a sum of products to the logarithm and on through the contraction's own epilogue; then the mark."""
    accumulate = contraction.arithmetic.accumulate
    scale, numbers = SCALE[accumulate], torch.finfo(accumulate)
    # Factors under the least normal number are lost: each takes at most that times the largest factor from a sum.
    bound = 2 * contraction.k * numbers.tiny * math.exp(scale) / (numbers.eps / 2)
    down = math.exp(-2 * scale)  # which float64 must be able to take as well
    bound = max(bound, 2 * torch.finfo(torch.float64).tiny / down)
    own = contraction.epilogue
    names = [f"aux{at}" for at in range(len(contraction.epilogue_args))]

    def epilogue(total: Tensor, p: Tensor, q: Tensor, **aux_args: Tensor) -> tuple[Tensor, ...]:
        empty = ((p == -math.inf) & (q < math.inf)) | ((q == -math.inf) & (p < math.inf))
        value = (p.double() + q.double()) + torch.log(total.double() * down)
        value = torch.where(empty, -math.inf, value).to(accumulate)
        mark = ~((total >= bound) & (total < math.inf)) & ~empty
        results = value if own is None else own._module.forward(value, *aux_args.values())  # type: ignore[attr-defined]
        return (*results, mark) if isinstance(results, tuple) else (results, mark)

    aux_args = own.dtypes[1:] if own is not None else ()
    return trace(epilogue, (accumulate, accumulate, accumulate, *aux_args), names=("p", "q", *names), hook="epilogue")
