"""A group's tables on the CPU, and a call of the kernel with them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.base.figures import counted
from weft.cpu.gett import entries
from weft.cpu.gett.params import Operation
from weft.cpu.gett.stages import GettStage, StageSource, in_place, words_of
from weft.cpu.grouped import params as at
from weft.cpu.host import together
from weft.cpu.jit import compiled, compiled_kernel, fault
from weft.fn import Pointwise
from weft.fn.writer import Held
from weft.spec.dtypes import dtype_name
from weft.spec.group import GroupTable, tiles_of

TYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
TILE = (96, 128)  # rows and columns of D that a thread takes at once
ALONE = 2e5  # products that one thread does before others could have woken up

_Frame = ctypes.c_int64 * at.FRAME
_SUMS = Operation("mul", "add")

Functions = tuple[Pointwise | None, Pointwise | None, Pointwise | None]


def serves(types: Sequence[torch.dtype]) -> bool:
    """Whether the kernel takes A, B and D of those types."""
    return fault() is None and types[0] in TYPES and len(set(types)) == 1


class _CompiledGroup(NamedTuple):
    """The code compiled for groups of one type and these functions: addresses, and the functions' constants."""

    kernel: Any
    micro_kernel: Any
    functions: tuple[Any, ...]
    constants: tuple[np.ndarray, ...]


@lru_cache(maxsize=256)
def entry_of(dtype: torch.dtype, functions: Functions) -> _CompiledGroup:
    kind = dtype_name(dtype)
    found = [
        GettStage(0, 0) if function is None else in_place(function, (at.CONSTANTS + place,))
        for place, function in enumerate(functions)
    ]
    return _CompiledGroup(
        compiled_kernel("weft.cpu.grouped.kernel.run", kind),
        entries.micro_kernel(kind, _SUMS),
        tuple(stage.address for stage in found), tuple(words_of(stage.constants) for stage in found),
    )  # fmt: skip


@lru_cache
def scaling(dtype: torch.dtype) -> int:
    """The address of the stage that multiplies values by a real factor, in their place."""
    loop = StageSource(dtype)
    factor = loop.scalar("factor", 0, dtype.to_real())
    loop.write(Held(loop.writer.typed(f"{factor.name} * {loop.value.name}", dtype), dtype), dtype, 0)
    return compiled(loop.source)


class CpuGroupLaunch:
    """Call it with what A, B and D begin at; `move` takes other starts without a new plan."""

    def __init__(self, dtype: torch.dtype, functions: Functions, add: bool, table: GroupTable) -> None:
        self._table = table
        self._tiles = tiles_of(table, *TILE)
        entry = entry_of(dtype, functions)
        self._address = entry.kernel
        depth = int(min(table.sizes[:, 3].max(initial=1), at.K_BLOCK))
        largest = [int(table.sizes[:, side].max(initial=1)) for side in (1, 2)]
        products = float(table.sizes.astype(float).prod(1).sum())
        self._most = len(self._tiles) if products > ALONE else 1  # threads
        self._head = (0, self._tiles.ctypes.data, len(self._tiles))
        self._tail = (
            *table.form.counts, entry.micro_kernel, *entry.functions, int(add),
            *map(min, TILE, largest), max(depth, 1), *(words.ctypes.data for words in entry.constants),
            scaling(dtype) if table.has_factors else 0,
        )  # fmt: skip
        self.move(table)

    def move(self, table: GroupTable) -> None:
        """Take where tensors begin from a table that is the same otherwise."""
        self._rows, self._outputs = np.ascontiguousarray(table.rows), np.ascontiguousarray(table.outputs)
        self._middle = (self._rows.ctypes.data, self._outputs.ctypes.data, table.form.words)

    def __str__(self) -> str:
        threads = min(torch.get_num_threads(), self._most)
        return f"one call: {counted(len(self._tiles), 'tile')}, taken in turn by {counted(threads, 'thread')}"

    def __call__(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
        if not len(self._tiles):
            return
        frame = _Frame(*self._head, *self._middle, a.data_ptr(), b.data_ptr(), d.data_ptr(), *self._tail)
        together(self._address, frame, self._most)
