"""The kernels for cascades: their launches.

S is a matrix for each index of the batch: its rows are the labels that A has alone, its columns those of B, and the
second contraction and every reduction sum all of the columns and nothing else. Where the last of many labels of A has
rows enough for a tile, the others join the batch: B and C lack those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.base.cached import cached_property
from weft.base.kept import keep_if_captured
from weft.cascades.arguments import BYTES, KernelArguments, Outer, launched, tensor_map
from weft.cascades.forward import FINISHED, PRODUCT, Values, run_tail
from weft.cascades.frame import Frame
from weft.cascades.hopper import ROWS, hopper_text, namespace
from weft.cascades.hopper_sums import hopper_sums_text
from weft.cascades.join import join_text
from weft.cascades.kernel import KernelForm, kernel_text, names
from weft.cascades.program import Program
from weft.cascades.replay import Launched, Replay, Room, Slot, in_order
from weft.cascades.serving import FEW, CascadeTile
from weft.cascades.step import StepForm
from weft.cascades.stretches import Stretches
from weft.cascades.terms import TYPES, held, terms_of
from weft.fn.triton.device_code import jit_function
from weft.gpu.common.constants import TRITON_TYPES
from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.release import FUSION
from weft.spec import Label


class KernelCall(NamedTuple):
    """A kernel, its grid and arguments, and where results are; `finished` says whether D is to be rounded."""

    kernel: Any
    grid: tuple[int, ...]
    tensors: tuple[Any, ...]
    numbers: tuple[Any, ...]
    constants: dict[str, Any]
    states: tuple[Tensor, ...]
    d: Tensor
    finished: bool


class _Made(NamedTuple):
    """A kernel, its constants, the form of its step, and the kernel that joins its states with its constants."""

    kernel: Any
    constants: dict[str, Any]
    step: StepForm
    join: Any
    join_constants: dict[str, Any]


class CascadeLaunch:
    """The kernel for a program: call it with arranged tensors."""

    def __init__(
        self, program: Program, frame: Frame, known: Mapping[fx.Node, Label], tile: CascadeTile,
        exact: CascadeTile | None = None,
    ) -> None:  # fmt: skip
        """`exact`: the tile for operands that terms do not hold."""
        self.program, self.frame, self.tile = program, frame, tile
        self._exact = None if exact is None else CascadeLaunch(program, frame, known, exact)
        self.arguments = KernelArguments(program, frame, known)
        self.functions = self.arguments.functions
        self.stage = self.functions.stage
        sides = self.arguments.sides
        self.stretches = Stretches(program, frame, known, (sides.m, sides.n), (tile.m, tile.n))
        self._made: dict[bool, _Made] = {}

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

    def __call__(self, a: Tensor, b: Tensor, c: Tensor | None, given: Values, raw: bool) -> Values:
        """Every whole value by its node, as `forward.run` has them; D finished under `FINISHED` unless it is `raw`."""
        if self._exact is not None and not held(a, b):
            return self._exact(a, b, c, given, raw)
        frame, values = self.frame, dict(given)
        run_tail(self.program, frame, self.program.prelude, values)
        call = self.call(a, b, c, values, raw)
        self._run(call)
        states, d = self._joined(call, values) if self.tile.splits > 1 else (call.states, call.d)
        results = (*self.stage.peaks, *(target.gives for target in self.functions.sums))
        for node, state in zip(results, states, strict=True):
            values[node] = state.reshape(frame.shape(self.program.between.modes[node]))
        if self.functions.meets:
            assert frame.second is not None
            shape = [frame.extents[label] for label in frame.second.result]
            values[FINISHED if call.finished else PRODUCT] = d.reshape(shape)
        run_tail(self.program, frame, self.stage.tail, values)
        return values

    def _run(self, call: KernelCall) -> Any:
        """Launch the kernel; what Triton has compiled."""
        options: dict[str, Any] = {"num_warps": self.tile.warps, "num_stages": self.tile.stages}
        if self.frame.device.type == "cuda":
            options |= FUSION
        return launched(call.kernel, call.grid, (*call.tensors, *call.numbers), {**call.constants, **options})

    def prepare(self, tensors: Sequence[Tensor | None], values: Values) -> None:
        """Compile the kernel for tensors without memory."""
        a, b, c = tensors
        assert a is not None
        assert b is not None
        call = self.call(a, b, c, values, False)
        self._run(call)
        if self.tile.splits > 1:
            self._join(call, values, *self._joint_room(call))

    def replay(self, tensors: Sequence[Tensor], values: Values, places: Sequence[int], states: bool) -> Replay:
        """Calls with D for a result, on operands of the layouts of A, B and C: those are at `places` in a call.

        `states`: peaks and sums are results too.
        """
        a, b, c = tensors
        call = self.call(a, b, c, values, False)
        operands = range(3, 3 + len(self.arguments.operands(values)))
        base = operands.stop
        made, splits = self._made[True], self.tile.splits
        maps = [each if hasattr(each, "base") else None for each in call.tensors[:3]]
        of_tensors = [Slot(at, each) for at, each in zip(places, maps, strict=True)]
        shares = [Slot(base + at) for at in range(1 + len(call.states))]
        arguments = [*of_tensors, shares[0], *map(Slot, operands), *shares[1:], self._table, *call.numbers]
        rooms = [Room(tuple(each.shape), each.dtype) for each in (call.d, *call.states)]
        launched = [Launched(self._run(call), call.grid, (*arguments, *in_order(call.kernel, call.constants)))]
        if splits > 1:
            joined = [Slot(base + len(rooms) + at) for at in range(len(rooms))]
            numbers = (splits, *self.arguments.sizes[:2], self.arguments.sizes[4])
            arguments = [shares[0], joined[0], *shares[1:], *map(Slot, operands), *joined[1:], *numbers]
            arguments += self.arguments.places(values, made.step)
            compiled, grid = self._join(call, values, *self._joint_room(call))
            launched.append(Launched(compiled, grid, (*arguments, *in_order(made.join, made.join_constants))))
            rooms += [Room(each.shape[1:], each.dtype) for each in rooms]
            rooms[len(rooms) // 2] = rooms[len(rooms) // 2]._replace(dtype=self.frame.stored)
        result = 0 if splits == 1 else len(rooms) // 2
        results = range(result, len(rooms) if states else result + 1)
        return Replay(launched, rooms, self.frame.device, results)

    def call(self, a: Tensor, b: Tensor, c: Tensor | None, values: Values, raw: bool) -> KernelCall:
        """The kernel and all that it is given."""
        frame, tile, arguments = self.frame, self.tile, self.arguments
        splits, sums = tile.splits, frame.products.accumulate
        finished = not raw and self.functions.factor is not None
        batch, m, _, _, e = arguments.sizes
        states = tuple(
            torch.empty((splits, batch, m), dtype=sums, device=a.device)
            for _ in (*self.stage.peaks, *self.functions.sums)
        )
        stored = frame.stored if finished and splits == 1 else sums
        d = torch.empty((splits, batch, m, e) if self.functions.meets else (1, 1), dtype=stored, device=a.device)
        outer, steps = arguments.outer((a, b, c)), arguments.steps(a, b, c)
        if finished not in self._made:
            self._made[finished] = self._compiled(self._form(values, finished, outer))
        made = self._made[finished]
        keep_if_captured(a.device, self._table)
        operands, numbers = self._operands(a, b, a if c is None else c, outer, steps)
        tensors = (*operands, d, *arguments.operands(values), *states, self._table)
        numbers += arguments.places(values, made.step)
        rows = batch * -(-m // tile.m)
        grid = (rows,) if tile.hopper else (rows, splits, -(-e // tile.e))
        return KernelCall(made.kernel, grid, tensors, tuple(numbers), made.constants, states, d, finished)

    def _operands(
        self, a: Tensor, b: Tensor, c: Tensor, outer: Sequence[Outer], steps: tuple[int, ...]
    ) -> tuple[tuple[Any, ...], list[Any]]:
        """A, B and C as the kernel takes them, and the numbers that say how they lie."""
        tile, operands, alpha = self.tile, (a, b, c), float(self.frame.alpha)
        batch, m, n, k, e = self.arguments.sizes
        if tile.terms:
            (left, factor), (right, other) = terms_of(a, m, tile.terms), terms_of(b, n, tile.terms)
            operands, steps = (left, right, c), (left.shape[2], 1, right.shape[2], 1, *steps[4:])
            numbers = [alpha * (factor * other), batch, m, n]
            if tile.hopper:
                each = ((left, m, ROWS), (right, n, tile.n))
                maps = [
                    tensor_map(x, [(1, tile.terms, x.stride(0))], (rows, k), x.shape[2], (of_tile, tile.k), laid=True)
                    for x, rows, of_tile in each
                ]
                return (*maps, c), [*numbers, steps[4]]
        else:
            numbers = [alpha, batch, m, n]
        if tile.hopper:
            sides = ((m, k), (n, k), (n, e))
            tiles = ((ROWS, tile.k), (tile.n, tile.k), (tile.n, tile.e))
            inner = zip(operands, outer, sides, steps[::2], tiles, strict=True)
            maps = [tensor_map(*each, laid=True) for each in inner]
            return tuple(maps), [*numbers, e, *(part for each in outer for label in each for part in label[:2])]
        if self._maps(outer):
            of_a = tensor_map(a, [], (m, k), steps[0], (tile.m, tile.k), laid=False)
            operands = (of_a, tensor_map(b, [], (n, k), steps[2], (tile.n, tile.k), laid=False), c)
        return operands, [*numbers, k, e, *steps, *(part for each in outer for label in each for part in label)]

    @cached_property
    def _table(self) -> Tensor:
        return self.stretches.shared(self.tile.splits)

    def _joined(self, call: KernelCall, values: Values) -> tuple[list[Tensor], Tensor]:
        """States and D of all shares of the columns together."""
        d, states = self._joint_room(call)
        self._join(call, values, d, states)
        return states, d

    def _joint_room(self, call: KernelCall) -> tuple[Tensor, list[Tensor]]:
        """Memory for D and states."""
        stored = self.frame.stored if call.finished else self.frame.products.accumulate
        d = call.d.new_empty(call.d.shape[1:], dtype=stored)
        return d, [each.new_empty(each.shape[1:]) for each in call.states]

    def _join(
        self, call: KernelCall, values: Values, d: Tensor, states: Sequence[Tensor]
    ) -> tuple[Any, tuple[int, int]]:
        """Launch the kernel that joins; what Triton has compiled, and its grid."""
        made = self._made[call.finished]
        batch, m, _, _, e = self.arguments.sizes
        grid = (batch * m, -(-e // made.join_constants["BE"]))
        given = (call.d, d, *call.states, *self.arguments.operands(values), *states, self.tile.splits, batch, m, e)
        places = self.arguments.places(values, made.step)
        return launched(made.join, grid, (*given, *places), {**made.join_constants, "num_warps": 4}), grid

    # -- what the kernel is told ------------------------------------------------------------------------------------

    def _compiled(self, form: KernelForm) -> _Made:
        """The kernel of a form; where columns are shared it leaves the factor of D to the one that joins."""
        tile, functions, settled, types = self.tile, self.functions, self.stretches.conditions, self.frame.products
        factor = None if functions.factor is None or not form.fused else functions.factor.jit
        own = form._replace(fused=form.fused and tile.splits == 1)
        text = kernel_text if not tile.hopper else hopper_sums_text if tile.terms else hopper_text
        kernel = jit_function(text(own), namespace if tile.hopper else names)
        written = {
            "FIRST": functions.first(), "FIRST_SETTLED": functions.first(settled), "REST": functions.rest(),
            "SETTLED": functions.rest(settled),
        }  # fmt: skip
        sums = TRITON_TYPES[types.accumulate].meant
        found = {"BN": tile.n, "BK": tile.k, "BE": tile.e, "FACTOR": factor if own.fused else None, "SUMS": sums}
        found |= {name: None if function is None else function.jit for name, function in written.items()}
        found["PRODUCT"] = TRITON_TYPES[TYPES.get(tile.terms, types.product)].meant
        if tile.hopper and tile.terms:
            del found["BE"]
            found |= {"TERMS": tile.terms, "STAGES": tile.stages}
        if not tile.hopper:
            found |= {"BM": tile.m, "PRECISION": types.as_they_are}
        if tile.splits == 1:
            return _Made(kernel, found, form.step, None, {})
        join = {"SHARES": power_of_two(tile.splits), "BE": min(tile.e, 128), "FACTOR": factor, "SUMS": sums}
        return _Made(kernel, found, form.step, jit_function(join_text(form)), join)

    def _form(self, values: Values, finished: bool, outer: Sequence[Outer]) -> KernelForm:
        frame, tile = self.frame, self.tile
        _, _, _, k, e = self.arguments.sizes
        few = k if k <= FEW and frame.products.product.itemsize >= 4 else 0
        of_a, of_b, of_c = map(len, outer)
        step = self.arguments.form(values)
        return KernelForm(
            step._replace(scaled=(step.scaled or tile.terms > 0) and not (tile.terms and tile.hopper)),
            self.functions.product, finished,
            self.stretches.present, (of_a, of_b, of_c),
            (True, k % tile.k == 0, e % tile.e == 0), few, e == 1, tile.splits > 1, k > tile.k and not few,
            self._maps(outer), tile.terms,
        )  # fmt: skip

    def _maps(self, outer: Sequence[Outer]) -> bool:
        """Whether stages of A and B come by tensor maps: of 16-bit types, where they are matrices that lie along k."""
        tile, item = self.tile, self.frame.products.product.itemsize
        return tile.maps and not tile.hopper and item == 2 and not outer[0] and not outer[1]
