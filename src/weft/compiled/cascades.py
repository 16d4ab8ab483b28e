"""Cascades as texts describe them, and the way from a call of `weft.cascade` to its text.

Gradients are an operation of their own, which makes the cascade again: nothing but its operands is kept for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.api.keywords import autocast_type
from weft.base.arguments import describe_call
from weft.base.arrays import dispatch_modes, is_transforming, outside_tracing, without_memory
from weft.base.caches import cached_property
from weft.cascades.described import CascadeNotation, described, extents_of
from weft.cascades.public import planned_of
from weft.compiled.captured import constant_of_graph, function_of
from weft.compiled.text import Stored, check_backend_of, has_text, read, settled_algebra, stand_in, text_of
from weft.errors import call_context
from weft.fn.pointwise import RecordedFunction
from weft.planner.options import Options
from weft.plans.keywords import read_options
from weft.spec import Label
from weft.spec.arguments import read_real
from weft.spec.dtypes import resolve

if TYPE_CHECKING:
    from weft.cascades.differentiable import Terms
    from weft.cascades.plan import CascadePlan


@has_text
@dataclass(frozen=True, eq=False)
class CascadeCall:
    """A cascade: all but the tensors."""

    notation: CascadeNotation  # whose labels are texts
    between: Any
    options: Options  # but for the tensors of operands, which are in their order
    alpha: float
    outputs: tuple[tuple[tuple[str, ...], torch.dtype], ...]  # modes and types of the results

    @cached_property
    def terms(self) -> Terms:
        """Names and modes of the operands of the function, in the order of the tensors."""
        pairs: Any = self.options.operands.items()
        return tuple((name, modes) for name, (modes, _) in pairs)

    @cached_property
    def count(self) -> int:
        """How many of the tensors are A, B and C."""
        return 2 if self.notation.c is None else 3

    def results(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Empty tensors as the results will be: contiguous, in their types."""
        extents, device = extents_of(self.notation, [each.shape for each in tensors[: self.count]]), tensors[0].device
        shapes = [([extents[label] for label in modes], dtype) for modes, dtype in self.outputs]
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]

    def flops(self, tensors: Sequence[Tensor]) -> int:
        """The flops of both contractions."""
        given = self.notation
        extents = extents_of(given, [tuple(map(int, each.shape)) for each in tensors[: self.count]])
        first, second = {*given.a, *given.b}, {*given.s, *given.c} if given.c is not None else set()
        return 2 * sum(math.prod(extents[label] for label in labels) for labels in (first, second) if labels)

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results, differentiable."""
        found = self.plan(self.notation, self.terms, tensors).run(tensors)
        return [each.contiguous() for each in (found if isinstance(found, tuple) else (found,))]

    def plan(self, notation: CascadeNotation, terms: Terms, tensors: Sequence[Tensor]) -> CascadePlan:
        """The plan of this cascade with other labels."""
        return planned_of(notation, terms, tensors, self.options, self.between, self.alpha)

    def transformed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results within transforms of `torch.func`."""
        from weft.cascades.differentiable import Transformed, TransformedCall

        return list(Transformed.apply(TransformedCall(self.notation, self.terms, self.plan), *tensors))

    def gradients(
        self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None], wanted: Sequence[int]
    ) -> list[Tensor]:
        """The gradients of the tensors at the places `wanted`, from those of the results."""
        from weft.cascades.backward import gradients_at

        with autograd_within():
            made = gradients_at(self.run, tensors, grads, wanted)
        return [grad.contiguous() for grad in made]

    def gradient_results(
        self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None], wanted: Sequence[int]
    ) -> list[Tensor]:
        """Empty tensors as gradients will be."""
        return [torch.empty_like(tensors[at], memory_format=torch.contiguous_format) for at in wanted]


def derived(text: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The results of a cascade where a gradient is requested, or within transforms."""
    call: CascadeCall = read(text)
    if is_transforming():
        return call.transformed(tensors)
    if not dispatch_modes() and not any(map(without_memory, tensors)):
        return call.run(tensors)  # which keeps what it has made
    return list(_TracedCascade.apply(text, *tensors))


class _TracedCascade(torch.autograd.Function):
    """A cascade and its gradients as two operations, for those who trace."""

    @staticmethod
    def forward(ctx: Any, text: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.text = text
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        found = tuple(torch.ops.weft.cascade.default(text, list(tensors)))
        ctx.mark_non_differentiable(*(each for each in found if not each.is_floating_point()))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        wanted = [at for at, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        made = torch.ops.weft.cascade_backward.default(ctx.text, list(ctx.saved_tensors), list(grads), wanted)
        found = iter(made)
        return (None, *(next(found) if needed else None for needed in ctx.needs_input_grad[1:]))


@contextmanager
def autograd_within() -> Iterator[None]:
    """Let autograd see operations that run within one: dispatch modes are told of that one below autograd."""
    keys = torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.AutogradOther
    with torch._C._PreserveDispatchKeyGuard():
        for key in keys:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield


@constant_of_graph
def sums_of_cascade(stored: tuple[Stored, ...], kind: str, options: tuple[tuple[str, Any], ...]) -> torch.dtype:
    """The type of the sums that the function of a cascade sees."""
    keywords = {name: value for name, value in options if name != "alpha"}
    read = read_options("cascade", keywords)
    dtype = autocast_type(kind, stored[0][0]) or stored[0][0]
    return resolve(dtype, dtype, read.precision, read.accumulate).accumulate


@constant_of_graph
def spelled_cascade(
    equation: Any,
    stored: tuple[Stored, ...],
    kind: str,
    operands: tuple[tuple[str, Any, Stored], ...],
    options: tuple[tuple[str, Any], ...],
    between: Any,
) -> tuple[str, bool, torch.dtype | None]:
    """The text of a call of `weft.cascade`, whether it has several results, and the type that autocast asks for.

    Raises what the call would raise. `stored`: types and ranks of A, B and C, which are on a `kind` of device. Dynamo
    runs it once, while it reads the code.
    """
    from weft.cascades.plan import CascadePlan  # with all that runs it: with the first call, not with weft

    with outside_tracing(), call_context(lambda: describe_call("cascade", equation)):
        keywords = dict(options)
        alpha = read_real("alpha", keywords.pop("alpha", 1.0))
        keywords["operands"] = {name: (modes, stand_in(*each)) for name, modes, each in operands}
        asked = read_options("cascade", keywords)
        check_backend_of(asked, kind)
        cast = autocast_type(kind, stored[0][0])
        tensors = [stand_in(cast or dtype, rank) for dtype, rank in stored]
        function = function_of(between)
        bare = replace(asked, backend="auto", specialize="never")
        plan = CascadePlan(described(equation, tensors, bare, function), function, bare, alpha, planned_of)
        return plan_text(plan, asked, alpha), plan.several, cast


def planned_cascade(plan: CascadePlan, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results of a plan on tensors that torch sees operations on."""
    return tuple(torch.ops.weft.cascade.default(plan_text(plan, plan.options, plan.alpha), list(tensors)))


def plan_text(plan: CascadePlan, options: Options, alpha: float) -> str:
    """The text of a checked cascade; `options`: those of the call, whose types are settled here."""
    said, written, names = plan.said, plan.written, _names(plan.notation)

    def texts(labels: Iterable[Label]) -> tuple[str, ...]:
        return tuple([names[label] for label in labels])

    asked = replace(
        options, out_dtype=plan.result_type, algebra=settled_algebra(options.algebra, plan.types.accumulate),
        operands={name: (texts(modes), None) for name, (modes, _, _) in said.operands.items()},
        indices={name: names[label] for name, label in said.indices.items()},
    )  # fmt: skip
    given = plan.notation
    terms = [texts(term) for term in (given.a, given.b, given.s, given.c, given.d) if term is not None]
    between = RecordedFunction(written.graph, ("value", *written.names))
    outputs = tuple([(texts(labels), dtype) for labels, dtype in plan.results.described])
    return text_of(CascadeCall(CascadeNotation(*terms), between, asked, alpha, outputs))


def _names(notation: CascadeNotation) -> dict[Label, str]:
    """Labels as text: those of S as a function names them."""
    names = {label: str(label) for label in notation.s}
    others = dict.fromkeys(
        label for term in (notation.a, notation.b, notation.c, notation.d) if term is not None for label in term
    )
    for at, label in enumerate(others):
        names.setdefault(label, f"not of S {at}")
    return names
