"""Derivatives of groups: the gradients of all A's are one group, those of all B's another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.api.contract import contract
from weft.spec import Notation

Run = Callable[..., Sequence[torch.Tensor]]


def with_gradient(
    run: Run, notation: Notation, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], keywords: dict[str, Any]
) -> list[torch.Tensor]:
    """The results of a group whose operands require gradients.

    Of a plain product the gradients are groups themselves: of A that of ``D, conj(B) -> A``. With functions, modes that
    one operand alone has, diagonals or broadcast extents, the pairs are contracted one by one, and differentiated so.
    """
    if _plain(notation, a, b, keywords):
        return list(_Grouped.apply(run, notation, len(a), *a, *b))
    terms = (*notation.inputs, notation.output)
    return [contract(terms, x, y, **keywords) for x, y in zip(a, b, strict=True)]


def _plain(
    notation: Notation, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], keywords: dict[str, Any]
) -> bool:
    if keywords:
        return False
    first, second = notation.inputs
    if any(len(set(term)) < len(term) for term in (first, second)):
        return False
    if set(first) - {*second, *notation.output} or set(second) - {*first, *notation.output}:
        return False
    shared = [(first.index(label), second.index(label)) for label in first if label in second]
    return a[0].dtype == b[0].dtype and all(
        x.shape[i] == y.shape[j] for x, y in zip(a, b, strict=True) for i, j in shared
    )


class _Grouped(torch.autograd.Function):
    """A group of plain products."""

    @staticmethod
    def forward(ctx: Any, run: Run, notation: Notation, count: int, *tensors: torch.Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        ctx.run, ctx.notation, ctx.count = run, notation, count
        terms = (*notation.inputs, notation.output)
        return tuple(run(terms, list(zip(tensors[:count], tensors[count:], strict=True))))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        tensors, count = ctx.saved_tensors, ctx.count
        (first, second), output = ctx.notation.inputs, ctx.notation.output
        found: list[torch.Tensor | None] = [None] * len(tensors)
        for side, (own, other) in enumerate(((first, second), (second, first))):
            wanted = [
                at for at in range(count) if ctx.needs_input_grad[3 + side * count + at] and grads[at] is not None
            ]
            if not wanted:
                continue
            beside = [tensors[(1 - side) * count + at].conj() for at in wanted]
            pairs = [(grads[at], one) for at, one in zip(wanted, beside, strict=True)]
            for at, grad in zip(wanted, ctx.run((output, other, own), pairs), strict=True):
                found[side * count + at] = grad
        return None, None, None, *found
