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
        return 2 if self.notation.c is None else 3

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
        a, b, *c = (
            (label, *term) if batched else term
            for term, batched in zip((said.a, said.b, said.c), batches, strict=False) if term is not None
        )  # fmt: skip
        s = (label, *said.s)
        d = None if said.d is None else (label, *said.d)
        terms = tuple(
            (name, (label, *term) if batched else term)
            for (name, term), batched in zip(self.terms, batches[self.count :], strict=True)
        )
        notation = CascadeNotation(a, b, s, c[0] if c else None, d)
        return replace(self, notation=notation, terms=terms, depth=self.depth + 1)

    def places(self, tensors: Sequence[Tensor]) -> tuple[int | None, ...]:
        """Where each result has the mode that was added last; None for one that lacks it."""
        plan = self.planned(self.notation, self.terms, tensors)
        label = f"vmap{self.depth - 1}"
        outputs = plan.between.outputs[1:] if plan.meets else plan.between.outputs
        others = tuple(0 if label in plan.between.modes[node] else None for node in outputs)
        return (0, *others) if plan.meets else others


def gradients_of(
    results: Sequence[Tensor], grads: Sequence[Tensor | None], leaves: Sequence[Tensor | None], again: bool = False
) -> list[Tensor | None]:
    """The gradients of leaves that require one, None for others; `again`: which have gradients themselves."""
    pairs = [(value, grad) for value, grad in zip(results, grads, strict=True) if grad is not None]
    pairs = [(value, grad) for value, grad in pairs if value.requires_grad]
    wanted = [each for each in leaves if each is not None and each.requires_grad]
    if not pairs or not wanted:
        return [None] * len(leaves)
    values, given = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(values, wanted, given, create_graph=again, allow_unused=True))
    return [next(found) if each is not None and each.requires_grad else None for each in leaves]


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
    def forward(call: TransformedCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(each for each in output if not each.is_floating_point()))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        found = _Gradient.apply(ctx.call, len(tensors), *tensors, *grads)
        return (None, *(
            grad if tensor.is_floating_point() else None for tensor, grad in zip(tensors, found, strict=True)
        ))  # fmt: skip

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_tangents()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: TransformedCall, *tensors: Tensor) -> Any:
        batches, moved = _first(in_dims[1:], tensors, info.batch_size)
        if not (batches[0] or batches[1]):  # S has the mode by one of its own operands
            batches[0], moved[0] = True, moved[0].expand(info.batch_size, *moved[0].shape)
        wider = call.with_mode(batches)
        found = Transformed.apply(wider, *moved)
        return found, wider.places(moved)


class _Gradient(torch.autograd.Function):
    """The gradients of a transformed call, zero for what is not floating."""

    @staticmethod
    def forward(call: TransformedCall, count: int, *given: Tensor) -> tuple[Tensor, ...]:
        tensors, grads = [each.detach() for each in given[:count]], given[count:]
        leaves = [each.requires_grad_(each.is_floating_point()) for each in tensors]
        with grad_mode(True):
            found = gradients_of(call(leaves), grads, leaves)
        return tuple(torch.zeros_like(each) if grad is None else grad for each, grad in zip(leaves, found, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _Gradient.backward(ctx)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise UnsupportedError(
            "gradients of a cascade under torch.func have no gradients: take them by torch.autograd with create_graph"
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: TransformedCall, count: int, *given: Tensor) -> Any:
        batches, moved = _first(in_dims[2:], given, info.batch_size)
        moved = [
            each if batched else each.expand(info.batch_size, *each.shape)
            for each, batched in zip(moved, batches, strict=True)
        ]
        wider = call.with_mode([True] * count)
        places = wider.places(moved[:count])
        grads = [grad if at is not None else grad.sum(0) for grad, at in zip(moved[count:], places, strict=True)]
        found = _Gradient.apply(wider, count, *moved[:count], *grads)
        return found, (0,) * len(found)


def _first(places: Sequence[int | None], tensors: Sequence[Tensor], size: int) -> tuple[list[bool], list[Tensor]]:
    """Whether each tensor is mapped over, and the tensors with that mode first."""
    moved = [each if at is None else each.movedim(at, 0) for each, at in zip(tensors, places, strict=True)]
    return [at is not None for at in places], moved
