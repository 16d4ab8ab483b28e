"""The Triton kernel for cascades: which it serves, the functions it is given, its tiles and its launch.

S is a matrix for each index of the batch: its rows are the labels that A has alone, its columns those of B, and the
second contraction and every reduction sum all of the columns and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from weft.cascades.evaluate import finite
from weft.cascades.forward import PRODUCT, Values, run_tail
from weft.cascades.frame import Frame
from weft.cascades.kernel import InputText, KernelForm, kernel_text
from weft.cascades.masks import kept
from weft.cascades.program import Program
from weft.fn.pointwise import RecordedFunction
from weft.fn.reductions import is_reduction
from weft.fn.triton.device_code import jit_function
from weft.gpu.common.constants import TRITON_TYPES
from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.release import FUSION
from weft.spec import Label

_KINDS = ("product", "sum", "amax", "amin")
_LONGEST = 256  # of K and E: a tile has all of both
_LEAST = 16  # of a side of `tl.dot`
_LEAST_SHARE, _MOST_SPLITS = 4, 64  # tiles of columns for a program that shares them, programs that share a row
_FEW = 8  # terms of S that take less time one by one than as a matrix product of 16
_TYPES = (torch.float16, torch.bfloat16, torch.float32)

#: D where the kernel has multiplied it with its factor and rounded it.
FINISHED = fx.Graph().placeholder("finished")


class CascadeTile(NamedTuple):
    """Rows and columns of a tile of S, warps, stages of loads, and programs that share the columns of a row."""

    m: int
    n: int
    warps: int
    stages: int
    splits: int = 1


class KernelCall(NamedTuple):
    """A kernel, its grid and arguments, and where results are; `finished` says whether D is rounded."""

    kernel: Any
    grid: tuple[int, int]
    tensors: tuple[Tensor, ...]
    numbers: tuple[Any, ...]
    constants: dict[str, Any]
    states: tuple[Tensor, ...]
    d: Tensor
    finished: bool


def unserved(program: Program, frame: Frame) -> str | None:
    """The reason why the kernel cannot run a program, in one sentence; None where it can."""
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
    if frame.products.product not in _TYPES or frame.products.accumulate != torch.float32:
        return "the kernel multiplies float16, bfloat16 and float32"
    longest = max(_size(frame, first.k), 0 if second is None else _size(frame, second.n))
    if longest > _LONGEST:
        return f"a tile has all of the modes that S sums and that C brings, at most {_LONGEST} indices of either"
    if any(label not in (*first.batch, *first.m, *first.n) for label in frame.order) or not all(frame.extents.values()):
        return "an extent is 0"
    return None


def _size(frame: Frame, labels: Sequence[Label]) -> int:
    size = 1
    for label in labels:
        size *= frame.extents[label]
    return size


def tile_of(frame: Frame, processors: int = 1) -> CascadeTile:
    """The tile for a frame: as large as registers hold two of its products; few rows have their columns shared."""
    tile = _usual_tile(frame)
    programs = _size(frame, frame.first.batch) * -(-_size(frame, frame.first.m) // tile.m)
    tiles = _size(frame, frame.first.n) // tile.n
    splits = min(processors // max(programs, 1), tiles // _LEAST_SHARE, _MOST_SPLITS)
    return tile._replace(splits=max(splits, 1))


def _usual_tile(frame: Frame) -> CascadeTile:
    first, second = frame.first, frame.second
    widest = max(_size(frame, first.k), 1 if second is None else _size(frame, second.n))
    rows = power_of_two(_size(frame, first.m))
    if frame.products.product.itemsize == 4:
        return CascadeTile(min(max(rows, _LEAST), 64), 32, 4, 2)
    m = min(max(rows, _LEAST), 128)
    n = 128 if widest <= 64 else 64 if widest <= 128 else 32
    return CascadeTile(m, n, 8 if m == 128 else 4, 3 if widest <= 128 else 2)


class CascadeLaunch:
    """The kernel for a program: call it with arranged tensors."""

    def __init__(self, program: Program, frame: Frame, known: Mapping[fx.Node, Label], tile: CascadeTile) -> None:
        self.program, self.frame, self.known, self.tile = program, frame, known, tile
        (self.stage,) = program.stages
        self.inputs = (*program.between.inputs[1:], *self.stage.known)
        self.sums = [target for target in self.stage.targets if target.kind != "product"]
        self.meets = [target for target in self.stage.targets if target.kind == "product"]
        self._group = {
            label: name
            for name, labels in (("batch", frame.first.batch), ("m", frame.first.m), ("n", frame.first.n))
            for label in labels
        }

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
        results = (*self.stage.peaks, *(target.gives for target in self.sums))
        for node, state in zip(results, states, strict=True):
            values[node] = state.reshape(frame.shape(self.program.between.modes[node]))
        if self.meets:
            assert frame.second is not None
            shape = [frame.extents[label] for label in frame.second.result]
            values[FINISHED if call.finished else PRODUCT] = d.reshape(shape)
        run_tail(self.program, frame, self.stage.tail, values)
        return values

    def call(self, a: Tensor, b: Tensor, c: Tensor | None, values: Values, raw: bool) -> KernelCall:
        """The kernel and all that it is given."""
        frame = self.frame
        first, second = frame.first, frame.second
        splits = self.tile.splits
        factor = None if raw or splits > 1 else self._factor
        batch, m, n, k = (_size(frame, each) for each in (first.batch, first.m, first.n, first.k))
        e = 1 if second is None else _size(frame, second.n)
        states = tuple(
            torch.empty((splits, batch, m), dtype=torch.float32, device=frame.device)
            for _ in (*self.stage.peaks, *self.sums)
        )
        stored = frame.stored if factor is not None else torch.float32
        d = torch.empty((splits, batch, m, e) if self.meets else 1, dtype=stored, device=frame.device)
        operands = (values[node] for node in self.inputs if node not in self.known)
        tensors = (a, b, a if c is None else c, d, *operands, *states, self._stretches)
        steps = (
            *_groups(a, (len(first.batch), len(first.m), len(first.k))),
            *_groups(b, (len(first.batch), len(first.n), len(first.k))),
        )
        of_c = (0, 0, 0)
        if c is not None and second is not None:
            of_batch, of_e, of_n = _groups(c, (len(second.batch), len(second.n), len(second.k)))
            of_c = (of_batch, of_n, of_e)
        numbers = (float(frame.alpha), batch, m, n, k, e, *steps, *of_c, *self._places(values))
        constants = {
            "BM": self.tile.m, "BN": self.tile.n, "BK": max(power_of_two(k), _LEAST),
            "BE": 1 if e == 1 else max(power_of_two(e), _LEAST), "FIRST": self._function(self._exponents, ()),
            "FIRST_SETTLED": self._function(self._exponents, self._conditions),
            "REST": self._function(self._summands, ()), "SETTLED": self._function(self._summands, self._conditions),
            "FACTOR": None if factor is None else factor.jit, "SUMS": TRITON_TYPES[torch.float32].meant,
            "PRODUCT": TRITON_TYPES[frame.products.product].meant, "PRECISION": frame.products.precision,
        }  # fmt: skip
        kernel = jit_function(kernel_text(self._form(values, factor is not None)))
        grid = (batch * -(-m // self.tile.m), splits)
        return KernelCall(kernel, grid, tensors, numbers, constants, states, d, factor is not None)

    def _joined(self, call: KernelCall) -> tuple[list[Tensor], Tensor]:
        """States and D of all shares of the columns together."""
        count = len(self.stage.peaks)
        found, scales = [], []
        for peak in call.states[:count]:
            whole = finite(peak.amax(0))
            found.append(whole)
            scales.append(torch.where(peak == -torch.inf, 0.0, torch.exp(finite(peak) - whole)))
        peaks = list(self.stage.peaks)
        for target, state in zip(self.sums, call.states[count:], strict=True):
            if target.kind == "sum":
                found.append((state if target.scale is None else state * scales[peaks.index(target.scale)]).sum(0))
            else:
                found.append(state.amax(0) if target.kind == "amax" else state.amin(0))
        if not self.meets:
            return found, call.d
        scale = self.meets[0].scale
        return found, (call.d if scale is None else call.d * scales[peaks.index(scale)][..., None]).sum(0)

    # -- functions -------------------------------------------------------------------------------------------------

    @property
    def _exponents(self) -> list[fx.Node]:
        return [node.all_input_nodes[0] for node in self.stage.peaks]

    @property
    def _summands(self) -> list[fx.Node]:
        return [target.node for target in (*self.sums, *self.meets)]

    def _function(self, results: Sequence[fx.Node], settled: Collection[fx.Node]) -> Any:
        """The Triton function of an element of S, of the inputs and of peaks, for these results."""
        if not results:
            return None
        peaks = self.stage.peaks if results == self._summands else ()
        return self._written(results, (self.program.between.inputs[0], *self.inputs, *peaks), settled).jit

    @cached_property
    def _factor(self) -> RecordedFunction | None:
        """The factor of D as a function of small inputs and of sums; None where it is made of more than those."""
        node = self.program.factor
        if not self.meets:
            return None
        small = [each for each in self.inputs if not self._columns(each)]
        given = (*small, *self.stage.peaks, *(target.gives for target in self.sums))
        if node is None:
            return self._written([], given, (), one=True)
        behind = self.program.between.ancestors([node], frozenset(given))
        if any((is_reduction(each) or each.op == "placeholder") and each not in given for each in behind):
            return None
        return self._written([node], given, ())

    def _columns(self, node: fx.Node) -> bool:
        return any(label in self.program.between.modes[node] for label in self.frame.first.n)

    def _written(
        self, results: Sequence[fx.Node], given: Sequence[fx.Node], settled: Collection[fx.Node], one: bool = False
    ) -> RecordedFunction:
        """Nodes of the graph as a function of others; settled choices are their first alternative."""
        graph = fx.Graph()
        new: dict[fx.Node, fx.Node] = {}
        for at, node in enumerate(given):
            new[node] = graph.placeholder(f"x{at}")
            new[node].meta.update(dtype=node.meta["dtype"], scalar=False)
        behind = self.program.between.ancestors(list(results), frozenset(given))
        for node in self.program.between.calls:
            if node in behind and node not in new:
                first = node.args[1] if node in settled else None
                new[node] = graph.node_copy(node, new.__getitem__) if first is None else new[first]  # type: ignore[index]
        if one:
            constant = graph.call_function(torch.ops.aten.scalar_tensor.default, (1.0,), {"dtype": torch.float32})
            constant.meta.update(dtype=torch.float32, scalar=True)
            graph.output(constant)
        else:
            found = tuple(new[node] for node in results)
            graph.output(found if results != [self.program.factor] else found[0])
        graph.eliminate_dead_code()
        return RecordedFunction(graph, [node.name for node in graph.nodes if node.op == "placeholder"])

    # -- what the kernel is told ------------------------------------------------------------------------------------

    def _form(self, values: Values, fused: bool) -> KernelForm:
        peaks = list(self.stage.peaks)
        inputs = tuple(
            InputText(tuple(self._group[label] for label in self._labels(node, values)), node in self.known)
            for node in self.inputs
        )
        sums = tuple((each.kind, -1 if each.scale is None else peaks.index(each.scale)) for each in self.sums)
        product = -2
        if self.meets:
            scale = self.meets[0].scale
            product = -1 if scale is None else peaks.index(scale)
        k, second = _size(self.frame, self.frame.first.k), self.frame.second
        few = k if k <= _FEW and self.frame.products.product == torch.float32 else 0
        single = second is None or _size(self.frame, second.n) == 1
        return KernelForm(inputs, len(peaks), sums, product, fused, few, single, self.tile.splits > 1)

    def _labels(self, node: fx.Node, values: Values) -> list[Label]:
        """The labels that an input moves along."""
        if node in self.known:
            return [self.known[node]]
        return [label for label, extent in zip(self.frame.order, values[node].shape, strict=True) if extent > 1]

    def _places(self, values: Values) -> list[int]:
        """For each label of each input: divisor and extent of its coordinate in the flattened index, and its stride."""
        found = []
        for node in self.inputs:
            for label in self._labels(node, values):
                group = self._group[label]
                labels = {"batch": self.frame.first.batch, "m": self.frame.first.m, "n": self.frame.first.n}[group]
                inner = labels[labels.index(label) + 1 :]
                step = 0 if node in self.known else values[node].stride(self.frame.order.index(label))
                found += [_size(self.frame, inner), self.frame.extents[label], step]
        return found

    @cached_property
    def _cuts(self) -> dict[int, list[tuple[int, frozenset[fx.Node]]]] | None:
        """For each tile of rows the first columns of the tiles that add something, and the conditions that hold there.

        None where conditions are on other coordinates than those of one label of rows and one of columns.
        """
        first = self.frame.first
        if len(first.m) != 1 or len(first.n) != 1 or not set(self.known.values()) <= {*first.m, *first.n}:
            return None
        blocks = {label: self.frame.extents[label] for label in self.frame.order}
        blocks |= {first.m[0]: self.tile.m, first.n[0]: self.tile.n}
        found: dict[int, list[tuple[int, frozenset[fx.Node]]]] = {}
        for cut in kept(self.program, self.stage, self.frame, blocks, self.known):
            row = cut.box[first.m[0]][0] // self.tile.m
            found.setdefault(row, []).append((cut.box[first.n[0]][0], cut.settled))
        return found

    @cached_property
    def _conditions(self) -> frozenset[fx.Node]:
        """Choices that hold in some whole tile."""
        if self._cuts is None:
            return frozenset()
        return frozenset().union(*(settled for each in self._cuts.values() for _, settled in each))

    @cached_property
    def _stretches(self) -> Tensor:
        """For each tile of rows where its columns begin, where conditions hold from and until, and where they end."""
        n, step = _size(self.frame, self.frame.first.n), self.tile.n
        rows = -(-_size(self.frame, self.frame.first.m) // self.tile.m)
        table = np.zeros((rows, 4), np.int32)
        full = n // step * step
        if self._cuts is None:
            table[:] = (0, 0, full, n)
        else:
            for row, tiles in self._cuts.items():
                starts = [start for start, _ in tiles]
                clear = [start for start, settled in tiles if settled == self._conditions and start + step <= n]
                run = _longest(clear, step)
                begin, end = min(starts), min(max(starts) + step, n)
                table[row] = (begin, run[0], run[1], end) if run else (begin, end, end, end)
        return torch.from_numpy(_shared(table, self.tile)).to(self.frame.device)


def _shared(table: np.ndarray[Any, Any], tile: CascadeTile) -> np.ndarray[Any, Any]:
    """The stretches of each share of the columns, whole tiles but for the last."""
    begin, end = table[:, :1], table[:, 3:]
    tiles = -(-(end - begin) // tile.n)
    shares = []
    for at in range(tile.splits):
        start = np.minimum(begin + tiles * at // tile.splits * tile.n, end)
        stop = np.minimum(begin + tiles * (at + 1) // tile.splits * tile.n, end)
        shares.append(np.clip(table, start, stop))
    return np.ascontiguousarray(np.stack(shares), np.int32)


def _longest(starts: Sequence[int], step: int) -> tuple[int, int] | None:
    """The longest run of neighbours."""
    best: tuple[int, int] | None = None
    begin = None
    for at, start in enumerate(starts):
        if begin is None or start != starts[at - 1] + step:
            begin = start
        if best is None or start + step - begin > best[1] - best[0]:
            best = (begin, start + step)
    return best


def _groups(tensor: Tensor, counts: Sequence[int]) -> tuple[int, int, int]:
    """The stride of each group of dimensions: that of its last one with more than one index."""
    found, at = [], 0
    for count in counts:
        steps = [tensor.stride(dim) for dim in range(at, at + count) if tensor.shape[dim] > 1]
        found.append(steps[-1] if steps else 0)
        at += count
    return found[0], found[1], found[2]
