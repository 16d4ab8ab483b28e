"""Derivatives of groups: the gradients of all A's are one group, those of all B's another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch.autograd import forward_ad

from weft.api.entry import contraction
from weft.base.arrays import is_transforming
from weft.base.batched import each_of_batch
from weft.groups.one_by_one import one_by_one
from weft.planner.options import Options
from weft.spec import Notation
from weft.spec.notation import Term, new_label

USUAL = Options(specialize="auto")
Run = Callable[..., Sequence[torch.Tensor]]
Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def with_gradient(
    run: Run, notation: Notation, operands: Sequence[torch.Tensor], options: Options
) -> list[torch.Tensor]:
    """The results of a group whose operands, a, b of each pair in turn, require gradients or stand for others.

    Of a plain product the gradients are groups themselves: of A that of ``D, conj(B) -> A``. With functions, modes that
    one operand alone has, diagonals or broadcast extents, the pairs are contracted one by one, and differentiated so.
    """
    a, b = operands[::2], operands[1::2]
    if options == USUAL and _plain(notation, a, b):
        return list(_apply(run, notation, *a, *b))
    return one_by_one(notation, operands, options)


def _plain(notation: Notation, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    first, second = notation.inputs
    if any(len(set(term)) < len(term) for term in (first, second)):
        return False
    if set(first) - {*second, *notation.output} or set(second) - {*first, *notation.output}:
        return False
    shared = [(first.index(label), second.index(label)) for label in first if label in second]
    every = (first, a), (second, b)
    if any(one.dtype != a[0].dtype or one.dim() != len(term) for term, side in every for one in side):
        return False
    return all(x.shape[i] == y.shape[j] for x, y in zip(a, b, strict=True) for i, j in shared)


class _Grouped(torch.autograd.Function):
    """A group of plain products: all A's, then all B's."""

    @staticmethod
    def forward(run: Run, notation: Notation, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = run(notation, [*chain.from_iterable(_pairs(tensors))])
        # Tangents of views, as results of one launch are, would have to lie as they do within all.
        return tuple(found) if forward_ad._current_level < 0 else tuple([each.clone() for each in found])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.run, ctx.notation, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        if not is_transforming() and forward_ad._current_level < 0:
            needs = zip(ctx.needs_input_grad[2 : 2 + len(output)], ctx.needs_input_grad[2 + len(output) :], strict=True)
            alone = [one for one, need in zip(output, needs, strict=True) if not any(need)]
            ctx.mark_non_differentiable(*alone)  # of pairs that need no gradient

    @staticmethod
    @each_of_batch
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        tensors, count = ctx.saved_tensors, len(grads)
        (first, second), output = ctx.notation.inputs, ctx.notation.output
        found: list[torch.Tensor | None] = [None] * len(tensors)
        for side, (own, other) in enumerate(((first, second), (second, first))):
            places = range(side * count, (side + 1) * count)
            wanted = [at for at in places if ctx.needs_input_grad[2 + at] and grads[at % count] is not None]
            beside = [tensors[(at + count) % len(tensors)].conj() for at in wanted]
            pairs = [one for at, each in zip(wanted, beside, strict=True) for one in (grads[at % count], each)]
            for at, grad in zip(wanted, ctx.run(Notation((output, other), own), pairs) if pairs else (), strict=True):
                found[at] = grad
        return None, None, *found

    @staticmethod
    def jvp(ctx: Any, _run: None, _notation: None, *tangents: torch.Tensor | None) -> Any:
        """By the product rule: the group of A's tangents with B, and that of A with B's tangents."""
        tensors, half = ctx.saved_tensors, len(tangents) // 2
        totals: list[torch.Tensor | None] = [None] * half
        for side in range(2):
            moved = [at for at in range(half) if tangents[side * half + at] is not None]
            lists = (tangents, tensors[half:]) if side == 0 else (tensors, tangents[half:])
            both = [each[at] for at in moved for each in lists]
            for at, one in zip(moved, ctx.run(ctx.notation, both) if both else (), strict=True):
                before = totals[at]
                totals[at] = one if before is None else before + one
        return tuple(totals)

    @staticmethod
    def vmap(info: Any, in_dims: Any, run: Run, notation: Notation, *tensors: torch.Tensor) -> Any:
        """A batch mode for every pair; operands that are not mapped are expanded along it where others are."""
        dims, half = in_dims[2:], len(tensors) // 2
        every = new_label(notation)
        terms: list[Term] = []
        moved: list[torch.Tensor] = []
        for side, term in enumerate(notation.inputs):
            own = range(side * half, (side + 1) * half)
            mapped = any(dims[at] is not None for at in own)
            terms.append((every, *term) if mapped else term)
            moved.extend(_first(tensors[at], dims[at], info.batch_size) if mapped else tensors[at] for at in own)
        widened = Notation((terms[0], terms[1]), (every, *notation.output))
        if _plain(widened, moved[:half], moved[half:]):
            return _Grouped.apply(run, widened, *moved), (0,) * half
        whole = (*widened.inputs, widened.output)
        return tuple(contraction(whole, x, y) for x, y in _pairs(moved)), (0,) * half


_plainly: Any = super(torch.autograd.Function, _Grouped).apply  # as in `weft.autograd.function`


def _apply(*arguments: Any) -> Any:
    return _Grouped.apply(*arguments) if is_transforming() else _plainly(*arguments)


def _first(tensor: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    """The mapped dimension as the first one."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _pairs(tensors: Sequence[torch.Tensor]) -> Pairs:
    half = len(tensors) // 2
    return list(zip(tensors[:half], tensors[half:], strict=True))
