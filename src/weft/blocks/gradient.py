"""Derivatives of contractions of blocks: the gradient of either operand is such a contraction, in one launch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from weft.api.permute import permute
from weft.base.batched import each_of_batch
from weft.blocks.plan import BlockPlan, block_by_block
from weft.plans.keywords import read_options

FUNCTIONS = ("a_fn", "b_fn", "epilogue")
_WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def with_gradient(plan: BlockPlan, x: torch.Tensor, y: torch.Tensor, keywords: dict[str, Any]) -> torch.Tensor:
    """D's buffer, where gradients are asked for of those of A and B, or others stand for them.

    `plan` is that of the products alone, and of a backend. Functions are passes over the buffers, which hold nothing
    but blocks. What sums in another type than it stores, modes of one operand alone, and an epilogue of blocks of
    which some stay zero, are contracted pair by pair, and differentiated so.
    """
    products = plan.products
    alike = x.dtype == y.dtype and (x.dtype in _WIDE or not keywords)
    partly = "epilogue" in keywords and len(products.pairs) < len(products.d.stored)
    by_pairs = products.has_lone_modes or products.has_symmetries or partly
    if by_pairs or not alike or set(keywords) - set(FUNCTIONS):
        return block_by_block(products, read_options("blocks.contract", plan.keywords | keywords), x, y)
    first, second, last = (keywords.get(name) for name in FUNCTIONS)
    left = x if first is None else permute(x, "i->i", fn=first)
    right = y if second is None else permute(y, "i->i", fn=second)
    made: torch.Tensor = _Product.apply(plan, left, right)
    return made if last is None else permute(made, "i->i", fn=last)


class _Product(torch.autograd.Function):
    """A sum of products of blocks, from buffers to a buffer."""

    @staticmethod
    def forward(plan: BlockPlan, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return plan(x, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.plan, *buffers = inputs
        ctx.save_for_backward(*buffers)
        ctx.save_for_forward(*buffers)

    @staticmethod
    @each_of_batch
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        buffers, found = ctx.saved_tensors, []
        for side in range(2):
            wanted = ctx.needs_input_grad[1 + side]
            other = buffers[1 - side].conj()
            found.append(_Product.apply(ctx.plan.derivative(side, grad, other), grad, other) if wanted else None)
        return None, *found

    @staticmethod
    def jvp(ctx: Any, _plan: None, dx: torch.Tensor | None, dy: torch.Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        pairs = [(one, other) for one, other in ((dx, y), (x, dy)) if one is not None and other is not None]
        parts = [_Product.apply(ctx.plan, *pair) for pair in pairs]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    @staticmethod
    def vmap(info: Any, in_dims: Any, plan: BlockPlan, x: torch.Tensor, y: torch.Tensor) -> Any:
        """Block by block, each with a batch mode."""
        return torch.func.vmap(partial(block_by_block, plan.products, plan.options), in_dims[1:])(x, y), 0
