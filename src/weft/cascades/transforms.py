"""Cascades under transforms of `torch.func`: `vmap` adds a mode, `grad` takes the gradients by blocks.

A transformed call is a function of plain tensors at the bottom of the transforms. `vmap` maps over one more mode of the
operands that have it, of S and of every result that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from weft.base.arrays import grad_mode
from weft.base.dispatch import as_operation, is_traced
from weft.cascades.notation import CascadeNotation
from weft.errors import UnsupportedError
from weft.spec import Label

Terms = tuple[tuple[str, tuple[Label, ...]], ...]
#: The plan of a notation and of operands with such terms, for tensors A, B, C and operands in order.
Planning = Callable[[CascadeNotation, Terms, Sequence[Tensor]], Any]


@dataclass(frozen=True)
class TransformedCall:
    """A call without its tensors: labels, the terms of its operands by name, and how it is planned."""

    notation: CascadeNotation
    terms: Terms
    planned: Planning
    depth: int = 0

    @property
    def count(self) -> int:
        """How many of the tensors are A, B and C."""
        return len(self.notation.terms)

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        names = [name for name, _ in self.terms]
        plan = self.planned(self.notation, self.terms, tensors)
        if is_traced(tensors):
            return cast(tuple[Tensor, ...], as_operation("planned cascade")(plan, tensors))
        found = plan.run(tensors[: self.count], dict(zip(names, tensors[self.count :], strict=True)))
        return found if isinstance(found, tuple) else (found,)

    def with_mode(self, batches: Sequence[bool]) -> TransformedCall:
        """The call with one more mode, the first of these tensors and of S."""
        said, label = self.notation, f"vmap{self.depth}"
        pairs = zip(said.terms, batches, strict=False)
        a, b, *c = ((label, *term) if batched else term for term, batched in pairs)
        s = (label, *said.s)
        d = None if said.d is None else (label, *said.d)
        terms = tuple(
            (name, (label, *term) if batched else term)
            for (name, term), batched in zip(self.terms, batches[self.count :], strict=True)
        )
        notation = CascadeNotation(a, b, s, c[0] if c else None, d)
        return replace(self, notation=notation, terms=terms, depth=self.depth + 1)

    def widened(
        self, batches: list[bool], tensors: list[Tensor], size: int
    ) -> tuple[TransformedCall, list[Tensor], tuple[int | None, ...]]:
        """The call with one more mode, its tensors, and where each result has it; None for one that lacks it."""
        if not (batches[0] or batches[1]):  # S has the mode by one of its own operands
            batches[0], tensors[0] = True, tensors[0].expand(size, *tensors[0].shape)
        wider, label = self.with_mode(batches), f"vmap{self.depth}"
        plan = self.planned(wider.notation, wider.terms, tensors)
        outputs = plan.between.outputs[1:] if plan.meets else plan.between.outputs
        others = tuple(0 if label in plan.between.modes[node] else None for node in outputs)
        return wider, tensors, (0, *others) if plan.meets else others

    def gradient(self, count: int) -> GradientCall:
        """The call that makes the gradients of its `count` tensors."""
        return GradientCall(self, count)


@dataclass(frozen=True)
class GradientCall:
    """The gradients of a call's `count` tensors, of these and of results' gradients; zero for what is not floating."""

    call: TransformedCall
    count: int

    def __call__(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        leaves = [each.detach().requires_grad_(each.is_floating_point()) for each in given[: self.count]]
        with grad_mode(True):
            found = gradients_of(self.call(leaves), given[self.count :], leaves)
        return tuple(torch.zeros_like(each) if grad is None else grad for each, grad in zip(leaves, found, strict=True))

    def widened(
        self, batches: list[bool], tensors: list[Tensor], size: int
    ) -> tuple[GradientCall, list[Tensor], tuple[int | None, ...]]:
        """The call with one more mode, which all tensors and their gradients have."""
        pairs = zip(tensors, batches, strict=True)
        every = [each if batched else each.expand(size, *each.shape) for each, batched in pairs]
        wider, own, places = self.call.widened([True] * self.count, every[: self.count], size)
        grads = zip(every[self.count :], places, strict=True)
        moved = [*own, *(grad if at is not None else grad.sum(0) for grad, at in grads)]
        return replace(self, call=wider), moved, (0,) * self.count

    def gradient(self, count: int) -> NoReturn:
        """`UnsupportedError` for a second derivative."""
        raise UnsupportedError(
            "gradients of a cascade under torch.func have no gradients: take them by torch.autograd with create_graph"
        )


def gradients_of(
    results: Sequence[Tensor], grads: Sequence[Tensor | None], leaves: Sequence[Tensor | None], again: bool = False
) -> list[Tensor | None]:
    """The gradients of leaves that require one, None for others; `again`: which have gradients themselves."""
    each = zip(results, grads, strict=True)
    pairs = [(value, grad) for value, grad in each if grad is not None and value.requires_grad]
    wanted = [each for each in leaves if each is not None and each.requires_grad]
    if not pairs or not wanted:
        return [None] * len(leaves)
    values, given = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(values, wanted, given, create_graph=again, allow_unused=True))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def refuse_tangents() -> NoReturn:
    """`UnsupportedError` for forward mode."""
    raise UnsupportedError("a cascade has no forward mode: take gradients, or torch.func.jacrev")


def transformed(plan: Any, tensors: Sequence[Tensor], operands: Mapping[str, Tensor]) -> Any:
    """The results of a plan's call within transforms, which may ask for plans of the same function with more modes."""
    terms = tuple((name, modes) for name, (modes, _, _) in plan.said.operands.items())
    named = [operands[name] for name, _ in terms]
    found = Transformed.apply(TransformedCall(plan.notation, terms, plan.like), *tensors, *named)
    return found if plan.several else found[0]


class Transformed(torch.autograd.Function):
    """A call that `torch.func` transforms."""

    @staticmethod
    def forward(call: TransformedCall | GradientCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.call, *tensors = inputs
        if isinstance(ctx.call, TransformedCall):  # gradients have no second derivative
            ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(each for each in output if not each.is_floating_point()))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        found = Transformed.apply(ctx.call.gradient(len(tensors)), *tensors, *grads)
        pairs = zip(tensors, found, strict=True)
        return (None, *(grad if tensor.is_floating_point() else None for tensor, grad in pairs))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        ctx.call.gradient(0)  # has words of its own for gradients
        refuse_tangents()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: TransformedCall | GradientCall, *tensors: Tensor) -> Any:
        places = in_dims[1:]
        moved = [each if at is None else each.movedim(at, 0) for each, at in zip(tensors, places, strict=True)]
        wider, moved, found = call.widened([at is not None for at in places], moved, info.batch_size)
        return Transformed.apply(wider, *moved), found
