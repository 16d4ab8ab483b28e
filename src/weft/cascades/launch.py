"""The kernels for cascades: their launches.

S is a matrix for each index of the batch: its rows are the labels that A has alone, its columns those of B, and the
second contraction and every reduction sum all of the columns and nothing else. Where the last of many labels of A has
rows enough for a tile, the others join the batch: B and C lack those.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.base.caches import cached_property
from weft.base.kept import keep_if_captured
from weft.cascades import step
from weft.cascades.arguments import BYTES, Kernel, KernelArguments, Launches, Lying, held, tensor_map, terms_of
from weft.cascades.hopper import ROWS, hopper_text
from weft.cascades.hopper_sums import hopper_sums_text
from weft.cascades.kernel import KernelForm, jit_text, join_lines, kernel_lines
from weft.cascades.masks import Stretches
from weft.cascades.operations import run_whole
from weft.cascades.program import FINISHED, PRODUCT, CascadeProgram, Tensors, Values
from weft.cascades.serving import FEW, CascadeTile
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
