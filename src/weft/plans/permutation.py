"""A `PermutePlan`: a permutation bound to the way it is carried out, to run again and again on new pointers.

A plan is made for the layout of X. The result may have another layout in each call, be scaled or be added to; each
combination is one variant, planned and built when it first appears.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack, overload

import torch

from weft.base.arguments import addition, describe_call
from weft.base.arrays import Array, as_result, as_tensor, like
from weft.base.dispatch import as_operation, is_dynamo_compiling, is_traced, outside_graphs
from weft.base.memory import new_tensor
from weft.errors import DTypeError, UnsupportedError, call_context
from weft.oracle.permuting import permute_launcher
from weft.planner.request import Request
from weft.planner.schedule import NewTensor, Scalar
from weft.plans.base import PlanBase, Variant
from weft.plans.checks import aligned_as, check_addend, check_operand, check_out, checked_factors
from weft.plans.derivatives import any_tensor, asked, differentiable
from weft.plans.keywords import FactorKeywords, refuse_unknown
from weft.plans.known_call import BoundCall, KnownCall, held
from weft.spec import Layout
from weft.spec.dtypes import dtype_name
from weft.spec.memory import reach, same_memory
from weft.spec.permutation import Permutation, scaling_type

_Key = tuple[Layout, bool, bool, tuple[int, ...]]  # of a variant: D's layout, whether scaled, added to; alignments


CALLS_KNOWN = 16  # of one plan


class PermutePlan(PlanBase):
    """A permutation, planned once; calling it runs it on new tensors of the same shape, strides and type.

    Made by `weft.plan_permute`. `plan(x, *, c=None, alpha=1.0, beta=None, out=None)` returns the result, which is `out`
    when that is given; the arguments mean what they mean for `weft.permute`. `explain()` says what was chosen and why.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request, CALLS_KNOWN)
        self._default = Layout.contiguous(self.shape, self.dtype)
        self._usual = (self._default, False, False, ())

    @property
    def permutation(self) -> Permutation:
        """The canonical permutation this plan was made for."""
        found: Permutation = self._first().description
        return found

    @overload
    def __call__(self, x: Array, **keywords: Unpack[FactorKeywords]) -> Array: ...
    @overload
    def __call__(self, x: Any, **keywords: Unpack[FactorKeywords]) -> Any: ...
    def __call__(
        self, x: Any, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None, out: Any = None,
        **unknown: Any,
    ) -> Any:
        """Run on `x`, which has the planned layout; returns the result in the kind of array that `x` is.

        Raises `ShapeError` or `DTypeError` when a tensor does not fit the plan; then nothing is written.
        """
        if is_dynamo_compiling():
            return as_operation("permutation plan")(self, x, c, alpha, beta, out)
        if self._watched is not None and (plan := self._current) is not self:
            return plan(x, c=c, alpha=alpha, beta=beta, out=out, **unknown)
        plain = c is None and beta is None and type(alpha) is float and alpha == 1.0 and not unknown
        c, beta = addition(c, beta, out)
        tensors = (x,) if out is None else (x, out)
        known, place = self._calls.find(len(tensors), tensors) if plain else (None, None)
        if known is not None and (found := known.run(x, x, out=out)) is not None:
            return found
        with call_context(lambda: describe_call("plan", self._request.text, x=x, c=c, out=out)):
            if unknown:
                refuse_unknown("a permutation plan's call", unknown)
            target, promote = as_result(out) if out is not None else None, self._request.promote
            addend = None if c is None else target if c is out else as_tensor("c", c, promote)
            source = as_tensor("x", x, promote)
            factors = any_tensor(alpha, beta)
            if is_traced((source, addend, target)) and not factors:
                return as_operation("traced permutation plan")(self, source, addend, alpha, beta, target)
            if asked(source, addend) or factors:
                result = differentiable("permute_plan_call")(self, source, addend, alpha, beta, target)
                return out if out is not None else like(x, result)
            result, found = self.run_known(source.resolve_neg(), target, alpha, beta, addend)
        self._calls.keep(place, tensors, found)
        return out if out is not None else like(x, result)

    def text_of_call(self, fn: Any) -> Any:
        """The text that describes a call to its operation: see `weft.compiled`. Dynamo takes it for a constant."""
        return as_operation("text of a permutation plan's call")(self, fn)

    text_of_call._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result

    def run(
        self, x: torch.Tensor, out: torch.Tensor | None, alpha: Scalar, beta: Scalar, c: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The call on torch tensors: check what can differ, find the variant, launch."""
        return self.run_known(x, out, alpha, beta, c)[0]

    def run_known(
        self, x: torch.Tensor, out: torch.Tensor | None, alpha: Scalar, beta: Scalar, c: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, KnownCall | None]:
        """The result of a call, and the known call of those like it that scale and add nothing; None where each is
        read."""
        alpha, beta = self._scalars(alpha, beta, c)
        if c is not None and beta != 0:
            c = c.resolve_conj().resolve_neg()
        variant = self._variant(self._key(x, out, alpha, beta, c))
        if alpha == 0:
            return self._without_x(x, out, beta, c), None
        plain = alpha == 1 and c is None and self.is_lasting

        def arguments(out: torch.Tensor) -> tuple[Any, ...]:
            # A launch sees memory as it is stored: conjugation is in the description, not in the tensor's bit.
            addend = _addend(out, c) if beta != 0 and c is not None else None
            return x.conj() if x.is_conj() else x, addend, out, alpha, beta

        result = self._launched(variant, out, arguments)
        return result, self._known_call(variant, x, result, alpha, beta) if plain else None

    @outside_graphs
    def bind(
        self, x: Any, out: Any = None, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None
    ) -> BoundCall:
        """The plan's call on these very tensors, as a callable without arguments that launches and does nothing else.

        As `weft.Plan.bind`; a `c` that is not `out` has the result's shape, strides and alignment.
        """
        with call_context(lambda: describe_call("plan.bind", self._request.text, x=x, c=c, out=out)):
            plan = self._current
            return plan._bound(x, c, alpha, beta, out)

    def _bound(self, x: Any, c: Any, alpha: Any, beta: Any, out: Any) -> BoundCall:
        c, beta = addition(c, beta, out)
        source, addend = held("x", x, conjugate=True), None if c is None else held("c", c)
        target: Any = self._places() if out is None else held("out", as_result(out))
        alpha, beta = self._scalars(alpha, beta, addend)
        variant = self._variant(self._key(source, target, alpha, beta, addend))
        addend = None if beta == 0 else addend
        if addend is not None and not _is_alike(target, addend):
            raise UnsupportedError("c lies otherwise than the result: each call copies it, which a bound call does not")
        launch: Any = variant.launch
        arguments: tuple[Any, ...] = (source.conj() if source.is_conj() else source, addend, target, alpha, beta)
        if alpha == 0 or not target.numel():
            launch, arguments = self.run, (source, target, alpha, beta, addend)
        return BoundCall(self._request.text, launch, arguments, out if out is not None else like(x, target))

    def _without_x(
        self, x: torch.Tensor, out: torch.Tensor | None, beta: Scalar, c: torch.Tensor | None
    ) -> torch.Tensor:
        """A call whose `alpha` is 0: what is added is all there is, and `x` is checked and not read."""
        if out is None:
            out = new_tensor(self.shape, self.dtype, x.device)
        if c is None or beta == 0:
            return out.zero_()
        return out.copy_(c.to(scaling_type(self._request.arithmetic.accumulate, self.dtype)) * beta)

    def prepare(
        self,
        x: torch.Tensor,
        out: torch.Tensor | None = None,
        alpha: Scalar = 1.0,
        beta: Scalar = 1.0,
        c: torch.Tensor | None = None,
    ) -> PermutePlan:
        """Plan and build what such a call will launch, checked as that call will; runs nothing.

        Returns the same plan, which describes itself as that call's.
        """
        return self._view(self._key(x, out, *self._scalars(alpha, beta, c), c))

    def _known_call(
        self, variant: Variant, x: torch.Tensor, result: torch.Tensor, alpha: Scalar, beta: Scalar
    ) -> KnownCall | None:
        """The known call of a plain one that a variant has run; None where each is read."""
        if not result.numel() or any(each.is_conj() or each.is_neg() for each in (x, result)):
            return None

        def launch(x: torch.Tensor, y: Any, c: Any, d: torch.Tensor, *factors: Scalar) -> None:
            variant.launch(x, None, d, alpha, beta)

        new = NewTensor(self.shape, self._default.strides, self.dtype, self._request.device)
        reaches = reach(result), reach(x), reach(x)
        return KnownCall(launch, float, new, reaches, variant=variant)

    def _scalars(self, alpha: Scalar, beta: Scalar, c: torch.Tensor | None) -> tuple[Scalar, Scalar]:
        """The factors as plain numbers; beta is 0 where nothing is added."""
        value = self._request.arithmetic.accumulate
        scale = scaling_type(value, self.dtype)
        alpha, beta = checked_factors(alpha, beta, scale, c is not None)
        beta = beta if c is not None else type(beta)(0)
        if (alpha != 1 or beta != 0) and torch.bool in (value, self.dtype):
            raise DTypeError(f"{dtype_name(value)} is not scaled or added into {dtype_name(self.dtype)}")
        return alpha, beta

    def _key(
        self, x: torch.Tensor, out: torch.Tensor | None, alpha: Scalar, beta: Scalar, c: torch.Tensor | None
    ) -> _Key:
        """The key of this call's variant; the call is checked first, so that no plan is made for what cannot run."""
        request = self._request
        check_operand("x", x, request.a, request.conjugate[0], request.device)
        if out is not None:
            check_out(out, self.shape, self.dtype, request.device, {"x": x}, c)
        if c is not None:
            check_addend(c, self.shape, self.dtype, request.device)
            if c.dtype != self.dtype:
                raise DTypeError(f"c is {dtype_name(c.dtype)}, the result is {dtype_name(self.dtype)}")
        added = beta != 0
        aligned = aligned_as((x,), (request.a,))
        layout = Layout.of(out) if out is not None else self._default
        return layout, alpha != 1 or added, added, aligned

    def _build(self, key: _Key) -> Variant:
        d, scaled, added, aligned = key
        request = self._request
        if aligned:
            request = request.aligned((*aligned, request.b.alignment), ())
        permutation = request.permutation(d, scaled=scaled, added=added)
        return self._built(permutation, partial(permute_launcher, request))


def _addend(out: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The addend in D's layout, as kernels read it: `c` where it has that layout, else `out` with a copy of `c`."""
    if same_memory(out, c):
        return out
    return c if _is_alike(out, c) else out.copy_(c.expand(out.shape))


def _is_alike(out: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether an addend lies as D does."""
    same = c.shape == out.shape and c.stride() == out.stride()
    return same and Layout.of(c).alignment >= Layout.of(out).alignment
