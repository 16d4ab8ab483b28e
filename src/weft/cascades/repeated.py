"""Known calls of a plan: kernels launched with other tensors and nothing else, forward and backward; few elements at
once in torch's operations; and calls whose tensors need not be read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.autograd.graphs import Program
from weft.cascades.differentiable import VIEWS, Differentiated
from weft.cascades.replay import Replay
from weft.machine.exactness import shortened
from weft.spec import Label


class Repeated:
    """Calls on tensors of some layouts, of A, B, C and operands in the plan's order; D is their only result.

    `shapes`: those of A, B and C as kernels read them. Where these need gradients, `forward` gives peaks and sums too.
    """

    def __init__(self, plan: Any, forward: Replay, shapes: Sequence[Sequence[int]], grads: bool) -> None:
        self.plan, self._forward, self._shapes, self._grads = plan, forward, shapes, grads
        self._device = torch._C._cuda_getDevice()
        frame, notation = plan.frame, plan.notation
        written = frame.second.result
        self._d = [plan.extents[label] for label in written]
        self._order = [written.index(label) for label in notation.d]
        self._back = [notation.d.index(label) for label in written]
        self._places = (1, 0, 2) if frame.swapped else (0, 1, 2)  # of the kernels' A, B and C among the plan's
        terms = (notation.a, notation.b, notation.c)
        labels = (frame.first.x, frame.first.y, frame.second.y)
        own = [terms[at] for at in self._places]
        self._turns = [_Turned(*each) for each in zip(labels, own, shapes, strict=True)]
        self._replays: dict[tuple[bool, ...], Replay] = {}

    @classmethod
    def of(cls, plan: Any, given: Sequence[Tensor]) -> Repeated | None:
        """Later calls of a plan, where kernels alone make D and read operands as they lie."""
        if plan.launch is None or not plan.alone or plan.launch.tile.terms:
            return None
        grads = torch.is_grad_enabled() and any(each.requires_grad for each in given)
        if grads and (plan.backward is None or any(each.requires_grad for each in given[3:])):
            return None
        ready, operands = plan.arranged([each.detach() for each in given], plan.launch)
        places = (1, 0, 2) if plan.frame.swapped else (0, 1, 2)
        if any(given[at].data_ptr() != own.data_ptr() for at, own in zip(places, ready, strict=True)):
            return None
        notation = plan.notation
        if any(len(set(term)) < len(term) for term in (notation.a, notation.b, notation.c)):
            return None
        values = dict(zip(plan.between.inputs[1:], (*operands, *plan.coordinates), strict=True))
        a, b, c = (each.view_as(each) for each in ready)  # three, also where they are one tensor
        calls, room, found, _ = plan.launch.launches((a, b, c), values, False)
        results = found if grads else found[:1]
        tensors = [*((a, b, c)[at] for at in places), *operands]
        forward = Replay(calls, tensors, results, [*found[len(results) :], *room])
        return cls(plan, forward, [each.shape for each in ready], grads)

    def run(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """D, or None on another device than the kernels were launched on."""
        if torch._C._cuda_getDevice() != self._device:
            return None
        if self._grads:
            found: Tensor = Differentiated.apply(self, *tensors)[0]
            return found
        with torch._C._ExcludeDispatchKeyGuard(VIEWS):
            return self._as_asked(self._forward(tensors)[0])

    def forward(self, given: Sequence[Tensor], needs: Sequence[bool]) -> tuple[list[Tensor], list[Tensor]]:
        """D; and peaks and sums."""
        d, *states = self._forward(given)
        self._written = d.shape
        return [self._as_asked(d)], states

    def _as_asked(self, d: Tensor) -> Tensor:
        return d.view(self._d).permute(self._order)

    def backward(
        self, given: Sequence[Tensor], d: Sequence[Tensor], states: Sequence[Tensor],
        grads: Sequence[Tensor | None], needs: Sequence[bool],
    ) -> list[Tensor | None]:  # fmt: skip
        """Gradients of A, B and C, from D, peaks and sums, and the gradient of D."""
        launch, given_grad = self.plan.backward, grads[0]
        assert given_grad is not None
        grad = launch.ready(given_grad.permute(self._back))
        found = [d[0].permute(self._back).view(self._written), *states]
        own = tuple(needs[at] for at in self._places)
        replay = self._replays.get(own)
        made = self._first(given, found, grad, own) if replay is None else replay([*given, *found, grad])
        results: list[Tensor | None] = [None] * len(needs)
        lying = launch.as_they_lie(made, self._shapes, own)
        for at, each, turned in zip(self._places, lying, self._turns, strict=True):
            results[at] = None if each is None else turned(each)
        return results

    def _first(
        self, tensors: Sequence[Tensor], found: Sequence[Tensor], grad: Tensor, needs: tuple[bool, ...]
    ) -> Sequence[Tensor]:
        """Gradients by launches that are made here, and kept."""
        plan, launch = self.plan, self.plan.backward
        ready, operands = plan.arranged(tensors, plan.kernel)
        a, b, c = (each.view_as(each) for each in ready)  # three, also where they are one tensor
        values: dict[fx.Node, Tensor] = dict(zip(plan.between.inputs[1:], (*operands, *plan.coordinates), strict=True))
        sums = (target.gives for target in launch.functions.sums)
        values.update(zip((*launch.functions.stage.peaks, *sums), found[1:], strict=True))
        made = launch.alone((a, b, c), needs, grad, found[0], values)
        given = [(a, b, c)[at] for at in self._places]
        tensors = [*given, *operands, *found, grad]
        self._replays[needs] = Replay(made.calls, tensors, made.found, made.room, zeroed=True)
        return made.found


class Written(NamedTuple):
    """A known call of few elements."""

    program: Program
    coordinates: list[Tensor]
    several: bool

    def run(self, given: Sequence[Tensor]) -> Any:
        """The results; None where torch may round the factors of products."""
        if shortened():
            return None
        if torch.is_grad_enabled():
            found = self.program(*given, *self.coordinates)
        else:  # no result is a view that gradients could not be written through later
            with torch._C._ExcludeDispatchKeyGuard(VIEWS):
                found = self.program(*given, *self.coordinates)
        return found if self.several else found[0]


class Again(NamedTuple):
    """A known call whose tensors need not be read again."""

    plan: Any

    def run(self, given: Sequence[Tensor]) -> Any:
        return self.plan.anew(given)


class _Turned:
    """A gradient along labels as kernels have them, in the shape and order of what it is the gradient of."""

    def __init__(self, labels: Sequence[Label], term: Sequence[Label], shape: Sequence[int]) -> None:
        kept = [at for at, label in enumerate(labels) if label in term]
        self._kept = [shape[at] for at in kept]
        own = [labels[at] for at in kept]
        self._order = [own.index(label) for label in term if label in own]
        self._ones = [at for at, label in enumerate(term) if label not in own]

    def __call__(self, grad: Tensor) -> Tensor:
        grad = grad.reshape(self._kept).permute(self._order)
        for at in self._ones:
            grad = grad.unsqueeze(at)
        return grad
