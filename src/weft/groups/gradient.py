"""Derivatives of products of pairs, which are such products: the gradients of all A's, and those of all B's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from weft.autograd.spec import mapped_first
from weft.base.arrays import is_transforming
from weft.base.batched import each_of_batch
from weft.groups.launch import one_by_one
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
        return list(differentiated(GroupProducts(run, notation), (*a, *b)))
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


class _Bilinear(torch.autograd.Function):
    """Products of pairs: all A's, then all B's. `products` has the methods of `GroupProducts`: it makes them, and those
    that their derivatives are."""

    @staticmethod
    def forward(products: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return products.made(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.products, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        if not is_transforming() and forward_ad._current_level < 0:
            needs = zip(ctx.needs_input_grad[1 : 1 + len(output)], ctx.needs_input_grad[1 + len(output) :], strict=True)
            alone = [one for one, need in zip(output, needs, strict=True) if not any(need)]
            ctx.mark_non_differentiable(*alone)  # of pairs that need no gradient

    @staticmethod
    @each_of_batch
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        tensors, count = ctx.saved_tensors, len(grads)
        found: list[torch.Tensor | None] = [None] * len(tensors)
        for side in range(2):
            places = range(side * count, (side + 1) * count)
            wanted = [at for at in places if ctx.needs_input_grad[1 + at] and grads[at % count] is not None]
            pairs = [(grads[at % count], tensors[(at + count) % len(tensors)].conj()) for at in wanted]
            for at, grad in zip(wanted, ctx.products.pulled(side, pairs) if pairs else (), strict=True):
                found[at] = grad
        return None, *found

    @staticmethod
    def jvp(ctx: Any, _products: None, *tangents: torch.Tensor | None) -> Any:
        """By the product rule: A's tangents with B, and A with B's tangents."""
        tensors, half = ctx.saved_tensors, len(tangents) // 2
        totals: list[torch.Tensor | None] = [None] * half
        for side in range(2):
            moved = [at for at in range(half) if tangents[side * half + at] is not None]
            a, b = (tangents, tensors[half:]) if side == 0 else (tensors, tangents[half:])
            both = [(a[at], b[at]) for at in moved]
            for at, one in zip(moved, ctx.products.pushed(both) if both else (), strict=True):
                before = totals[at]
                totals[at] = one if before is None else before + one
        return tuple(totals)

    @staticmethod
    def vmap(info: Any, in_dims: Any, products: Any, *tensors: torch.Tensor) -> Any:
        found = products.mapped(info.batch_size, in_dims[1:], tensors)
        return tuple(found), (0,) * len(found)


_plainly: Any = super(torch.autograd.Function, _Bilinear).apply  # as in `weft.autograd.rule`


def differentiated(products: Any, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The products of all A's and all B's, differentiable."""
    apply = _Bilinear.apply if is_transforming() else _plainly
    found: tuple[torch.Tensor, ...] = apply(products, *tensors)
    return found


class GroupProducts(NamedTuple):
    """A group of plain products, by what runs groups."""

    run: Run
    notation: Notation

    def made(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The products of all A's and all B's, which come one after the other."""
        found = self.pushed(_pairs(tensors))
        # Tangents of views, as results of one launch are, would have to lie as they do within all.
        return tuple(found) if forward_ad._current_level < 0 else tuple([each.clone() for each in found])

    def pulled(self, side: int, pairs: Pairs) -> Sequence[torch.Tensor]:
        """The gradients of A's or of B's, of those of the products and the other operands: a group, too."""
        terms, output = self.notation.inputs, self.notation.output
        return self.run(Notation((output, terms[1 - side]), terms[side]), [*chain.from_iterable(pairs)])

    def pushed(self, pairs: Pairs) -> Sequence[torch.Tensor]:
        """The products of other pairs, differentiable."""
        return self.run(self.notation, [*chain.from_iterable(pairs)])

    def mapped(self, size: int, dims: Sequence[int | None], tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """A batch mode for every pair; operands that are not mapped are expanded along it where others are."""
        half, every = len(tensors) // 2, new_label(self.notation)
        terms: list[Term] = []
        moved: list[Any] = []
        for side, term in enumerate(self.notation.inputs):
            own = range(side * half, (side + 1) * half)
            mapped = any(dims[at] is not None for at in own)
            terms.append((every, *term) if mapped else term)
            moved.extend(mapped_first(tensors[at], dims[at], size) if mapped else tensors[at] for at in own)
        widened = Notation((terms[0], terms[1]), (every, *self.notation.output))
        if _plain(widened, moved[:half], moved[half:]):
            return differentiated(self._replace(notation=widened), moved)
        return one_by_one(widened, [*chain.from_iterable(_pairs(moved))], USUAL)


def _pairs(tensors: Sequence[torch.Tensor]) -> Pairs:
    half = len(tensors) // 2
    return list(zip(tensors[:half], tensors[half:], strict=True))
