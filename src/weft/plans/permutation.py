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
from weft.base.dispatch import as_operation, is_dynamo_compiling, outside_graphs
from weft.base.memory import new_tensor
from weft.engine.ways import Arguments, aside
from weft.errors import DTypeError, UnsupportedError, call_context
from weft.oracle.reference import permute_launcher
from weft.planner.request import Request
from weft.planner.schedule import NewTensor, Scalar
from weft.plans.base import PlanBase, Variant
from weft.plans.checks import aligned_as, check_addend, check_operand, check_out, checked_factors
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
            call = Arguments(as_tensor("x", x, promote).resolve_neg(), None, addend, target, alpha, beta)
            result, found = aside("permute_plan_call", self, call) or self.run_known(call)
        self._calls.keep(place, tensors, found)
        return out if out is not None else like(x, result)

    def text_of_call(self, fn: Any) -> Any:
        """The text that describes a call to its operation: see `weft.compiled`. Dynamo takes it for a constant."""
        return as_operation("text of a permutation plan's call")(self, fn)

    text_of_call._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result

    @outside_graphs
    def bind(
        self, x: Any, out: Any = None, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None
    ) -> BoundCall:
        """The plan's call on these very tensors, as a callable without arguments that launches and does nothing else.

        As `weft.Plan.bind`; a `c` that is not `out` has the result's shape, strides and alignment.
        """
        with call_context(lambda: describe_call("plan.bind", self._request.text, x=x, c=c, out=out)):
            plan = self._current
            c, beta = addition(c, beta, out)
            source, addend = held("x", x, conjugate=True), None if c is None else held("c", c)
            target: Any = plan._places() if out is None else held("out", as_result(out))
            call = plan._checked(Arguments(source, None, addend, target, alpha, beta))
            plan._key(call)
            if call.c is not None and not _is_alike(target, call.c):
                raise UnsupportedError(
                    "c lies otherwise than the result: each call copies it, which a bound call does not"
                )
            return plan._bound(call, out if out is not None else like(x, target))

    def _checked(self, call: Arguments) -> Arguments:
        value, c = self._request.arithmetic.accumulate, call.c
        alpha, beta = checked_factors(call.alpha, call.beta, scaling_type(value, self.dtype), c is not None)
        beta = beta if c is not None else type(beta)(0)
        if (alpha != 1 or beta != 0) and torch.bool in (value, self.dtype):
            raise DTypeError(f"{dtype_name(value)} is not scaled or added into {dtype_name(self.dtype)}")
        if c is not None:
            check_addend(c, self.shape, self.dtype, self._request.device)
            if c.dtype != self.dtype:
                raise DTypeError(f"c is {dtype_name(c.dtype)}, the result is {dtype_name(self.dtype)}")
            c = c.resolve_conj().resolve_neg() if beta != 0 else None
        return call._replace(c=c, alpha=alpha, beta=beta)

    def _without_products(self, call: Arguments) -> torch.Tensor:
        """The addend alone."""
        out: Any = new_tensor(self.shape, self.dtype, call.a.device) if call.out is None else call.out
        if call.c is None:
            found: torch.Tensor = out.zero_()
            return found
        added = call.c.to(scaling_type(self._request.arithmetic.accumulate, self.dtype)) * call.beta
        copied: torch.Tensor = out.copy_(added)
        return copied

    def _passed(self, variant: Variant, call: Arguments) -> tuple[Any, ...]:
        out: Any = call.out
        x, addend = call.a, None if call.c is None else _addend(out, call.c)
        return x.conj() if x.is_conj() else x, addend, out, call.alpha, call.beta

    def _known_call(self, variant: Variant, call: Arguments, result: torch.Tensor) -> KnownCall | None:
        """The known call of a plain one."""
        if call.alpha != 1 or call.c is not None or not self.is_lasting or not result.numel():
            return None
        if any(each.is_conj() or each.is_neg() for each in (call.a, result)):
            return None
        _, _, _, _, alpha, beta, _ = self._checked(call)

        def launch(x: torch.Tensor, y: Any, c: Any, d: torch.Tensor, *factors: Scalar) -> None:
            variant.launch(x, None, d, alpha, beta)

        new = NewTensor(self.shape, self._default.strides, self.dtype, self._request.device)
        reaches = reach(result), reach(call.a), reach(call.a)
        return KnownCall(launch, float, new, reaches, variant=variant)

    def _key(self, call: Arguments) -> _Key:
        request, out = self._request, call.out
        check_operand("x", call.a, request.a, request.conjugate[0], request.device)
        layout = self._default
        if isinstance(out, torch.Tensor):
            check_out(out, self.shape, self.dtype, request.device, {"x": call.a}, call.c)
            layout = Layout.of(out)
        added = call.beta != 0
        return layout, call.alpha != 1 or added, added, aligned_as((call.a,), (request.a,))

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
