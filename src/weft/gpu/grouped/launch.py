"""A group's tables on the device, the tiles that programs take in turn, and the launch.

Of the tiles that there are, the one is taken that is predicted to be done first. An SM is the busier of its matrix
units and its loads, a tile's own start and the steps along k counted in. Where it has few tiles it waits for each
step's loads. Rates are those of an H100 by its data sheet, halved where no kernel comes near. They rank tiles, and say
no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress, starmap
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.base.caches import BoundedCache
from weft.base.figures import counted
from weft.base.kept import keep_if_captured
from weft.fn import Pointwise
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import REGISTERS, SHARED_MEMORY, VECTOR, WARPS, sm_count
from weft.gpu.common.launch import TRITON_TYPES, KernelLaunch, collecting
from weft.gpu.common.operation import real_arithmetic
from weft.planner.schedule import Target
from weft.spec import Arithmetic, Layout
from weft.spec.group import EACH, HEAD, OUTPUT, GroupTable, tiles_of

RESIDENT = 16  # programs for each SM: so many small ones it holds at once
LATENCY = 800  # clocks from a request of memory to the data
START = 2000  # clocks that a program waits for a tile's numbers in the tables
WARP_STEP = 15  # clocks that an SM issues what each warp does in a step, besides products
LIBRARY_TILE = 128  # rows and columns of the library's tiles
LIBRARY_CALL = 12000  # clocks between two products of a loop, which the host calls one by one
LOADED = 40  # bytes for each clock of an SM, in vectors
LOADED_SINGLY = 4  # bytes for each clock where shorter than a copy to shared memory


class GroupTile(NamedTuple):
    m: int
    n: int
    k: int
    warps: int
    stages: int

    def shared_memory(self, itemsize: int) -> int:
        """Bytes of the stages of A and B."""
        return (self.m + self.n) * self.k * itemsize * self.stages


HALVES = tuple(starmap(GroupTile, (
    (16, 16, 32, 1, 3), (16, 128, 64, 4, 3), (32, 32, 64, 4, 3), (64, 64, 64, 4, 3), (64, 128, 64, 4, 3),
    (128, 64, 64, 4, 3), (128, 128, 64, 8, 3),
)))  # fmt: skip
HALVES_SINGLY = tuple(starmap(GroupTile, (
    (16, 16, 32, 1, 2), (32, 32, 32, 4, 2), (64, 64, 32, 4, 2), (128, 128, 32, 8, 2),
)))  # fmt: skip
TF32 = tuple(starmap(GroupTile, (
    (16, 16, 16, 1, 3), (32, 32, 32, 4, 3), (64, 64, 32, 4, 3), (128, 64, 32, 4, 3), (64, 128, 32, 4, 3),
    (128, 128, 32, 8, 3),
)))  # fmt: skip
SINGLE = tuple(starmap(GroupTile, (
    (16, 16, 16, 1, 2), (32, 32, 32, 4, 2), (64, 64, 16, 4, 3), (128, 64, 16, 8, 3),
)))  # fmt: skip
DOUBLE = tuple(starmap(GroupTile, (
    (16, 16, 16, 1, 2), (32, 32, 16, 4, 3), (64, 64, 16, 8, 3), (64, 128, 16, 8, 3),
)))  # fmt: skip
COMPLEX = (GroupTile(16, 16, 16, 1, 2), GroupTile(32, 32, 16, 4, 2))
INTEGERS = (GroupTile(16, 16, 1, 1, 2), GroupTile(32, 32, 1, 4, 2), GroupTile(64, 64, 1, 4, 2))


def tiles_for(arithmetic: Arithmetic, is_complex: bool, in_vectors: bool) -> tuple[GroupTile, ...]:
    """The tiles to choose from; `in_vectors`: whether 16 bytes of A and of B are loaded at once."""
    if is_complex:
        return COMPLEX
    if not arithmetic.accumulate.is_floating_point:
        return INTEGERS
    if arithmetic.accumulate == torch.float64:
        return DOUBLE
    if arithmetic.product.itemsize < 4:
        return HALVES if in_vectors else HALVES_SINGLY
    return SINGLE if arithmetic.precision == "ieee" else TF32


def group_clocks(
    table: GroupTable, tile: GroupTile, arithmetic: Arithmetic, itemsize: int, in_vectors: bool, sms: int
) -> float:
    """Clocks that a device of so many SMs takes for the group by a tile."""
    batch, m, n, _ = table.sizes[table.outputs[:, 1]].T
    sums = np.concatenate([[0], np.cumsum(table.sizes[:, 3])])
    depths = sums[table.outputs[:, 2]] - sums[table.outputs[:, 1]]
    counts = batch * np.ceil(m / tile.m) * np.ceil(n / tile.n)
    steps = np.ceil(depths / tile.k)
    many, long = float(counts.sum()), float((counts * steps).sum())
    busy = long * step_clocks(tile, arithmetic, itemsize, in_vectors) + many * 2 * WARP_STEP * tile.warps
    waiting = long * LATENCY / (tile.stages - 1) + many * START
    held = resident(tile, arithmetic, itemsize)
    return max(busy * uneven(many, sms) / sms, waiting * uneven(many, sms * held) / (sms * held))


def loop_clocks(table: GroupTable, arithmetic: Arithmetic, sms: int) -> float:
    """Clocks that a loop over the library's products of the group takes, one after the other."""
    batch, m, n, k = table.sizes.astype(float).T
    tiles = np.maximum(1, batch * np.ceil(m / LIBRARY_TILE) * np.ceil(n / LIBRARY_TILE))
    work = batch * m * n * k / (library_rate(arithmetic) * sms) * np.ceil(tiles / sms) * sms / tiles
    return float(np.maximum(work + START, LIBRARY_CALL).sum())


def library_rate(arithmetic: Arithmetic) -> float:
    """Products for each clock of an SM in the library's kernels."""
    if arithmetic.accumulate.itemsize == 8:
        return 120
    if arithmetic.product.itemsize < 4:
        return 1500
    return 110 if arithmetic.precision == "ieee" else 760


def uneven(tiles: float, places: int) -> float:
    """How much busier the busiest of some places is than the average, where tiles are alike."""
    return math.ceil(tiles / places) * places / tiles if tiles else 1.0


def step_clocks(tile: GroupTile, arithmetic: Arithmetic, itemsize: int, in_vectors: bool) -> float:
    """Clocks of an SM that a step along k keeps busy."""
    products = tile.m * tile.n * tile.k / products_at_once(tile, arithmetic)
    loaded = (tile.m + tile.n) * tile.k * itemsize
    return max(products, loaded / (LOADED if in_vectors or itemsize >= 4 else LOADED_SINGLY)) + WARP_STEP * tile.warps


def products_at_once(tile: GroupTile, arithmetic: Arithmetic) -> float:
    """Products for each clock of an SM."""
    if not arithmetic.accumulate.is_floating_point:
        return 64
    if arithmetic.accumulate.itemsize == 8:
        return 100
    if arithmetic.product.itemsize < 4:
        return 900
    if arithmetic.precision != "ieee":
        return 256 if arithmetic.precision == "tf32" else 85
    sums = tile.m * tile.n / (32 * tile.warps)  # of each thread: the fewer, the more is read for each
    return 64 * min(1.0, math.sqrt(sums / 16))


def resident(tile: GroupTile, arithmetic: Arithmetic, itemsize: int) -> int:
    """Programs that an SM holds at once."""
    threads = 32 * tile.warps
    registers = min(tile.m * tile.n // threads * arithmetic.accumulate.itemsize // 4 + 72, 255) * threads
    memory = SHARED_MEMORY // max(tile.shared_memory(itemsize), 1)
    return max(1, min(RESIDENT, REGISTERS // registers, memory, WARPS // tile.warps))


KERNEL = DeviceFunction("weft.gpu.grouped.kernel", "grouped_kernel")
COMPLEX_KERNEL = DeviceFunction("weft.gpu.grouped.kernel", "grouped_complex_kernel")

_KERNELS = BoundedCache(256)


class GroupLine(NamedTuple):
    """How A, B or D lies in all pairs: contiguous along the last mode of `side` (1, 2, 3 for m, n, k; 0 for none).

    Its starts, its strides along other modes and the extents of that mode are multiples of `run` elements: 16 bytes of
    them, or one.
    """

    side: int = 0
    run: int = 1


Lines = tuple[GroupLine, GroupLine, GroupLine]  # of A, B and D
NO_LINES = (GroupLine(), GroupLine(), GroupLine())
_SIDES = ((3, 1), (3, 2), (2, 1))  # of A, B and D


class GroupLayout(NamedTuple):
    """The modes of the sides, and how A, B and D lie along them."""

    sides: tuple[int, ...]  # modes of batch, m, n, k
    lines: tuple[int, ...]  # of A, B, D: the side along which it is contiguous (1, 2, 3 for m, n, k), 0 for none
    runs: tuple[int, ...]  # of A, B, D: what its starts, other strides and extents of that side are multiples of


class GroupKernel(NamedTuple):
    """All that a kernel for groups is compiled for, but the tile."""

    sides: tuple[int, ...]
    arithmetic: Arithmetic
    types: tuple[torch.dtype, torch.dtype, torch.dtype]  # of A, B and D
    functions: tuple[Pointwise | None, Pointwise | None, Pointwise | None]  # of A, B and the sum
    add: bool
    factors: bool = False  # whether sums are multiplied by the table's factors
    lines: Lines = NO_LINES

    @property
    def is_complex(self) -> bool:
        """Whether complex values take part, if only within a function."""
        types = (*self.types, self.arithmetic.accumulate)
        return any(dtype.is_complex for dtype in types) or any(fn.is_complex for fn in self.functions if fn is not None)

    @property
    def in_vectors(self) -> bool:
        """Whether both operands are loaded by 16 bytes."""
        return min(line.run for line in self.lines[:2]) > 1

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the wider operand."""
        return max(dtype.itemsize for dtype in self.types[:2])

    @property
    def singly(self) -> GroupKernel:
        """The kernel that loads and stores single elements, wherever tensors begin."""
        a, b, d = (GroupLine(line.side) for line in self.lines)
        return self._replace(lines=(a, b, d))

    def lying(self, table: GroupTable) -> GroupKernel:
        """The kernel for what all pairs of a table have in common; that of elements in parts, and that which sums whole
        numbers along k one by one, know nothing of it."""
        if self.is_complex or not self.arithmetic.accumulate.is_floating_point:
            return self
        return self._replace(lines=lines_of(table, self.types))

    def tile_for(self, table: GroupTable, target: Target) -> GroupTile:
        """The tile that is predicted to be the fastest, of those that the device has shared memory for."""
        every = tiles_for(self.arithmetic, self.is_complex, self.in_vectors)
        most = target.shared_memory or SHARED_MEMORY
        fitting = [tile for tile in every if tile.shared_memory(self.itemsize) <= most]
        kind = self.arithmetic, self.itemsize, self.in_vectors, sm_count(target)
        return min(fitting or every[:1], key=lambda tile: group_clocks(table, tile, *kind))


def loop_is_faster(kernel: GroupKernel, table: GroupTable, target: Target) -> bool:
    """Whether the library, product by product, is predicted to be done before one launch for all: few large ones."""
    if target.kind != "cuda" or kernel.is_complex or not kernel.arithmetic.accumulate.is_floating_point:
        return False
    kernel, sms = kernel.lying(table), sm_count(target)
    tile = kernel.tile_for(table, target)
    one_launch = group_clocks(table, tile, kernel.arithmetic, kernel.itemsize, kernel.in_vectors, sms)
    return loop_clocks(table, kernel.arithmetic, sms) < one_launch


class GroupLaunch:
    """Call it with what A, B and D begin at; `move` takes other starts without a new plan.

    A kernel that moves 16 bytes at once serves while all tensors begin at whole vectors, and otherwise one that moves
    single elements, by the same tables.
    """

    def __init__(self, kernel: GroupKernel, table: GroupTable, target: Target) -> None:
        self._made_for = kernel.lying(table)
        self.tile = self._made_for.tile_for(table, target)
        tiles = tiles_of(table, self.tile.m, self.tile.n)
        self.count = len(tiles)
        self._target, self._device = target, target.device
        self.kernel = self._built(self._made_for)
        self._singly: KernelLaunch | None = None  # made when tensors begin elsewhere
        self._in_parts = kernel.is_complex
        self._vectors = [line.run > 1 for line in self._made_for.lines]
        self._starts_fit, self._within_runs = True, _within_runs(table, self._made_for.lines)
        self._results = len(table.outputs)
        self._tiles = self._sent(tiles)
        self._send(_words(table))
        self._in_a_graph = False  # a graph reads the tables whenever it is replayed

    def _built(self, kernel: GroupKernel) -> KernelLaunch:
        programs = min(self.count, RESIDENT * sm_count(self._target))
        return made(kernel, self.tile, self._target).at(programs, (self.count,))

    def _send(self, words: np.ndarray) -> None:
        """Rows and outputs, as one copy, into memory of their own."""
        self._words, rows = self._sent(words), len(words) - OUTPUT * self._results
        self._rows, self._outputs = self._words[:rows], self._words[rows:]

    def _sent(self, numbers: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device, copy=True)

    def move(self, table: GroupTable) -> None:
        """Take where tensors begin from a table that is the same otherwise; not within a capture."""
        words = _words(table)
        self._starts_fit = not (words & self._within_runs).any()
        if self._in_a_graph:
            self._send(words)
            self._in_a_graph = False
        else:
            self._words.copy_(torch.from_numpy(words), non_blocking=True)

    def __str__(self) -> str:
        tile = self.tile
        return f"one launch: {counted(self.count, 'tile')} of {tile.m}x{tile.n}x{tile.k}, {counted(tile.warps, 'warp')}"

    def __call__(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
        if self.count:
            self._in_a_graph |= keep_if_captured(self._device, self._words, self._tiles)
            if self._in_parts:
                a, b, d = (torch.view_as_real(x) if x.is_complex() else x for x in (a, b, d))
            self._kernel_for(a, b, d)((a, b, d, self._rows, self._outputs, self._tiles), 1.0, 1.0)

    def _kernel_for(self, *tensors: torch.Tensor) -> KernelLaunch:
        """The kernel for tensors that begin there."""
        if self._starts_fit and not any(x.data_ptr() % VECTOR for x in compress(tensors, self._vectors)):
            return self.kernel
        if self._singly is None:
            self._singly = self._built(self._made_for.singly)
        return self._singly


def _words(table: GroupTable) -> np.ndarray:
    """A table as one list of numbers: rows, then outputs."""
    return np.concatenate((table.rows, table.outputs), None)


def _within_runs(table: GroupTable, lines: Lines) -> np.ndarray:
    """Bits of each word of a table that are not to be set in a start of a whole run."""
    rows, outputs = np.zeros_like(table.rows), np.zeros_like(table.outputs)
    rows[:, 0], rows[:, 1], outputs[:, 0] = (line.run - 1 for line in lines)
    return _words(table._replace(rows=rows, outputs=outputs))


def lines_of(table: GroupTable, types: Sequence[torch.dtype]) -> Lines:
    """Lines of A, B and D that strides, starts and extents of all pairs with a result have in common."""
    sizes = table.sizes[table.sizes[:, :3].all(1)]
    modes = table.rows[table.sizes[:, :3].all(1), HEAD:].reshape(len(sizes), -1, EACH)
    last = np.cumsum(table.form.counts) - 1  # the fastest mode of each side
    found = []
    for tensor, (start, dtype) in enumerate(zip(starts_together(table), types, strict=True)):
        strides = modes[:, :, 1 + tensor]
        if tensor < 2:  # nothing is read of an operand without k
            strides = strides * (sizes[:, 3:] > 0)
        whole, lines = VECTOR // dtype.itemsize, [GroupLine()]
        for side in _SIDES[tensor]:
            own, extents = strides[:, last[side]], modes[:, last[side], 0]
            if (own == 1).any() and ((own == 1) | ((own == 0) & ((extents <= 1) | (sizes[:, 3] == 0)))).all():
                together = np.bitwise_or.reduce(np.delete(strides, last[side], 1), None) | np.bitwise_or.reduce(extents)
                lines.append(GroupLine(side, 1 if (start | int(together)) % whole else whole))
        found.append(max(lines, key=lambda line: (line.run, line.side > 0)))
    return tuple(found)  # type: ignore[return-value]


def starts_together(table: GroupTable) -> list[int]:
    """All starts of A, of B and of D as one number each, by or: a power of two divides it where it divides them all."""
    a, b = np.bitwise_or.reduce(table.rows[:, :2], 0).tolist()
    return [a, b, int(np.bitwise_or.reduce(table.outputs[:, 0]))]


def made(kernel: GroupKernel, tile: GroupTile, target: Target) -> KernelLaunch:
    """The compiled kernel, made once."""
    key = (kernel, tile, target)
    known = _KERNELS.get(key) if not collecting() else None
    if known is None:
        tables = [Layout.contiguous((1,), dtype) for dtype in (torch.int64, torch.int64, torch.int32)]
        data = [_pointer(dtype.to_real(), line) for dtype, line in zip(kernel.types, kernel.lines, strict=True)]
        function, constants = _constants(kernel, tile)
        floating = kernel.is_complex or kernel.arithmetic.accumulate.is_floating_point
        known = KernelLaunch(
            function, (*data, *tables), constants, floating, target, 1, tile.warps, tile.stages, numbers=(1,)
        )
        if not collecting():
            _KERNELS.put(key, known)
    return known


def _pointer(dtype: torch.dtype, line: GroupLine) -> Layout:
    """A tensor's memory as the compiler knows it."""
    return Layout((1,), (1,), dtype, VECTOR if line.run > 1 else dtype.itemsize)


def _constants(kernel: GroupKernel, tile: GroupTile) -> tuple[Any, dict[str, Any]]:
    """The kernel's function, and what is compiled into it."""
    arithmetic, split = real_arithmetic(kernel.arithmetic), kernel.is_complex
    a_fn, b_fn, epilogue = (each and (each.split_complex if split else each) for each in kernel.functions)
    form = GroupLayout(kernel.sides, *zip(*kernel.lines, strict=True))
    constants = {
        "FORM": form, "TILE": tile[:3], "ADD": kernel.add, "FACTORS": kernel.factors, "A_FN": a_fn, "B_FN": b_fn,
        "EPILOGUE": epilogue, "PRODUCT": TRITON_TYPES[arithmetic.product],
        "ACCUMULATE": TRITON_TYPES[arithmetic.accumulate], "RESULT": TRITON_TYPES[kernel.types[2].to_real()],
        "PRECISION": arithmetic.precision,
    }  # fmt: skip
    if not split:
        return KERNEL, constants
    values = (*kernel.types[:2], kernel.arithmetic.accumulate)
    kinds = tuple(
        (value.is_complex, (function.result if function is not None else value).is_complex)  # type: ignore[union-attr]
        for value, function in zip(values, kernel.functions, strict=True)
    )
    return COMPLEX_KERNEL, constants | {"KINDS": kinds, "D_COMPLEX": kernel.types[2].is_complex}
