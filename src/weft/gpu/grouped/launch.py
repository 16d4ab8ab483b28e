"""A group's tables on the device, the tiles that programs take in turn, and the launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.base.bounded_cache import BoundedCache
from weft.base.figures import counted
from weft.base.kept import is_capturing, keep_for_graphs
from weft.fn import Pointwise
from weft.gpu.common.aux_operands import real, real_arithmetic
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import sm_count
from weft.gpu.common.launch import TRITON_TYPES, KernelLaunch, collecting
from weft.planner.schedule import Target
from weft.spec import Arithmetic, Layout
from weft.spec.group import GroupTable, tiles_of

KERNEL = DeviceFunction("weft.gpu.grouped.kernel", "grouped_kernel")
COMPLEX_KERNEL = DeviceFunction("weft.gpu.grouped.kernel", "grouped_complex_kernel")

STAGES = 2
RESIDENT = 16  # programs for each SM: so many small ones it holds at once
OVERHEAD = 8192  # products that a tile's own start, and a step along k, take the time of

_KERNELS = BoundedCache(256)


class GroupTile(NamedTuple):
    m: int
    n: int
    k: int
    warps: int


_TILES = {  # by bytes of an element
    2: (GroupTile(16, 16, 32, 1), GroupTile(32, 32, 32, 4), GroupTile(64, 64, 32, 4)),
    4: (GroupTile(16, 16, 16, 1), GroupTile(32, 32, 32, 4), GroupTile(64, 64, 16, 4)),
    8: (GroupTile(16, 16, 16, 1), GroupTile(32, 32, 16, 4), GroupTile(64, 64, 16, 8)),
}
_COMPLEX = (GroupTile(16, 16, 16, 1), GroupTile(32, 32, 16, 4))
_INTEGERS = (GroupTile(16, 16, 1, 1), GroupTile(32, 32, 1, 4), GroupTile(64, 64, 1, 4))


class GroupKernel(NamedTuple):
    """All that a kernel for groups is compiled for, but the tile."""

    sides: tuple[int, ...]
    arithmetic: Arithmetic
    types: tuple[torch.dtype, torch.dtype, torch.dtype]  # of A, B and D
    functions: tuple[Pointwise | None, Pointwise | None, Pointwise | None]  # of A, B and the sum
    add: bool

    @property
    def is_complex(self) -> bool:
        """Whether complex values take part, if only within a function."""
        types = (*self.types, self.arithmetic.accumulate)
        return any(dtype.is_complex for dtype in types) or any(fn.is_complex for fn in self.functions if fn is not None)

    @property
    def tiles(self) -> tuple[GroupTile, ...]:
        """The tiles to choose from."""
        if self.is_complex:
            return _COMPLEX
        if not self.arithmetic.accumulate.is_floating_point:
            return _INTEGERS
        return _TILES[8 if self.arithmetic.accumulate == torch.float64 else self.arithmetic.product.itemsize]


class GroupLaunch:
    """Call it with what A, B and D begin at; `move` takes other starts without a new plan."""

    def __init__(self, kernel: GroupKernel, table: GroupTable, target: Target) -> None:
        self.tile = choose_tile(table, kernel.tiles)
        tiles = tiles_of(table, self.tile.m, self.tile.n)
        self.count = len(tiles)
        programs = min(self.count, RESIDENT * sm_count(target))
        self.kernel = made(kernel, self.tile, target).at(programs, (self.count,))
        self._device = target.device
        self._rows, self._outputs, self._tiles = map(self._sent, (table.rows, table.outputs, tiles))
        self._in_a_graph = False  # a graph reads the tables whenever it is replayed

    def _sent(self, numbers: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device, copy=True)

    def move(self, table: GroupTable) -> None:
        """Take where tensors begin from a table that is the same otherwise; not within a capture."""
        if self._in_a_graph:
            self._rows, self._outputs = map(self._sent, (table.rows, table.outputs))
            self._in_a_graph = False
            return
        self._rows.copy_(torch.from_numpy(table.rows), non_blocking=True)
        self._outputs.copy_(torch.from_numpy(table.outputs), non_blocking=True)

    def __str__(self) -> str:
        tile = self.tile
        return f"one launch: {counted(self.count, 'tile')} of {tile.m}x{tile.n}x{tile.k}, {counted(tile.warps, 'warp')}"

    def __call__(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
        if self.count:
            if is_capturing(self._device):
                keep_for_graphs(self._rows, self._outputs, self._tiles)
                self._in_a_graph = True
            a, b, d = (torch.view_as_real(x) if x.is_complex() else x for x in (a, b, d))
            self.kernel((a, b, d, self._rows, self._outputs, self._tiles), 1.0, 1.0)


def choose_tile(table: GroupTable, tiles: Sequence[GroupTile]) -> GroupTile:
    """The tile that computes fewest products, those past the extents and the overheads counted in."""
    batch, m, n, _ = table.sizes[table.outputs[:, 1]].T
    sums = np.concatenate([[0], np.cumsum(table.sizes[:, 3])])
    depths = sums[table.outputs[:, 2]] - sums[table.outputs[:, 1]]

    def cost(tile: GroupTile) -> float:
        steps = 1 + depths / tile.k
        each = np.ceil(depths / tile.k) * tile.m * tile.n * tile.k + OVERHEAD * steps
        return float((batch * np.ceil(m / tile.m) * np.ceil(n / tile.n) * each).sum())

    return min(tiles, key=cost)


def made(kernel: GroupKernel, tile: GroupTile, target: Target) -> KernelLaunch:
    """The compiled kernel, made once."""
    key = (kernel, tile, target)
    known = _KERNELS.get(key) if not collecting() else None
    if known is None:
        tables = [Layout.contiguous((1,), dtype) for dtype in (torch.int64, torch.int64, torch.int32)]
        data = [Layout((1,), (1,), real(dtype), real(dtype).itemsize) for dtype in kernel.types]
        function, constants = _constants(kernel, tile)
        floating = kernel.tiles != _INTEGERS
        known = KernelLaunch(
            function, (*data, *tables), constants, floating, target, 1, tile.warps, STAGES, numbers=(1,)
        )
        if not collecting():
            _KERNELS.put(key, known)
    return known


def _constants(kernel: GroupKernel, tile: GroupTile) -> tuple[Any, dict[str, Any]]:
    """The kernel's function, and what is compiled into it."""
    arithmetic, split = real_arithmetic(kernel.arithmetic), kernel.is_complex
    functions = [function and (function.split_complex if split else function) for function in kernel.functions]
    shared = {
        "SIDES": kernel.sides, "TILE": tile[:3], "ADD": kernel.add, "A_FN": functions[0],
        "B_FN": functions[1], "EPILOGUE": functions[2],
    }  # fmt: skip
    types = {
        "PRODUCT": TRITON_TYPES[arithmetic.product], "ACCUMULATE": TRITON_TYPES[arithmetic.accumulate],
        "RESULT": TRITON_TYPES[real(kernel.types[2])], "PRECISION": arithmetic.precision,
    }  # fmt: skip
    if not split:
        return KERNEL, shared | types
    values = (*kernel.types[:2], kernel.arithmetic.accumulate)
    kinds = tuple(
        (value.is_complex, (function.result if function is not None else value).is_complex)  # type: ignore[union-attr]
        for value, function in zip(values, kernel.functions, strict=True)
    )
    return COMPLEX_KERNEL, shared | {"KINDS": kinds, "D_COMPLEX": kernel.types[2].is_complex} | types
