"""The rule of one contraction: how it is called where derivatives are requested, and what all rules have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache, partial, wraps
from typing import Any, Self, TypeVar

import torch
from torch._C._functorch import TransformType

from weft.algebra import NAMED, Algebra
from weft.api.entry import Words, contraction, words_of
from weft.autograd.backward import Needs, arithmetic
from weft.autograd.spec import FIRST_OPERAND, Spec, batched, is_smooth
from weft.autograd.steps import with_modes
from weft.base.batched import is_batched, one_by_one
from weft.base.caches import cached_property
from weft.engine.calls import CALLS, present
from weft.errors import UnsupportedError
from weft.fn import fingerprint
from weft.planner.options import Options
from weft.planner.schedule import Scalar

Tensors = Sequence[torch.Tensor | None]
Found = tuple[torch.Tensor | None, ...]


class Rule:
    """The differentiation of a contraction; of whole numbers or truth values, to which `vmap` adds modes, it is this.

    Tensors are A, B, C and the operands; C may be None.

    `needs` says which gradients may be requested, `ahead` whether tangents may be: then everything is saved.
    """

    def __init__(self, spec: Spec, needs: Needs, ahead: bool) -> None:
        self.spec, self.needs, self.ahead = spec, needs, ahead

    @property
    def called(self) -> Spec:
        """The contraction of the forward pass."""
        return self.spec

    @cached_property
    def options(self) -> Options:
        """Options of the forward call, but for operands and coordinates."""
        spec = self.called
        types = {} if spec.accumulate is torch.bool else arithmetic(spec)
        return replace(
            spec.how, out_dtype=spec.results if spec.several else spec.results[0], functions=spec.functions,
            algebra=spec.algebra, **types,
        )  # fmt: skip

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The results, and behind them what is kept."""
        spec, (a, b, c, *operands) = self.spec, tensors
        addend, words, found = None, self._words, None
        if c is not None:  # a dimension for each of D's
            addend = with_modes(c, spec.term_c or "", spec.term_d)
        if words is not None:
            beside = [each for (name, _), each in zip(spec.operands, operands, strict=True) if name in self._used]
            known, _ = CALLS.find(*present(words, a, b, addend, None, beside))
            found = None if known is None else known.run(a, b, addend, alpha, beta, None, beside)
        if found is None:
            found = contraction(spec.text, a, b, self.requested(tensors), addend, alpha, beta)
        return found if isinstance(found, tuple) else (found,)

    def requested(self, tensors: Tensors) -> Options:
        """The options of a forward call of these tensors."""
        return replace(self.options, **self.spec.aux(tensors, self._used))

    @cached_property
    def _used(self) -> frozenset[str]:
        """Names of the operands and coordinates that functions take."""
        return frozenset(name for names in self.spec.names for name in names)

    @cached_property
    def _words(self) -> Words | None:
        """The forward call, but for its tensors and factors."""
        return words_of(self.spec.text, self.requested((None,) * (FIRST_OPERAND + len(self.spec.operands))))

    def saved(self, tensors: Tensors, results: Sequence[torch.Tensor]) -> Tensors:
        """The tensors and results that backward needs, in the same places."""
        return ()

    def backward(self, alpha: Scalar, beta: Scalar, saved: Tensors, grads: Tensors, needs: Needs) -> Found:
        """A gradient for each tensor of which one is needed."""
        return (None,) * len(needs)

    def forward_mode(self, alpha: Scalar, beta: Scalar, saved: Tensors, tangents: Tensors) -> Found:
        """A tangent for each result, None for one that does not move."""
        return (None,) * len(self.spec.results)

    def batched(self, tensors: Tensors, batches: Sequence[bool], size: int) -> tuple[Rule, Tensors]:
        """The rule with one more batch mode, the first of these tensors; every result has it first."""
        spec, arguments = batched(self.spec, tensors, batches, size)
        return self.of(spec, arguments), arguments

    def of(self, spec: Spec, tensors: Tensors) -> Self:
        """The rule of this kind of another contraction."""
        return type(self)(spec, self.needs, self.ahead)


class Bare(Rule, ABC):
    """The rule of a contraction of an algebra without functions and C."""

    def saved(self, tensors: Tensors, results: Sequence[torch.Tensor]) -> Tensors:
        return (*tensors[:2], *results)

    def backward(self, alpha: Scalar, beta: Scalar, saved: Tensors, grads: Tensors, needs: Needs) -> Found:
        if grads[0] is None:
            return (None,) * len(needs)
        return (*self.pulled(grads[0], saved, needs), *(None,) * (len(needs) - 2))

    def forward_mode(self, alpha: Scalar, beta: Scalar, saved: Tensors, tangents: Tensors) -> Found:
        return (self.pushed(saved, tangents[:2]),)

    @abstractmethod
    def pulled(self, grad: torch.Tensor, saved: Sequence[Any], needs: Needs) -> Found:
        """The gradients of A and of B, of that of D."""

    @abstractmethod
    def pushed(self, saved: Sequence[Any], tangents: Tensors) -> torch.Tensor:
        """The tangent of D, of those of A and of B."""


_Made = TypeVar("_Made")


def kept_for_algebra(make: Callable[..., _Made]) -> Callable[..., _Made]:
    """`make`, whose first arguments are an algebra and the type of its values, called once for the same."""

    @lru_cache(maxsize=256)
    def known(_now: Hashable, *arguments: Any) -> _Made:
        return make(*arguments)

    @wraps(make)
    def kept(algebra: Algebra, dtype: torch.dtype, *others: Any) -> _Made:
        return known(_now(algebra, dtype), algebra, dtype, *others)

    return kept


def _now(algebra: Algebra, dtype: torch.dtype) -> Hashable:
    """A key of what an algebra computes as its functions are now; no two are equal where that cannot be known."""
    if algebra is NAMED.get(algebra.name):  # one of weft's own, which stays as it is
        return None
    vjp = algebra.vjp
    return algebra.traced(dtype), None if vjp is None else fingerprint(vjp) or object()


class Differentiated(torch.autograd.Function):
    """The call of a rule. Outputs are a tuple; those that hold no numbers with derivatives have none."""

    @staticmethod
    def forward(rule: Rule, alpha: Scalar, beta: Scalar, *tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        return rule.forward(alpha, beta, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what the derivatives of a call take."""
        rule, ctx.alpha, ctx.beta, *tensors = inputs
        ctx.rule = rule
        ctx.set_materialize_grads(False)
        saved = rule.saved(tensors, output)
        ctx.save_for_backward(*saved)
        if rule.ahead:
            ctx.save_for_forward(*saved)
            ctx.zeros = [_zeros_like(each) for each in output]
        if whole := [each for each in output if not is_smooth(each.dtype)]:
            ctx.mark_non_differentiable(*whole)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        for each in grads:  # here, as calling one function less takes less
            if each is not None and is_batched(each):
                return one_by_one(Differentiated.backward, ctx, grads)
        found = ctx.rule.backward(ctx.alpha, ctx.beta, ctx.saved_tensors, grads, ctx.needs_input_grad[3:])
        return (None, None, None, *found)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        found = ctx.rule.forward_mode(ctx.alpha, ctx.beta, ctx.saved_tensors, tangents[3:])
        return tuple([make() if each is None else each for each, make in zip(found, ctx.zeros, strict=True)])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        rule, alpha, beta, *tensors = inputs
        places = in_dims[3:]
        moved = [
            tensor if at is None or tensor is None else tensor.movedim(at, 0)
            for tensor, at in zip(tensors, places, strict=True)
        ]
        wider, arguments = rule.batched(moved, [at is not None for at in places], info.batch_size)
        found = apply(wider, alpha, beta, arguments)
        return found, (0,) * len(found)


def _zeros_like(result: torch.Tensor) -> Callable[[], torch.Tensor | None]:
    """The maker of the tangent of a result that does not move: torch wants one of each but whole numbers."""
    if not is_smooth(result.dtype):
        return lambda: None
    return partial(torch.zeros, tuple(result.shape), dtype=result.dtype, device=result.device)


#: `Function.apply` without torch.func, straight to torch's C++: binding arguments by name costs more than the call.
_plainly: Any = super(torch.autograd.Function, Differentiated).apply
_transforming: Any = torch._C._are_functorch_transforms_active


def apply(rule: Rule, alpha: Scalar, beta: Scalar, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """Call a rule on tensors that autograd may look at."""
    if _transforming():
        if torch._C._functorch.peek_interpreter_stack().key() == TransformType.Functionalize:
            raise UnsupportedError("torch.func.functionalize does not take weft's calls: make_fx and torch.compile do")
        found: tuple[torch.Tensor, ...] = Differentiated.apply(rule, alpha, beta, *tensors)
        return found
    result: tuple[torch.Tensor, ...] = _plainly(rule, alpha, beta, *tensors)
    return result
