"""The gradients of `log` by products of exponentials, on a CPU.

    D[m, n] = log sum_k exp(A[m, k] + B[k, n])
    dA[m, k] = exp(A[m, k] - p[m]) sum_n W[m, n] exp(B[k, n] - q[n])        W = dD exp(p + q - D)

p and q are the largest values of rows of A and of columns of B, as in `weft.planner.exponentials`. One product for each
gradient, whatever the signs in dD. Where W would leave the range of its type sums of logarithms serve (`weights`): that
has to be looked up, for which a GPU would have to be waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from weft.autograd.backward import Needs
from weft.autograd.spec import A, B, Spec
from weft.autograd.steps import with_modes
from weft.machine.exactness import guarded
from weft.planner.exponentials import TYPES


def by_products(spec: Spec, a: Tensor, b: Tensor, total: Tensor, grad: Tensor, needs: Needs) -> list[Tensor] | None:
    """The gradients of A and of B, of those that are needed; None where their sums are not all in range."""
    if not _are_served(spec, a, b, total):
        return None
    kind = spec.accumulate
    x, y = _Factor(spec.term_a, spec.term_d, a.to(kind)), _Factor(spec.term_b, spec.term_d, b.to(kind))
    off = (x.top - total.to(kind)) + y.top
    off.masked_fill_(total == -math.inf, -math.inf)  # sums of nothing have no weights
    if not off.max() < -math.log(torch.finfo(kind).tiny) - 1:  # or NaN
        return None
    weights = off.exp_().mul_(grad)
    found = []
    for side, own, other in ((A, x, y), (B, y, x)):
        if needs[side]:
            product = _product(kind)(f"{spec.term_d},{other.term}->{own.term}", weights, other.values)
            found.append(product.mul_(own.values).to((a, b)[side].dtype))
    return found


@lru_cache
def _product(kind: torch.dtype) -> Callable[..., Tensor]:
    return guarded(torch.einsum, kind, kind, "cpu")


def _are_served(spec: Spec, a: Tensor, b: Tensor, total: Tensor) -> bool:
    extents: dict[str, int] = {}
    for term, tensor in ((spec.term_a, a), (spec.term_b, b), (spec.term_d, total)):
        if tensor.device.type != "cpu" or not tensor.numel() or type(tensor) is not Tensor:
            return False
        if any(extents.setdefault(label, extent) != extent for label, extent in zip(term, tensor.shape, strict=True)):
            return False
    terms = {*spec.term_a}, {*spec.term_b}, {*spec.term_d}
    met = all(terms[at] <= terms[at - 1] | terms[at - 2] for at in range(3))  # no label stands in one term alone
    return met and spec.accumulate in TYPES


class _Factor:
    """Exponentials of an operand under the largest value of each row, and those with D's dimensions."""

    def __init__(self, term: str, term_d: str, values: Tensor) -> None:
        self.term = term
        summed = [at for at, label in enumerate(term) if label not in term_d]
        top = values.amax(summed, keepdim=True) if summed else values
        top = top.masked_fill(top == -math.inf, 0)
        self.values = (values - top).exp_()
        kept = [label for label in term_d if label in term]
        moved = top.squeeze(summed).permute([[each for each in term if each in term_d].index(label) for label in kept])
        self.top = with_modes(moved, kept, term_d)
