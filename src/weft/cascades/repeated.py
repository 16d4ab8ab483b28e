"""Known calls of a plan: kernels launched with other tensors and nothing else, forward and backward."""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from weft.base.kept import keep_if_captured
from weft.cascades.arguments import Call
from weft.cascades.differentiable import VIEWS, DifferentiatedCascade
from weft.cascades.frame import turned
from weft.gpu.common.cubins import Cubin, parameter_sizes
from weft.gpu.common.direct import DirectLaunch
from weft.gpu.common.release import launches_are_hooked
from weft.spec import Layout


class Repeated:
    """Calls on tensors of some layouts, of A, B, C and operands in the plan's order; D is their only result.

    `shapes`: those of A, B and C as kernels read them. Where these need gradients, `forward` gives peaks and sums too.
    """

    def __init__(self, plan: Any, forward: Replay, shapes: Sequence[Sequence[int]], grads: bool) -> None:
        self.plan, self._forward, self._shapes, self._grads = plan, forward, shapes, grads
        self._device = torch._C._cuda_getDevice()
        frame, self._places = plan.frame, plan.frame.places
        self._labels = frame.first.x, frame.first.y, frame.second.y
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
        places = plan.frame.places
        if any(given[at].data_ptr() != own.data_ptr() for at, own in zip(places, ready, strict=True)):
            return None
        if any(len(set(term)) < len(term) for term in plan.notation.terms):
            return None
        own, values = plan.apart(ready, operands)
        calls, room, found, _ = plan.launch.launches(own, values, False)
        results = found if grads else found[:1]
        tensors = [*(own[at] for at in places), *[*values.values()][: len(operands)]]
        forward = Replay(calls, tensors, results, [*found[len(results) :], *room])
        return cls(plan, forward, [each.shape for each in ready], grads)

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """D, or None on another device than the kernels were launched on."""
        if torch._C._cuda_getDevice() != self._device:
            return None
        if self._grads:
            found: Tensor = DifferentiatedCascade.apply(self, *tensors)[0]
            return found
        with torch._C._ExcludeDispatchKeyGuard(VIEWS):
            (d,) = self.plan.results.laid_out(self._forward(tensors)[:1])
        return d

    def forward(self, given: Sequence[Tensor], needs: Sequence[bool]) -> tuple[list[Tensor], list[Tensor]]:
        """D; and peaks and sums."""
        d, *states = self._forward(given)
        self._written = d.shape
        return self.plan.results.laid_out([d]), states

    def backward(
        self, given: Sequence[Tensor], d: Sequence[Tensor], states: Sequence[Tensor],
        grads: Sequence[Tensor | None], needs: Sequence[bool],
    ) -> list[Tensor | None]:  # fmt: skip
        """Gradients of A, B and C, from D, peaks and sums, and the gradient of D."""
        launch, results = self.plan.backward, self.plan.results
        (own_d,), (of_d,) = results.along_s(d), results.along_s(grads)
        grad = launch.ready(of_d)
        found = [own_d.view(self._written), *states]
        own = tuple(needs[at] for at in self._places)
        replay = self._replays.get(own)
        made = self._first(given, found, grad, own) if replay is None else replay([*given, *found, grad])
        gradients: list[Tensor | None] = [None] * len(needs)
        lying = launch.as_they_lie(made, self._shapes, own)
        for at, each, labels in zip(self._places, lying, self._labels, strict=True):
            gradients[at] = None if each is None else turned(each, labels, self.plan.notation.terms[at])
        return gradients

    def _first(
        self, tensors: Sequence[Tensor], found: Sequence[Tensor], grad: Tensor, needs: tuple[bool, ...]
    ) -> Sequence[Tensor]:
        """Gradients by launches that are made here, and kept."""
        plan, launch = self.plan, self.plan.backward
        ready, operands = plan.arranged(tensors, plan.kernel)
        own, values = plan.apart(ready, operands)
        beside = [*values.values()][: len(operands)]
        sums = (target.gives for target in launch.functions.sums)
        values.update(zip((*launch.functions.stage.peaks, *sums), found[1:], strict=True))
        made = launch.alone(own, needs, grad, found[0], values)
        tensors = [*(own[at] for at in self._places), *beside, *found, grad]
        self._replays[needs] = Replay(made.calls, tensors, made.found, made.room, zeroed=True)
        return made.found


_ALIGNED = 256  # bytes


class Replay:
    """Calls again, with other tensors, of what is launched here: each as Triton has compiled it, and as it was called.

    `results` are new in each call, and `room` is memory besides, which begins as zeros where it is `zeroed`. What is
    neither of these nor among `tensors` is the same in each call.
    """

    def __init__(
        self, calls: Sequence[Call], tensors: Sequence[Tensor], results: Sequence[Tensor], room: Sequence[Tensor],
        zeroed: bool = False,
    ) -> None:  # fmt: skip
        self._device, self._new = tensors[0].device, torch.zeros if zeroed else torch.empty
        self._results = [(each.shape, each.dtype) for each in results]
        sizes = [-(-each.nbytes // _ALIGNED) * _ALIGNED for each in room]
        *self._places, self._bytes = accumulate(sizes, initial=0)  # of the room, in bytes from where it begins
        slots = {id(each): at for at, each in enumerate((*tensors, *results, *room))}
        self._steps = [_Step(call, slots, self._device) for call in calls]
        self._fixed = [each for step in self._steps for each in step.arguments if isinstance(each, Tensor)]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results for other tensors."""
        device = self._device
        keep_if_captured(device, *self._fixed)
        found = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self._results]
        room = self._new(self._bytes, dtype=torch.uint8, device=device)
        start = room.data_ptr()
        given: list[Any] = [*tensors, *found, *(start + place for place in self._places)]
        addresses = [each if isinstance(each, int) else each.data_ptr() for each in given]
        hooked = launches_are_hooked()
        for step in self._steps:
            if hooked or not step.past_triton(addresses):
                step.by_triton(given)
        return found


class _Step:
    """A launch with other tensors, past Triton's launcher where that can be."""

    def __init__(self, call: Call, slots: Mapping[int, int], device: torch.device) -> None:
        compiled = call()
        self.arguments = [call.given[name] for name in call.kernel.arg_names]
        of = [id(getattr(each, "base", each)) for each in self.arguments]  # a tensor map is of a tensor
        self._slots = [(at, slots[each]) for at, each in enumerate(of) if each in slots]
        self._run = compiled[(*call.grid, 1, 1)[:3]]
        self._direct: DirectLaunch | None = None
        self._words: list[int] = []
        self._changing: list[tuple[int, int]] = []
        if device.type == "cuda" and math.prod(call.grid) == call.grid[0]:
            self._pass(compiled, call.grid[0], torch.cuda.current_device())
        for at, _ in self._slots:  # none of this call's tensors is kept
            self.arguments[at] = _moved(self.arguments[at], None)

    def _pass(self, compiled: Any, programs: int, device: int) -> None:
        """Find how CUDA's driver launches the kernel: with a word for each parameter, addresses of tensors those."""
        kinds, metadata = list(compiled.src.signature.values()), compiled.metadata
        scratch = metadata.global_scratch_size or metadata.profile_scratch_size
        cubin, passed = Cubin.of(compiled), [at for at, kind in enumerate(kinds) if kind != "constexpr"]
        sizes = parameter_sizes({str(at): "i32" if kinds[at] == "fp32" else kinds[at] for at in passed}, cubin.maps)
        if len(kinds) != len(self.arguments) or metadata.num_ctas > 1 or scratch or sizes is None:
            return
        maps = [self.arguments[at] for at, _ in self._slots if hasattr(self.arguments[at], "base")]
        layouts = [Layout(tuple(each.shape), tuple(each.strides), each.base.dtype) for each in maps]
        cubin = replace(cubin, sizes=tuple(sizes))
        self._direct = DirectLaunch.of(cubin, compiled.function, programs, device, (), layouts)
        self._words = [_word(self.arguments[at]) for at in passed]
        self._changing = [(passed.index(at), place) for at, place in self._slots if at in passed]

    def past_triton(self, addresses: Sequence[int]) -> bool:
        """Launch by CUDA's driver; false where it does not."""
        if self._direct is None:
            return False
        words = self._words.copy()
        for at, place in self._changing:
            words[at] = addresses[place]
        self._direct(words)
        return True

    def by_triton(self, given: Sequence[Any]) -> None:
        """Launch by Triton."""
        arguments = self.arguments.copy()
        for at, place in self._slots:
            arguments[at] = _moved(arguments[at], given[place])
        self._run(*arguments)


def _word(value: Any) -> int:
    """A parameter as an integer: the address of a tensor, the bits of a float32 number."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<f", value), "little")
    return value if isinstance(value, int) else 0


def _moved(argument: Any, tensor: Any) -> Any:
    """Another tensor in the place of one, or the tensor map of it."""
    if not hasattr(argument, "base"):
        return tensor
    found = copy.copy(argument)
    found.base = tensor
    return found
