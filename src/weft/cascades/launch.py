"""The kernels for cascades: their launches.

S is a matrix for each index of the batch: its rows are the labels that A has alone, its columns those of B, and the
second contraction and every reduction sum all of the columns and nothing else. Where the last of many labels of A has
rows enough for a tile, the others join the batch: B and C lack those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.base.caches import cached_property
from weft.base.kept import keep_if_captured
from weft.cascades.arguments import BYTES, Call, KernelArguments, Launches, Lying, held, tensor_map, term_map, terms_of
from weft.cascades.hopper import ROWS, hopper_text
from weft.cascades.hopper_sums import hopper_sums_text
from weft.cascades.kernel import KernelForm, gluon_names, join_text, kernel_text, names
from weft.cascades.masks import Stretches
from weft.cascades.operations import run_whole
from weft.cascades.program import FINISHED, PRODUCT, CascadeProgram, Tensors, Values
from weft.cascades.serving import FEW, CascadeTile
from weft.fn.triton.device_code import jit_function
from weft.gpu.common.constraints import power_of_two


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
        self._made: dict[bool, tuple[Call, Call | None]] = {}

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
        given = (*operands, shared[0], *beside, *shared[1:], self._table, *numbers, *places)
        calls = [kernel._replace(grid=grid, given=given)]
        if join is None:
            return Launches(calls, [], found)
        given = (shared[0], found[0], *shared[1:], *beside, *found[1:], tile.splits, batch, m, e, *places)
        calls.append(join._replace(grid=(batch * m, -(-e // join.named["BE"])), given=given))
        return Launches(calls, shared, found)

    def _room(self, like: Tensor, shares: tuple[int, ...], stored: torch.dtype) -> list[Tensor]:
        """Memory for D, and for peaks and sums, of all columns or of shares of them."""
        batch, m, _, _, e = self.arguments.sizes
        sums, count = self.frame.products.accumulate, len(self.stage.peaks) + len(self.functions.sums)
        d = like.new_empty((*shares, batch, m, e) if self.functions.meets else (1,), dtype=stored)
        return [d, *(like.new_empty((*shares, batch, m), dtype=sums) for _ in range(count))]

    def _finishes(self, raw: bool) -> bool:
        """Whether kernels multiply D with its factor and round it."""
        return not raw and self.functions.factor is not None

    def _operands(self, a: Tensor, b: Tensor, c: Tensor, lying: Lying) -> tuple[tuple[Any, ...], list[Any]]:
        """A, B and C as the kernel takes them, and the numbers that say how they lie."""
        tile, operands, alpha, steps = self.tile, (a, b, c), float(self.frame.alpha), lying.steps
        batch, m, n, k, e = self.arguments.sizes
        if tile.terms:
            (left, factor), (right, other) = terms_of(a, m, tile.terms), terms_of(b, n, tile.terms)
            operands, steps = (left, right, c), (left.shape[2], 1, right.shape[2], 1, *steps[4:])
            numbers = [alpha * (factor * other), batch, m, n]
            if tile.hopper:
                maps = term_map(left, (m, k), (ROWS, tile.k)), term_map(right, (n, k), (tile.n, tile.k))
                return (*maps, c), [*numbers, steps[4]]
        else:
            numbers = [alpha, batch, m, n]
        if tile.hopper:
            sides = ((m, k), (n, k), (n, e))
            tiles = ((ROWS, tile.k), (tile.n, tile.k), (tile.n, tile.e))
            inner = zip(operands, lying.outer, sides, steps[::2], tiles, strict=True)
            return tuple(tensor_map(*each, laid=True) for each in inner), [*numbers, e, *lying.along_batch(2)]
        if self._maps(lying):
            of_a = tensor_map(a, [], (m, k), steps[0], (tile.m, tile.k), laid=False)
            operands = (of_a, tensor_map(b, [], (n, k), steps[2], (tile.n, tile.k), laid=False), c)
        return operands, [*numbers, k, e, *steps, *lying.along_batch()]

    @cached_property
    def _table(self) -> Tensor:
        return self.stretches.shared(self.tile.splits)

    # -- what the kernel is told ------------------------------------------------------------------------------------

    def _compiled(self, form: KernelForm) -> tuple[Call, Call | None]:
        """The kernel of a form; where columns are shared it leaves the factor of D to the one that joins."""
        tile, functions, settled = self.tile, self.functions, self.stretches.conditions
        own = form._replace(fused=form.fused and tile.splits == 1)
        text = kernel_text if not tile.hopper else hopper_sums_text if tile.terms else hopper_text
        kernel = jit_function(text(own), gluon_names if tile.hopper else names)
        factor = functions.factor if form.fused else None
        written = {
            "FIRST": functions.first(), "FIRST_SETTLED": functions.first(settled), "REST": functions.rest(),
            "SETTLED": functions.rest(settled), "FACTOR": factor if own.fused else None,
        }  # fmt: skip
        found = {**self.arguments.constants(written, tile), "BN": tile.n, "BK": tile.k, "BE": tile.e}
        if tile.hopper and tile.terms:
            del found["BE"]
            found |= {"TERMS": tile.terms, "STAGES": tile.stages}
        if not tile.hopper:
            found["BM"] = tile.m
        if tile.splits == 1:
            return Call(kernel, (), (), found), None
        join = {"SHARES": power_of_two(tile.splits), "BE": min(tile.e, 128), "SUMS": found["SUMS"], "num_warps": 4}
        join["FACTOR"] = None if factor is None else factor.jit
        return Call(kernel, (), (), found), Call(jit_function(join_text(form)), (), (), join)

    def _form(self, values: Values, finished: bool, lying: Lying) -> KernelForm:
        frame, tile = self.frame, self.tile
        _, _, _, k, e = self.arguments.sizes
        few = k if k <= FEW and frame.products.product.itemsize >= 4 else 0
        step = self.arguments.form(values)
        return KernelForm(
            step._replace(scaled=(step.scaled or tile.terms > 0) and not (tile.terms and tile.hopper)),
            self.functions.product, finished,
            self.stretches.present, lying.labels,
            (True, k % tile.k == 0, e % tile.e == 0), few, e == 1, tile.splits > 1, k > tile.k and not few,
            self._maps(lying), tile.terms,
        )  # fmt: skip

    def _maps(self, lying: Lying) -> bool:
        """Whether stages of A and B come by tensor maps: of 16-bit types, where they are matrices that lie along k."""
        tile, item = self.tile, self.frame.products.product.itemsize
        return tile.maps and not tile.hopper and item == 2 and not lying.outer[0] and not lying.outer[1]
