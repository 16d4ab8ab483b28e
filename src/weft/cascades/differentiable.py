"""A cascade as one operation of torch's autograd, and under transforms of `torch.func`.

A transformed call is a function of plain tensors at the bottom of the transforms. `vmap` maps over one more mode of the
operands that have it, of S and of every result that depends on it; `grad` takes the gradients by blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, fx

from weft.base.arrays import grad_mode, without_autocast
from weft.base.batched import each_of_batch
from weft.cascades.backward import gradients, gradients_of
from weft.cascades.described import CascadeNotation, Terms
from weft.cascades.program import FINISHED, PRODUCT, Values
from weft.errors import UnsupportedError

#: What makes a result a view: torch refuses to write to those that a function returns, or that autograd has not seen.
VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)

#: The plan of a notation and of operands with such terms, for tensors A, B, C and operands in order.
Planning = Callable[[CascadeNotation, Terms, Sequence[Tensor]], Any]


class DifferentiatedCascade(torch.autograd.Function):
    """A call that is made in one of several ways: in full, or by launches that were made before.

    A way has its `plan`, and gives results and states by `forward`, gradients by `backward`. Saved are the caller's
    tensors, D, and states. A checkpoint makes the call again and pairs what either saves: kernels may have taken over
    meanwhile, whose states are others, so that within hooks of saved tensors states stay with the call.
    """

    @staticmethod
    def forward(ctx: Any, way: Any, *given: Tensor) -> tuple[Tensor, ...]:
        with torch._C._ExcludeDispatchKeyGuard(VIEWS):
            results, states = way.forward(given, ctx.needs_input_grad[1:])
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        ctx.way, ctx.count, ctx.states = way, len(given), states if hooked else None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given, *results[: way.plan.meets], *(() if hooked else states))
        ctx.mark_non_differentiable(*(each for each in results if not each.is_floating_point()))
        return tuple(results)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_tangents()

    @staticmethod
    @each_of_batch
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        plan, needs = ctx.way.plan, ctx.needs_input_grad[1:]
        saved = ctx.saved_tensors  # asked for once
        given, others = saved[: ctx.count], saved[ctx.count :]
        with without_autocast():
            if torch.is_grad_enabled():
                results = plan.whole(plan.frame.products.accumulate)(*given, *plan.coordinates)
                leaves = [each if need else None for each, need in zip(given, needs, strict=True)]
                return (None, *gradients_of(results, grads, leaves, again=True))
            states = others[plan.meets :] if ctx.states is None else ctx.states
            return (None, *ctx.way.backward(given, others[: plan.meets], states, grads, needs))


class FullRun:
    """A call in full. Its states are all whole values: results, and what reductions came to."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def forward(self, given: Sequence[Tensor], needs: Sequence[bool]) -> tuple[list[Tensor], list[Tensor]]:
        plan, grads = self.plan, any(needs)
        self._launch = plan.launch
        values = None if self._launch is None else self._by_kernel(given, needs)
        if values is None:
            self._launch = None
            values = plan.blocks.run(*plan.apart(*plan.arranged(given, None)), plan.serving(grads))
        between = plan.program.between
        nodes = [node for node in values if node not in between.inputs and node not in between.elementwise]
        if plan.program.factor is None and plan.frame.algebra is None:  # the gradient is that of the sum
            nodes = [node for node in nodes if node not in (FINISHED, PRODUCT)]
        results = plan.results.laid_out(_results(plan, values, nodes if grads else ()))
        self._d = [node for node in nodes if node in (FINISHED, PRODUCT) and plan.meets
                   and values[node].data_ptr() == results[0].data_ptr()]  # fmt: skip
        self._nodes = [node for node in nodes if node not in self._d]
        return results, [values[node] for node in self._nodes] if grads else []

    def _by_kernel(self, given: Sequence[Tensor], needs: Sequence[bool]) -> Values | None:
        """Values that the kernel finds; None where it cannot be made."""
        plan = self.plan
        tensors, beside = plan.apart(*plan.arranged(given, self._launch))
        wanted = _wanted(plan, needs[plan.count :])
        by_blocks = plan.backward is None or not plan.backward.makes(plan.backward.behind(wanted))
        try:
            found: Values = self._launch(tensors, beside, raw=any(needs) and by_blocks)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of the compiler, which knows no one class of them
            plan.fall_back(error)
            return None
        return found

    def backward(
        self, given: Sequence[Tensor], d: Sequence[Tensor], states: Sequence[Tensor],
        grads: Sequence[Tensor | None], needs: Sequence[bool],
    ) -> list[Tensor | None]:  # fmt: skip
        """Gradients of the caller's tensors: of those that kernels or blocks read, and from these along views."""
        with grad_mode(True):
            leaves = [each.detach().requires_grad_(need) for each, need in zip(given, needs, strict=True)]
            tensors, operands = self.plan.arranged(leaves, self._launch)
        read = [*tensors, *operands]
        found = self._gradients(
            [each.detach() for each in tensors], [each.detach() for each in operands],
            d, states, grads, [each.requires_grad for each in read],
        )  # fmt: skip
        return gradients_of(read, found, leaves)

    def _gradients(
        self, tensors: Sequence[Tensor], operands: Sequence[Tensor], d: Sequence[Tensor], states: Sequence[Tensor],
        grads: Sequence[Tensor | None], needs: Sequence[bool],
    ) -> list[Tensor | None]:  # fmt: skip
        """Gradients of arranged tensors and operands."""
        plan, count, kind = self.plan, len(tensors), tensors[0].dtype
        grads = plan.results.along_s(grads)
        read, beside = plan.apart(tensors, operands)
        values = dict(beside)
        values.update(zip(self._nodes, states, strict=True))
        for node in self._d:
            (values[node],) = plan.results.along_s(d)
        launch = None if self._launch is None else plan.backward
        if launch is not None and plan.alone and not any(needs[count:]):
            made = launch.alone(read, tuple(needs[:count]), launch.ready(grads[0]), values.get(FINISHED), values)
            made.run()
            own = launch.as_they_lie(made.found, [each.shape for each in tensors], needs[:count])
            return [*own, *(None for _ in operands)]
        cotangents: Values = {}
        for node, grad in zip(_nodes(plan), grads, strict=True):
            if grad is not None:
                cotangents[node] = cotangents[node] + grad if node in cotangents else grad
        if self._launch is not None and plan.program.stages[0].selects:  # blocks, made again, equal what blocks select
            values = plan.blocks.run(read, beside)
        wanted = _wanted(plan, needs[count:])
        found = gradients(plan.blocks, read, (*needs[:count], False)[:3], values, cotangents, launch, wanted)
        own = [None if each is None else each.to(kind) for each in found.sums[:count]]
        places = plan.program.between.inputs[1 : 1 + len(operands)]
        return [*own, *(
            found.of_nodes.get(node, torch.zeros_like(each)).to(each.dtype) if need else None
            for node, each, need in zip(places, operands, needs[count:], strict=True)
        )]  # fmt: skip


def _wanted(plan: Any, needs: Sequence[bool]) -> list[fx.Node]:
    """The operands whose gradients are wanted."""
    places = plan.program.between.inputs[1:]
    return [node for node, need in zip(places, needs, strict=False) if need]


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


# -- transforms --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransformedCall:
    """A call without its tensors: labels, the terms of its operands by name, and how it is planned."""

    notation: CascadeNotation
    terms: Terms
    planned: Planning
    depth: int = 0

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        plan = self.planned(self.notation, self.terms, tensors)
        found = plan.as_seen(tensors) or plan.run(tensors)
        return found if isinstance(found, tuple) else (found,)

    def widened(
        self, batches: list[bool], tensors: list[Tensor], size: int
    ) -> tuple[TransformedCall, list[Tensor], tuple[int | None, ...]]:
        """The call with one more mode, its tensors, and where each result has it; None for one that lacks it."""
        if not (batches[0] or batches[1]):  # S has the mode by one of its own operands
            batches[0], tensors[0] = True, tensors[0].expand(size, *tensors[0].shape)
        said, label, count = self.notation, f"vmap{self.depth}", len(self.notation.terms)
        every = (*said.terms, *(term for _, term in self.terms))
        made = [(label, *term) if batched else term for term, batched in zip(every, batches, strict=True)]
        a, b, *c = made[:count]
        d = None if said.d is None else (label, *said.d)
        notation = CascadeNotation(a, b, (label, *said.s), c[0] if c else None, d)
        terms = tuple(zip([name for name, _ in self.terms], made[count:], strict=True))
        wider = replace(self, notation=notation, terms=terms, depth=self.depth + 1)
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


def refuse_tangents() -> NoReturn:
    """`UnsupportedError` for forward mode."""
    raise UnsupportedError("a cascade has no forward mode: take gradients, or torch.func.jacrev")


def transformed(plan: Any, given: Sequence[Tensor]) -> Any:
    """The results of a plan's call within transforms, which may ask for plans of the same function with more modes."""
    found = Transformed.apply(TransformedCall(plan.notation, plan.said.terms, plan.like), *given)
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
