"""The algebra `log`: gradients by softmax weights that are never stored.

    D[m, n] = log sum_k exp(A[m, k] + B[k, n])       dA[m, k] = sum_n dD[m, n] exp(A[m, k] + B[k, n] - D[m, n])

The sum over n is one of the same algebra, of log|dD| - D with B, for the positive and for the negative dD by itself:

    dA = exp(A + L+) - exp(A + L-)

So it is as safe from overflow as the forward pass. L is as large as D while A + L is small, which takes digits off:
sums of float32 are made in float64, D as well. `weights` has the sums, and their own derivatives.
On a CPU products of exponentials are faster still: see `exponentials`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from weft.api.entry import contraction
from weft.autograd.backward import Needs
from weft.autograd.exponentials import ByProducts, Factors, by_products
from weft.autograd.rule import Bare, Found, Tensors
from weft.autograd.spec import A, B, Spec
from weft.autograd.weights import SignedSum, logarithms, summed, weighted
from weft.base.arrays import dispatch_modes, grad_mode
from weft.machine.exactness import shortened
from weft.planner.schedule import Scalar


class Logarithm(Bare):
    """The rule of a bare contraction of `log`."""

    def __init__(self, spec: Spec, needs: Needs, ahead: bool) -> None:
        super().__init__(spec, needs, ahead)
        self._wide = spec.asked(algebra=spec.algebra, out_dtype=torch.float64, accumulate=torch.float64)
        self._forms = tuple([self._form(side) for side in (A, B)])

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Tensors) -> tuple[Tensor, ...]:
        a, b, *_ = tensors
        assert a is not None
        assert b is not None
        products = self._by_products(a, b)
        if products is not None and (made := products.forward(a, b)) is not None:
            return (made[0], *made[1])
        return super().forward(alpha, beta, tensors)

    def _by_products(self, a: Tensor, b: Tensor) -> ByProducts | None:
        if self.ahead or shortened() or type(a) is not Tensor or type(b) is not Tensor or dispatch_modes():
            return None
        return by_products(self.spec, (a.shape, b.shape), a.device.type)

    def pulled(self, grad: Tensor, saved: Sequence[Any], needs: Needs) -> Found:
        a, b, total, *kept = saved
        found: list[Tensor | None] = [None, None]
        sides, products = ((A, a, b), (B, b, a)), self._by_products(a, b)
        if kept and products is not None and not torch.is_grad_enabled():
            return tuple(products.backward(grad, Factors(*kept), (needs[A], needs[B])))
        total, grad = self._exact(a, b, total), grad.to(torch.float64)
        if torch.is_grad_enabled():  # the gradients may be differentiated in their turn
            for side, own, other in sides:
                if needs[side]:
                    found[side] = weighted(self._forms[side], grad, total, None, other, own).to(own.dtype)
            return tuple(found)
        signed = logarithms(self._forms[A], 0, grad, total)
        for side, own, other in sides:
            if needs[side]:
                found[side] = summed(self._forms[side], signed, [(1, other)], own, own.dtype)
        return tuple(found)

    def pushed(self, saved: Sequence[Any], tangents: Tensors) -> Tensor:
        """The sum of the tangents by their softmax weights."""
        spec, (a, b, total) = self.spec, saved
        form = replace(self._forms[A], terms=(spec.term_a, spec.term_b, spec.term_d), signs=(1, 1, -1))
        total = self._exact(a, b, total)
        first, second = (None if each is None else each.to(torch.float64) for each in tangents)
        parts = [
            *([weighted(form, first, a, None, b, total)] if first is not None else ()),
            *([weighted(form, None, a, second, b, total)] if second is not None else ()),
        ]
        return sum(parts[1:], parts[0]).to(spec.results[0])

    def _exact(self, a: Tensor, b: Tensor, total: Tensor) -> Tensor:
        """D in float64, which has the derivatives of D."""
        if total.dtype is torch.float64:
            return total
        with grad_mode(False):
            exact: Tensor = contraction(self.spec.text, a, b, self._wide)
            off = exact - total
        return total + torch.where(off.isfinite(), off, 0.0)

    def _form(self, side: int) -> SignedSum:
        """The sum that is the gradient of A or of B."""
        spec = self.spec
        own, other = (spec.term_a, spec.term_b) if side == A else (spec.term_b, spec.term_a)
        return SignedSum((spec.term_d, other, own), (-1, 1, 1), torch.float64, spec.asked())
