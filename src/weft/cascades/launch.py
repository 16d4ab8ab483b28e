"""The kernels for cascades: their launches, and later ones with other tensors and nothing else.

S is a matrix for each index of the batch: its rows are the labels that A has alone, its columns those of B, and the
second contraction and every reduction sum all of the columns and nothing else. Where the last of many labels of A has
rows enough for a tile, the others join the batch: B and C lack those.
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from weft.base.caches import cached_property
from weft.base.kept import keep_if_captured
from weft.cascades import step
from weft.cascades.arguments import BYTES, Call, Kernel, KernelArguments, Launches, Lying, held, tensor_map, terms_of
from weft.cascades.differentiable import VIEWS, DifferentiatedCascade
from weft.cascades.frame import turned
from weft.cascades.hopper import ROWS, hopper_text
from weft.cascades.hopper_sums import hopper_sums_text
from weft.cascades.kernel import KernelForm, jit_text, join_lines, kernel_lines
from weft.cascades.masks import Stretches
from weft.cascades.operations import run_whole
from weft.cascades.program import FINISHED, PRODUCT, CascadeProgram, Tensors, Values
from weft.cascades.serving import FEW, CascadeTile
from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.cubins import Cubin, parameter_sizes
from weft.gpu.common.direct import DirectLaunch
from weft.gpu.common.release import launches_are_hooked
from weft.spec import Layout


class CascadeLaunch:
    """The kernel for a program: call it with arranged tensors."""

    def __init__(self, program: CascadeProgram, tile: CascadeTile, exact: CascadeTile | None = None) -> None:
        """`exact`: the tile for operands that terms do not hold."""
        self.program, self.frame, self.tile = program, program.frame, tile
        self._exact = None if exact is None else CascadeLaunch(program, exact)
        self.arguments = KernelArguments(program)
        self.functions = self.arguments.functions
        self.stage = self.functions.stage
        sides = self.arguments.sides
        self.stretches = Stretches(program, (sides.m, sides.n), (tile.m, tile.n))
        #: The kernel, and the one that joins its states; of a D that is finished or not.
        self._made: dict[bool, tuple[Kernel, Kernel | None]] = {}

    def ready(self, tensor: Tensor, at: int) -> Tensor:
        """An arranged A, B or C as the kernel reads it."""
        if self.tile.terms or (not self.tile.hopper and (not self.tile.maps or at == 2)):
            return tensor
        count, item = len(self.arguments.groups(at)) - 2, tensor.element_size()
        unit = tensor.dim() - 1 if at < 2 else count  # of C the columns of D
        steps = [tensor.stride(dim) for dim in range(tensor.dim()) if dim != unit and tensor.shape[dim] > 1]
        fits = tensor.stride(unit) == 1 or tensor.shape[unit] == 1
        if fits and tensor.data_ptr() % BYTES == 0 and all(step * item % BYTES == 0 for step in steps):
            return tensor
        if at < 2:
            return tensor.clone(memory_format=torch.contiguous_format)
        last = count + len(self.arguments.sides.e)
        order = (*range(count), *range(last, tensor.dim()), *range(count, last))
        back = sorted(range(tensor.dim()), key=order.__getitem__)
        return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)

    def __call__(self, tensors: Tensors, given: Values, raw: bool) -> Values:
        """Every whole value by its node, as `Blocks.run` has them; D finished under `FINISHED` unless it is `raw`."""
        if self._exact is not None and not held(*tensors[:2]):
            return self._exact(tensors, given, raw)
        frame, values = self.frame, dict(given)
        between = self.program.between
        run_whole(self.program.prelude, self.program, values)
        d, *states = self.launches(tensors, values, raw).run()
        results = (*self.stage.peaks, *(target.gives for target in self.functions.sums))
        for node, state in zip(results, states, strict=True):
            values[node] = state.reshape(frame.shape(between.modes[node]))
        if self.functions.meets:
            shape = [frame.extents[label] for label in frame.second.result]
            values[FINISHED if self._finishes(raw) else PRODUCT] = d.reshape(shape)
        run_whole(self.stage.tail, self.program, values)
        return values

    def launches(self, tensors: Tensors, values: Values, raw: bool) -> Launches:
        """The kernel, and where columns are shared the one that joins; they find D, peaks and sums."""
        a, b, c = tensors
        tile, arguments, finished = self.tile, self.arguments, self._finishes(raw)
        batch, m, _, _, e = arguments.sizes
        sums = self.frame.products.accumulate
        found = shared = self._room(a, (), self.frame.stored if finished else sums)
        if tile.splits > 1:
            shared = self._room(a, (tile.splits,), sums)
        lying = arguments.lying(a, b, c)
        if finished not in self._made:
            self._made[finished] = self._compiled(self._form(values, finished, lying))
        kernel, join = self._made[finished]
        keep_if_captured(a.device, self._table)
        operands, numbers = self._operands(a, b, a if c is None else c, lying)
        beside, places = arguments.operands(values), arguments.places(values)
        rows = batch * -(-m // tile.m)
        grid = (rows,) if tile.hopper else (rows, tile.splits, -(-e // tile.e))
        out = {**operands, "d": shared[0], **beside, **self._states("out", shared)}
        calls = [kernel(grid, {**out, "stretches": self._table, **numbers, **places})]
        if join is None:
            return Launches(calls, [], found)
        out = {"d_in": shared[0], "d": found[0], **self._states("in", shared), **beside, **self._states("out", found)}
        given = {**out, "shares": tile.splits, "B": batch, "M": m, "E": e, **places}
        calls.append(join((batch * m, -(-e // join.constants["BE"])), given))
        return Launches(calls, shared, found)

    def _room(self, like: Tensor, shares: tuple[int, ...], stored: torch.dtype) -> list[Tensor]:
        """Memory for D, and for peaks and sums, of all columns or of shares of them."""
        batch, m, _, _, e = self.arguments.sizes
        sums = self.frame.products.accumulate
        d = like.new_empty((*shares, batch, m, e) if self.functions.meets else (1,), dtype=stored)
        return [d, *(like.new_empty((*shares, batch, m), dtype=sums) for _ in step.kept(self.functions))]

    def _states(self, end: str, room: Sequence[Tensor]) -> dict[str, Tensor]:
        """Memory for peaks and sums by the names that kernels have for them."""
        return {f"{name}_{end}": each for name, each in zip(step.kept(self.functions), room[1:], strict=True)}

    def _finishes(self, raw: bool) -> bool:
        """Whether kernels multiply D with its factor and round it."""
        return not raw and self.functions.factor is not None

    def _operands(self, a: Any, b: Any, c: Any, lying: Lying) -> tuple[dict[str, Any], dict[str, Any]]:
        """A, B and C as the kernel takes them, and the numbers that say how they lie."""
        tile, alpha, (batch, m, n, k, e) = self.tile, float(self.frame.alpha), self.arguments.sizes
        numbers: dict[str, Any] = {} if self.arguments.wide else {"alpha": alpha}
        if tile.terms:
            (a, factor), (b, other) = terms_of(a, m, tile.terms), terms_of(b, n, tile.terms)
            numbers["alpha"] = alpha * (factor * other)
            lying = lying._replace(steps=(a.shape[2], 1, b.shape[2], 1, *lying.steps[4:]))
        steps, numbers = lying.steps, {**numbers, "B": batch, "M": m, "N": n}
        if not tile.hopper:
            numbers |= {"K": k, "E": e, **lying.strides, **lying.along_batch()}
            if self._maps(lying):
                a = tensor_map(a, [], (m, k), steps[0], (tile.m, tile.k), laid=False)
                b = tensor_map(b, [], (n, k), steps[2], (tile.n, tile.k), laid=False)
        else:
            outer = [[(1, tile.terms, each.stride(0))] for each in (a, b)] if tile.terms else lying.outer
            a = tensor_map(a, outer[0], (m, k), steps[0], (ROWS, tile.k), laid=True)
            b = tensor_map(b, outer[1], (n, k), steps[2], (tile.n, tile.k), laid=True)
            if tile.terms:
                numbers["sc_n"] = steps[4]
            else:
                c = tensor_map(c, outer[2], (n, e), steps[4], (tile.n, tile.e), laid=True)
                numbers |= {"E": e, **lying.along_batch(("div", "ext"))}
        return {"a": a, "b": b, "c": c}, numbers

    @cached_property
    def _table(self) -> Tensor:
        return self.stretches.shared(self.tile.splits)

    # -- what the kernel is told ------------------------------------------------------------------------------------

    def _compiled(self, form: KernelForm) -> tuple[Kernel, Kernel | None]:
        """The kernel of a form; where columns are shared it leaves the factor of D to the one that joins."""
        tile, functions, settled = self.tile, self.functions, self.stretches.conditions
        own = form._replace(fused=form.fused and tile.splits == 1)
        factor = functions.factor if form.fused else None
        written = {
            "FIRST": functions.first(), "FIRST_SETTLED": functions.first(settled), "REST": functions.rest(),
            "SETTLED": functions.rest(settled), "FACTOR": factor if own.fused else None,
        }  # fmt: skip
        sides: dict[str, Any] = {"BN": tile.n, "BK": tile.k}
        if tile.hopper:
            sides |= {"TERMS": tile.terms, "STAGES": tile.stages} if tile.terms else {"BE": tile.e}
            text = partial(hopper_sums_text if tile.terms else hopper_text, own)
        else:
            sides |= {"BE": tile.e, "BM": tile.m}
            text = partial(jit_text, kernel_lines(own))
        if self.arguments.wide:
            sides["ALPHA"] = float(self.frame.alpha)
        kernel = self.arguments.kernel(text, tile, written, sides)
        if tile.splits == 1:
            return kernel, None
        join = {"SHARES": power_of_two(tile.splits), "BE": min(tile.e, 128), "SUMS": kernel.constants["SUMS"]}
        join["FACTOR"] = None if factor is None else factor.jit
        return kernel, Kernel(partial(jit_text, join_lines(form)), join, {"num_warps": 4})

    def _form(self, values: Values, finished: bool, lying: Lying) -> KernelForm:
        frame, tile = self.frame, self.tile
        _, _, _, k, e = self.arguments.sizes
        few = k if k <= FEW and frame.products.product.itemsize >= 4 else 0
        own = self.arguments.form(values)
        return KernelForm(
            own._replace(scaled=(own.scaled or tile.terms > 0) and not (tile.terms and tile.hopper)),
            self.functions.product, finished,
            self.stretches.present, tuple(map(len, lying.outer)),
            (True, k % tile.k == 0, e % tile.e == 0), few, e == 1, tile.splits > 1, k > tile.k and not few,
            self._maps(lying), tile.terms,
        )  # fmt: skip

    def _maps(self, lying: Lying) -> bool:
        """Whether stages of A and B come by tensor maps: of 16-bit types, where they are matrices that lie along k."""
        tile, item = self.tile, self.frame.products.product.itemsize
        return tile.maps and not tile.hopper and item == 2 and not lying.outer[0] and not lying.outer[1]


# -- known calls: kernels launched again, forward and backward ---------------------------------------------------------


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
        self._fixed = [each for launch in self._steps for each in launch.arguments if isinstance(each, Tensor)]

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
        for launch in self._steps:
            if hooked or not launch.past_triton(addresses):
                launch.by_triton(given)
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
