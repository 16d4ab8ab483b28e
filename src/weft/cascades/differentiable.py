"""A cascade as one operation of torch's autograd."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from weft.base.arrays import without_autocast
from weft.base.batched import each_of_batch
from weft.cascades.backward import gradients
from weft.cascades.forward import FINISHED, PRODUCT, Values, run
from weft.cascades.program import Program
from weft.cascades.transforms import refuse_tangents
from weft.cascades.whole import whole

#: What makes a result a view: torch refuses to write to those that a function returns, or that autograd has not seen.
VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


def differentiated(plan: Any, a: Tensor, b: Tensor, c: Tensor | None, operands: Sequence[Tensor]) -> list[Tensor]:
    """Results of a plan on arranged tensors, as the caller has them."""
    return list(_Cascade.apply(plan, a, b, c, *operands))


class _Cascade(torch.autograd.Function):
    """All whole values are saved: results, and what reductions came to."""

    @staticmethod
    def forward(ctx: Any, plan: Any, a: Tensor, b: Tensor, c: Tensor | None, *operands: Tensor) -> tuple[Tensor, ...]:
        given = _given(plan, operands)
        ctx.by_kernel = plan.launch is not None
        if ctx.by_kernel:
            wanted = _wanted(plan, ctx.needs_input_grad[4:])
            by_blocks = plan.backward is None or not plan.backward.makes(plan.backward.behind(wanted))
            try:
                values = plan.launch(a, b, c, given, raw=any(ctx.needs_input_grad) and by_blocks)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # of the compiler, which knows no one class of them
                plan.fall_back(error)
                ctx.by_kernel = False
        if not ctx.by_kernel:
            serving = plan.serving(any(ctx.needs_input_grad))
            values = run(plan.program, plan.frame, a, b, c, given, partial(plan.cut, operands=operands), serving)
        between, ctx.plan = plan.program.between, plan
        ctx.nodes = [node for node in values if node not in between.inputs and node not in between.elementwise]
        if plan.program.factor is None and plan.frame.algebra is None:  # the gradient is that of the sum
            ctx.nodes = [node for node in ctx.nodes if node not in (FINISHED, PRODUCT)]
        ctx.set_materialize_grads(False)
        with torch._C._ExcludeDispatchKeyGuard(VIEWS):
            kept = ctx.nodes if any(ctx.needs_input_grad) else ()
            results = tuple(plan.results.laid_out(_results(plan, values, kept)))
        ctx.d = [node for node in ctx.nodes if node in (FINISHED, PRODUCT) and plan.meets
                 and values[node].data_ptr() == results[0].data_ptr()]  # fmt: skip
        saved = (results[0] if node in ctx.d else values[node] for node in ctx.nodes)
        ctx.save_for_backward(a, b, c, *operands, *saved)
        ctx.mark_non_differentiable(*(each for each in results if not each.is_floating_point()))
        return results

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_tangents()

    @staticmethod
    @each_of_batch
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        with without_autocast():
            return _Cascade._gradients(ctx, grads)

    @staticmethod
    def _gradients(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        plan = ctx.plan
        a, b, c, *others = ctx.saved_tensors
        count = len(others) - len(ctx.nodes)
        operands, kept = others[:count], others[count:]
        if torch.is_grad_enabled():
            return (None, *_differentiably(plan, (a, b, c, *operands), ctx.needs_input_grad[1:], grads))
        grads = plan.results.along_s(grads)
        values = _given(plan, operands)
        values.update(zip(ctx.nodes, kept, strict=True))
        for node in ctx.d:
            (values[node],) = plan.results.along_s([values[node]])
        if ctx.by_kernel and plan.alone and plan.backward is not None and not any(ctx.needs_input_grad[4:]):
            needs, launch = ctx.needs_input_grad[1:4], plan.backward
            made = launch.alone((a, b, c), needs, launch.ready(grads[0]), values.get(FINISHED), values)
            for call in made.calls:
                call()
            shapes = [each.shape for each in (a, b, c)]
            return (None, *launch.as_they_lie(made.found, shapes, needs), *(None for _ in operands))
        cotangents: Values = {}
        for node, grad in zip(_nodes(plan), grads, strict=True):
            if grad is not None:
                cotangents[node] = cotangents[node] + grad if node in cotangents else grad
        needs = ctx.needs_input_grad
        cut = partial(plan.cut, operands=operands)
        if ctx.by_kernel and _selects(plan.program):  # blocks, made again, equal what blocks select
            values = run(plan.program, plan.frame, a, b, c, _given(plan, operands), cut)
        found = gradients(
            plan.program, plan.frame, (a, b, c), needs[1:4], values, cotangents, cut,
            plan.backward if ctx.by_kernel else None, _wanted(plan, needs[4:]),
        )
        own = [None if each is None else each.to(a.dtype) for each in found.sums]
        places = plan.program.between.inputs[1 : 1 + count]
        of_operands = [
            found.of_nodes.get(node, torch.zeros_like(each)).to(each.dtype) if needs[4 + at] else None
            for at, (node, each) in enumerate(zip(places, operands, strict=True))
        ]
        return (None, *own, *of_operands)


def _differentiably(
    plan: Any, inputs: Sequence[Tensor | None], needs: Sequence[bool], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients that have gradients themselves, from all of S."""
    frame, given = plan.frame, [each for each in inputs if each is not None]
    terms = [frame.first.x, frame.first.y, *(() if frame.second is None else (frame.second.y,))]
    laid = [(labels, each.shape) for labels, each in zip(terms, given, strict=False)]
    operands = [(frame.order, each.shape) for each in given[len(terms) :]]
    results = whole(plan, laid, operands, frame.products.accumulate)(*given, *plan.coordinates)
    return gradients_of(results, grads, inputs, needs)


def gradients_of(
    results: Sequence[Tensor], grads: Sequence[Tensor | None], inputs: Sequence[Tensor | None], needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of inputs that need them, which have gradients themselves."""
    pairs = [(value, grad) for value, grad in zip(results, grads, strict=True) if grad is not None]
    values, given = zip(*[pair for pair in pairs if pair[0].requires_grad], strict=True)
    wanted = [need and each is not None for each, need in zip(inputs, needs, strict=False)]
    leaves: list[Any] = [each for each, own in zip(inputs, wanted, strict=False) if own]
    found = iter(torch.autograd.grad(values, leaves, given, create_graph=True, allow_unused=True))
    return [next(found) if own else None for own in wanted]


def _selects(program: Program) -> bool:
    """Whether gradients go to elements that equal the largest or the smallest."""
    return any(target.kind in ("amax", "amin") for stage in program.stages for target in stage.targets)


def _wanted(plan: Any, needs: Sequence[bool]) -> list[fx.Node]:
    """The operands whose gradients are wanted."""
    places = plan.program.between.inputs[1:]
    return [node for node, need in zip(places, needs, strict=False) if need]


def _given(plan: Any, operands: Sequence[Tensor]) -> Values:
    places = plan.program.between.inputs[1:]
    return dict(zip(places, (*(each.detach() for each in operands), *plan.coordinates), strict=True))


def _nodes(plan: Any) -> list[fx.Node]:
    """Where each result stands among the values."""
    outputs = list(plan.program.between.outputs)
    return [PRODUCT, *outputs[1:]] if plan.meets else outputs


def _results(plan: Any, values: Values, kept: Sequence[fx.Node]) -> list[Tensor]:
    """New tensors, each of its own: of those that are `kept` for gradients, D alone is not copied."""
    frame = plan.frame
    found: list[Tensor] = []
    nodes = _nodes(plan)
    for at, node in enumerate(nodes):
        if node is PRODUCT and FINISHED in values:
            found.append(values[FINISHED])
            continue
        value = values[node]
        if node is PRODUCT:
            if plan.program.factor is not None:
                value = value * frame.on_d(values[plan.program.factor])
            found.append(value.to(plan.result_type))
            continue
        whole = value.expand(frame.shape(plan.program.between.modes[node]))
        taken = node in nodes[:at] or node in plan.program.between.inputs or node in kept or whole.shape != value.shape
        found.append(whole.clone() if taken else whole)
    return found
