"""A `PermutePlan`: a permutation bound to the way it is carried out, to run again and again on new pointers.

A plan is made for the layout of X. The result may lie otherwise from call to call, be scaled or be added to; each
combination is one variant, planned and built when it first appears.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from weft.base.arrays import as_result, as_tensor, like
from weft.base.describe import describe_call
from weft.errors import DTypeError, ShapeError, call_context
from weft.oracle.reference import permute_launcher
from weft.planner.request import PermuteRequest
from weft.planner.schedule import Scalar
from weft.plans.base import PlanBase, Variant
from weft.plans.checks import check_operand, check_out, checked_scalar
from weft.spec import Layout
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation, scaling_type


class PermutePlan(PlanBase):
    """A permutation, planned once; calling it runs it on new tensors of the same shape, strides and type.

    Made by `weft.plan_permute`. `plan(x, *, out=None, alpha=1.0, beta=0.0)` returns the result, which is `out` when
    that is given. `explain()` says what was chosen and why.
    """

    def __init__(self, request: PermuteRequest) -> None:
        self._request = request
        self.shape = request.shape
        self.dtype = request.d_dtype
        self._variants = {}  # by D's layout, whether scaled, whether added to
        self._default = Layout.contiguous(self.shape, self.dtype)

    @property
    def permutation(self) -> Permutation:
        """The canonical permutation this plan was made for."""
        found: Permutation = self._first().description
        return found

    def __call__(self, x: Any, *, out: Any = None, alpha: Scalar = 1.0, beta: Scalar = 0.0) -> Any:
        """Run on `x`, which lies as the planned one did; returns the result in the kind of array that `x` is.

        Raises `ShapeError` or `DTypeError` when a tensor does not fit the plan; then nothing is written.
        """
        with call_context(lambda: describe_call("plan", self._request.text, x=x, out=out)):
            target = as_result(out) if out is not None else None
            result = self.run(as_tensor("x", x).resolve_neg(), target, alpha, beta)
        return out if out is not None else like(x, result)

    def run(self, x: torch.Tensor, out: torch.Tensor | None, alpha: Scalar, beta: Scalar) -> torch.Tensor:
        """The call on torch tensors: check what can differ, find the variant, launch."""
        alpha, beta = self._scalars(alpha, beta, out)
        variant = self._fitting(x, out, alpha, beta)
        if out is None:
            out = torch.empty(self.shape, dtype=self.dtype, device=self._request.device)
        if out.numel():
            # A launch sees memory as it lies: conjugation is in the description, not in the tensor's bit.
            variant.launch(x.conj() if x.is_conj() else x, out if beta != 0 else None, out, alpha, beta)
        return out

    def prepare(
        self, x: torch.Tensor, out: torch.Tensor | None = None, alpha: Scalar = 1.0, beta: Scalar = 0.0
    ) -> PermutePlan:
        """Plan and build what such a call will launch, checked as that call will; runs nothing.

        Returns the same plan, which describes itself as that call's.
        """
        return self._view(self._fitting(x, out, *self._scalars(alpha, beta, out)))

    def _scalars(self, alpha: Scalar, beta: Scalar, out: torch.Tensor | None) -> tuple[Scalar, Scalar]:
        scale = scaling_type(self._request.value, self.dtype)
        alpha, beta = checked_scalar("alpha", alpha, scale), checked_scalar("beta", beta, scale)
        if beta != 0 and out is None:
            raise ShapeError(f"beta={beta!r} adds to out, but no out is given")
        if (alpha != 1 or beta != 0) and torch.bool in (self._request.value, self.dtype):
            raise DTypeError(f"{dtype_name(self._request.value)} is not scaled or added into {dtype_name(self.dtype)}")
        return alpha, beta

    def _fitting(self, x: torch.Tensor, out: torch.Tensor | None, alpha: Scalar, beta: Scalar) -> Variant:
        """The variant for this call; it is checked first, so that no plan is made for what cannot run."""
        request = self._request
        check_operand("x", x, request.x, request.conjugate, request.device)
        if out is not None:
            check_out(out, self.shape, self.dtype, request.device, {"x": x}, None)
        added = beta != 0
        return self._variant((Layout.of(out) if out is not None else self._default, alpha != 1 or added, added))

    def _usual(self) -> Variant:
        return self._variant((self._default, False, False))

    def _build(self, key: tuple[Layout, bool, bool]) -> Variant:
        d, scaled, added = key
        permutation = self._request.permutation(d, scaled=scaled, added=added)
        return self._built(permutation, partial(permute_launcher, self._request))
