"""Kernels for cascades: which programs they serve, their tiles and their launches.

S is a matrix for each index of the batch: its rows are the labels that A has alone, its columns those of B, and the
second contraction and every reduction sum all of the columns and nothing else. Where the last of many labels of A has
rows enough for a tile, the others join the batch: B and C lack those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.cascades.elements import ElementFunctions
from weft.cascades.evaluate import finite
from weft.cascades.forward import PRODUCT, Values, run_tail
from weft.cascades.frame import Frame
from weft.cascades.hopper import ROWS, GROUPS, STAGES, WARPS, hopper_text, namespace
from weft.cascades.kernel import KernelForm, kernel_text
from weft.cascades.program import Program
from weft.cascades.step import InputText, LabelText, StepForm, words_of
from weft.cascades.stretches import Stretches
from weft.fn.triton.device_code import jit_function
from weft.gpu.common.constants import TRITON_TYPES
from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.release import FUSION
from weft.spec import Label

_KINDS = ("product", "sum", "amax", "amin")
_LONGEST = 256  # of K and E in a tile that has all of either
_LEAST = 16  # of a side of `tl.dot`
_LEAST_SHARE, _MOST_SPLITS = 4, 64  # tiles of columns for a program that shares them, programs that share a row
_FEW = 8  # terms of S that take less time one by one than as a matrix product of 16
_LEAST_ROWS = 64  # of a label that has the rows of a tile to itself
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BYTES = 16  # that a tensor map's strides are multiples of
_SHARED = 227 << 10  # bytes of shared memory of a program
_OUTER = 3  # labels of the batch in a tensor map

#: D where the kernel has multiplied it with its factor and rounded it.
FINISHED = fx.Graph().placeholder("finished")


class CascadeTile(NamedTuple):
    """Rows and columns of a tile of S, warps, stages of loads, and programs that share the columns of a row.

    `k` and `e` are the indices of K and E that a tile has; `hopper`: the warp-specialised kernel.
    """

    m: int
    n: int
    warps: int
    stages: int
    splits: int = 1
    k: int = _LEAST
    e: int = 1
    hopper: bool = False


class KernelCall(NamedTuple):
    """A kernel, its grid and arguments, and where results are; `finished` says whether D is rounded."""

    kernel: Any
    grid: tuple[int, ...]
    tensors: tuple[Any, ...]
    numbers: tuple[Any, ...]
    constants: dict[str, Any]
    states: tuple[Tensor, ...]
    d: Tensor
    finished: bool


class Sides(NamedTuple):
    """Labels of the batch, of the rows, columns, terms of S and columns of D, as kernels take them."""

    batch: tuple[Label, ...]
    m: tuple[Label, ...]
    n: tuple[Label, ...]
    k: tuple[Label, ...]
    e: tuple[Label, ...]

    @classmethod
    def of(cls, frame: Frame) -> Sides:
        """The sides of a frame."""
        first = frame.first
        e = () if frame.second is None else frame.second.n
        outer = len(first.m) - 1 if len(first.m) > 1 and frame.extents[first.m[-1]] >= _LEAST_ROWS else 0
        return cls((*first.batch, *first.m[:outer]), first.m[outer:], first.n, first.k, e)


def unserved(program: Program, frame: Frame) -> str | None:
    """The reason why no kernel can run a program, in one sentence; None where one can."""
    first, second = frame.first, frame.second
    columns, rows = set(first.n), {*first.batch, *first.m}
    if len(program.stages) != 1 or program.whole:
        return f"the form is '{program.form}', and the kernel makes one pass"
    (stage,) = program.stages
    for target in stage.targets:
        if target.kind not in _KINDS:
            return f"the kernel has no '{target.kind}'"
        if target.kind == "product":
            continue
        if set(program.between.reduced(target.gives)) != columns:
            return "a reduction is not over the columns of S alone"
        if program.between.modes[target.gives] != rows:
            return "what is reduced lacks a mode of S"
    if any(set(program.between.reduced(peak)) != columns for peak in stage.peaks):
        return "a peak is not over the columns of S alone"
    if second is not None and (second.batch, second.m, second.k) != (first.batch, first.m, first.n):
        return "the second contraction does not sum the columns of S alone"
    if frame.products.product not in _TYPES or frame.products.accumulate not in (torch.float32, torch.float64):
        return "the kernel multiplies float16, bfloat16, float32 and float64"
    if any(label not in (*first.batch, *first.m, *first.n) for label in frame.order) or not all(frame.extents.values()):
        return "an extent is 0"
    return None


def _size(frame: Frame, labels: Sequence[Label]) -> int:
    return math.prod(frame.extents[label] for label in labels)


def tile_of(frame: Frame, processors: int = 1, hopper: bool = False) -> CascadeTile:
    """The tile for a frame: as large as registers hold two of its products; few rows have their columns shared.

    `hopper`: the warp-specialised kernel is at hand.
    """
    sides = Sides.of(frame)
    tile = (_hopper_tile(frame, sides) if hopper else None) or _usual_tile(frame, sides)
    if tile.hopper:
        return tile
    programs = _size(frame, sides.batch) * -(-_size(frame, sides.m) // tile.m) * -(-_size(frame, sides.e) // tile.e)
    tiles = _size(frame, sides.n) // tile.n
    splits = min(processors // max(programs, 1), tiles // _LEAST_SHARE, _MOST_SPLITS)
    return tile._replace(splits=max(splits, 1))


def _hopper_tile(frame: Frame, sides: Sides) -> CascadeTile | None:
    """The tile of the warp-specialised kernel; None for what it does not serve."""
    k, e, item = _size(frame, sides.k), _size(frame, sides.e), frame.products.product.itemsize
    rows = _size(frame, sides.m)
    if item != 2 or frame.second is None or k * item % _BYTES or e * item % _BYTES or rows < _LEAST_ROWS:
        return None
    if not _LEAST <= max(k, e) <= _LONGEST:
        return None
    k, e = (max(power_of_two(each), _LEAST) for each in (k, e))
    for n in (128, 64, 32):
        shared = item * (GROUPS * ROWS * k + STAGES * n * (k + e) + ROWS * e)
        if shared <= _SHARED - 1024 and e + n <= 256 + _LEAST * 4:
            return CascadeTile(GROUPS * ROWS, n, WARPS, STAGES, k=k, e=e, hopper=True)
    return None


def _usual_tile(frame: Frame, sides: Sides) -> CascadeTile:
    k, e = (_size(frame, each) for each in (sides.k, sides.e))
    item = frame.products.product.itemsize
    staged = k > _LONGEST
    deep = (64 if item == 2 else 32) if staged else max(power_of_two(k), _LEAST)
    broad = 1 if e == 1 else min(max(power_of_two(e), _LEAST), _LONGEST if item < 8 else 64)
    widest = max(deep, broad)
    rows = max(power_of_two(_size(frame, sides.m)), _LEAST)
    if item >= 4:
        return CascadeTile(min(rows, 64), 64 if staged and e == 1 else 32, 4, 3 if staged else 2, k=deep, e=broad)
    if staged:
        n = 256 if broad <= _LEAST else 64
        return CascadeTile(min(rows, 128), n, 8 if rows >= 128 else 4, 3, k=deep, e=broad)
    m = min(rows, 128)
    n = 128 if widest <= 64 else 64 if widest <= 128 else 32
    return CascadeTile(m, n, 8 if m == 128 else 4, 3 if widest <= 128 else 2, k=deep, e=broad)


class CascadeLaunch:
    """The kernel for a program: call it with arranged tensors."""

    def __init__(self, program: Program, frame: Frame, known: Mapping[fx.Node, Label], tile: CascadeTile) -> None:
        self.program, self.frame, self.known, self.tile = program, frame, known, tile
        self.functions = ElementFunctions(program, frame)
        self.stage = self.functions.stage
        self.sides = Sides.of(frame)
        self.stretches = Stretches(program, frame, known, (self.sides.m, self.sides.n), (tile.m, tile.n))
        pairs = (("batch", self.sides.batch), ("m", self.sides.m), ("n", self.sides.n))
        self._group = {label: name for name, labels in pairs for label in labels}
        self._made: dict[bool, tuple[Any, dict[str, Any], StepForm]] = {}

    def groups(self, at: int) -> tuple[int, ...]:
        """The dimensions of an arranged A, B or C that are one stretch together."""
        outer = len(self.sides.batch) if at == 0 else len(self.frame.first.batch)
        inner = (self.sides.m, self.sides.n, self.sides.e)[at]
        return *(1,) * outer, len(inner), len(self.sides.n if at == 2 else self.sides.k)

    def ready(self, tensor: Tensor, at: int) -> Tensor:
        """An arranged A, B or C as the kernel reads it."""
        if not self.tile.hopper:
            return tensor
        count, item = len(self.groups(at)) - 2, tensor.element_size()
        unit = tensor.dim() - 1 if at < 2 else count  # of C the columns of D
        steps = [tensor.stride(dim) for dim in range(tensor.dim()) if dim != unit and tensor.shape[dim] > 1]
        fits = tensor.stride(unit) == 1 or tensor.shape[unit] == 1
        if fits and tensor.data_ptr() % _BYTES == 0 and all(step * item % _BYTES == 0 for step in steps):
            return tensor
        if at < 2:
            return tensor.clone(memory_format=torch.contiguous_format)
        order = (*range(count), *range(count + len(self.sides.e), tensor.dim()), *range(count, count + len(self.sides.e)))
        back = sorted(range(tensor.dim()), key=order.__getitem__)
        return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)

    def __call__(self, a: Tensor, b: Tensor, c: Tensor | None, given: Values, raw: bool) -> Values:
        """Every whole value by its node, as `forward.run` has them; D finished under `FINISHED` unless it is `raw`."""
        frame, values = self.frame, dict(given)
        run_tail(self.program, frame, self.program.prelude, values)
        call = self.call(a, b, c, values, raw)
        options: dict[str, Any] = {"num_warps": self.tile.warps, "num_stages": self.tile.stages}
        if frame.device.type == "cuda":
            options |= FUSION
        call.kernel[call.grid](*call.tensors, *call.numbers, **call.constants, **options)
        states, d = self._joined(call) if self.tile.splits > 1 else (call.states, call.d)
        results = (*self.stage.peaks, *(target.gives for target in self.functions.sums))
        for node, state in zip(results, states, strict=True):
            values[node] = state.reshape(frame.shape(self.program.between.modes[node]))
        if self.functions.meets:
            assert frame.second is not None
            shape = [frame.extents[label] for label in frame.second.result]
            values[FINISHED if call.finished else PRODUCT] = d.reshape(shape)
        run_tail(self.program, frame, self.stage.tail, values)
        return values

    def call(self, a: Tensor, b: Tensor, c: Tensor | None, values: Values, raw: bool) -> KernelCall:
        """The kernel and all that it is given."""
        frame, tile, sides = self.frame, self.tile, self.sides
        splits, sums = tile.splits, frame.products.accumulate
        finished = not raw and splits == 1 and self.functions.factor is not None
        batch, m, n, k, e = (_size(frame, each) for each in sides)
        states = tuple(
            torch.empty((splits, batch, m), dtype=sums, device=frame.device)
            for _ in (*self.stage.peaks, *self.functions.sums)
        )
        stored = frame.stored if finished else sums
        d = torch.empty((splits, batch, m, e) if self.functions.meets else 1, dtype=stored, device=frame.device)
        operands = [values[node] for node in self.functions.inputs if node not in self.known]
        outer = [self._outer(each, at) for at, each in enumerate((a, b, c)) if each is not None]
        while len(outer) < 3:
            outer.append([])
        if finished not in self._made:
            written = self._form(values, finished, tuple(map(len, outer)))
            self._made[finished] = self._kernel(written), self._constants(finished), written.step
        kernel, constants, form = self._made[finished]
        numbers: list[Any] = [float(frame.alpha), batch, m, n]
        rows_of_a = _step(a, len(self.groups(0)) - 2, len(sides.m)), _step(a, -len(sides.k), len(sides.k))
        rows_of_b = _step(b, len(self.groups(1)) - 2, len(sides.n)), _step(b, -len(sides.k), len(sides.k))
        of_c = (0, 0)
        if c is not None:
            of_c = _step(c, -len(sides.n), len(sides.n)), _step(c, len(self.groups(2)) - 2, len(sides.e))
        tensors: tuple[Any, ...] = (a, b, a if c is None else c)
        if tile.hopper:
            assert c is not None
            numbers += [e, *(part for each in outer for div, extent, _ in each for part in (div, extent))]
            rows = ((m, rows_of_a, k, ROWS, tile.k), (n, rows_of_b, k, tile.n, tile.k), (n, of_c, e, tile.n, tile.e))
            tensors = tuple(
                _descriptor(each, labels, extents)
                for each, labels, extents in zip((a, b, c), outer, rows, strict=True)
            )
        else:
            numbers += [k, e, *rows_of_a, *rows_of_b, *of_c, *(part for each in outer for label in each for part in label)]
        tensors = (*tensors, d, *operands, *states, self._table)
        rows_of_tiles = batch * -(-m // tile.m)
        grid = (rows_of_tiles,) if tile.hopper else (rows_of_tiles, splits, -(-e // tile.e))
        return KernelCall(
            kernel, grid, tensors, (*numbers, *self._places(values, form)), constants, states, d, finished
        )  # fmt: skip

    def _outer(self, tensor: Tensor, at: int) -> list[tuple[int, int, int]]:
        """Divisor in the batch's index, extent and stride of each of its labels that an operand moves along."""
        batch = self.sides.batch
        own = batch if at == 0 else self.frame.first.batch
        return [
            (_size(self.frame, batch[place + 1 :]), tensor.shape[place], tensor.stride(place))
            for place in range(len(own))
            if tensor.shape[place] > 1
        ]

    @cached_property
    def _table(self) -> Tensor:
        return self.stretches.shared(self.tile.splits)

    def _joined(self, call: KernelCall) -> tuple[list[Tensor], Tensor]:
        """States and D of all shares of the columns together."""
        count = len(self.stage.peaks)
        found, scales = [], []
        for peak in call.states[:count]:
            whole = finite(peak.amax(0))
            found.append(whole)
            scales.append(torch.where(peak == -torch.inf, 0.0, torch.exp(finite(peak) - whole)))
        peaks = list(self.stage.peaks)
        for target, state in zip(self.functions.sums, call.states[count:], strict=True):
            if target.kind == "sum":
                found.append((state if target.scale is None else state * scales[peaks.index(target.scale)]).sum(0))
            else:
                found.append(state.amax(0) if target.kind == "amax" else state.amin(0))
        if not self.functions.meets:
            return found, call.d
        scale = self.functions.meets[0].scale
        return found, (call.d if scale is None else call.d * scales[peaks.index(scale)][..., None]).sum(0)

    # -- what the kernel is told ------------------------------------------------------------------------------------

    def _kernel(self, form: KernelForm) -> Any:
        return jit_function(hopper_text(form), namespace) if self.tile.hopper else jit_function(kernel_text(form))

    def _constants(self, finished: bool) -> dict[str, Any]:
        tile, functions, settled = self.tile, self.functions, self.stretches.conditions
        written = {
            "FIRST": functions.first(), "FIRST_SETTLED": functions.first(settled), "REST": functions.rest(),
            "SETTLED": functions.rest(settled), "FACTOR": functions.factor if finished else None,
        }  # fmt: skip
        types = self.frame.products
        found = {"BN": tile.n, "BK": tile.k, "BE": tile.e}
        found |= {name: None if function is None else function.jit for name, function in written.items()}
        found |= {"SUMS": TRITON_TYPES[types.accumulate].meant, "PRODUCT": TRITON_TYPES[types.product].meant}
        return found if tile.hopper else {"BM": tile.m, **found, "PRECISION": types.precision}

    def _form(self, values: Values, finished: bool, outer: tuple[int, ...]) -> KernelForm:
        frame, tile, functions = self.frame, self.tile, self.functions
        k, e = (_size(frame, each) for each in (self.sides.k, self.sides.e))
        inputs = tuple(self._input_text(node, values) for node in functions.inputs)
        step = StepForm(
            inputs, functions.peaks, functions.sum_texts, bool(functions.meets),
            frame.products.accumulate == torch.float64,
        )  # fmt: skip
        few = k if k <= _FEW and frame.products.product.itemsize >= 4 else 0
        return KernelForm(
            step, functions.product, finished, self.stretches.present, outer,  # type: ignore[arg-type]
            (True, k % tile.k == 0, e % tile.e == 0), few, e == 1, tile.splits > 1, k > tile.k and not few,
        )  # fmt: skip

    def _input_text(self, node: fx.Node, values: Values) -> InputText:
        known, labels = node in self.known, []
        for label in self._labels(node, values):
            group = self._group[label]
            along = getattr(self.sides, group)
            at = along.index(label)
            inner, outer = _size(self.frame, along[at + 1 :]), _size(self.frame, along[:at])
            labels.append(LabelText(group, inner > 1, outer > 1))
        reach = sum(extent * step for extent, step in zip(values[node].shape, values[node].stride(), strict=True))
        return InputText(tuple(labels), known, not known and reach >= 2**31)

    def _labels(self, node: fx.Node, values: Values) -> list[Label]:
        """The labels that an input moves along."""
        if node in self.known:
            return [self.known[node]]
        return [label for label, extent in zip(self.frame.order, values[node].shape, strict=True) if extent > 1]

    def _places(self, values: Values, form: StepForm) -> list[int]:
        """What `step.parameters` names."""
        found = []
        for node, text in zip(self.functions.inputs, form.inputs, strict=True):
            for label, each in zip(self._labels(node, values), text.labels, strict=True):
                along = getattr(self.sides, each.group)
                numbers = {
                    "div": _size(self.frame, along[along.index(label) + 1 :]), "ext": self.frame.extents[label],
                    "step": values[node].stride(self.frame.order.index(label)),
                }  # fmt: skip
                found += [numbers[word] for word in words_of(each, text.coordinate)]
        return found


def _step(tensor: Tensor, start: int, count: int) -> int:
    """The stride of a group of dimensions: that of its last one with more than one index."""
    start %= tensor.dim()
    steps = [tensor.stride(dim) for dim in range(start, start + count) if tensor.shape[dim] > 1]
    return steps[-1] if steps else 0


def _descriptor(tensor: Tensor, outer: Sequence[tuple[int, int, int]], inner: tuple[int, Any, int, int, int]) -> Any:
    """A tensor map of (batch, rows, columns), tiles of some rows and columns."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    rows, (step, _), columns, tile_rows, tile_columns = inner
    item = tensor.element_size()
    block = [*(1 for _ in outer), tile_rows, tile_columns]
    shape = [*(extent for _, extent, _ in outer), rows, columns]
    strides = [*(stride for _, _, stride in outer), step or max(columns * item, _BYTES) // item, 1]
    layout = NVMMASharedLayout.get_default_for(block, TRITON_TYPES[tensor.dtype].meant)
    return TensorDescriptor(tensor, shape, strides, block, layout)
