"""Rules of contractions as one `torch.autograd.Function`: reverse and forward mode, and vmap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._C._functorch import TransformType

from weft.autograd.rule import Rule, Tensors
from weft.autograd.spec import is_smooth
from weft.base.batched import is_batched, one_by_one
from weft.errors import UnsupportedError
from weft.planner.schedule import Scalar


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
