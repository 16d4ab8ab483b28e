"""A plan of a permutation as a block of words, and a call of it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from weft.cpu.gett.launch import scalar_words
from weft.cpu.gett.stages import words_of
from weft.cpu.host import HUGE, HeldFrame, advise, callback, reach, together
from weft.cpu.jit import compiled
from weft.cpu.level import vector_bytes
from weft.cpu.permute import params
from weft.cpu.permute.schedule import LINE, LONG, CpuPermuteSchedule, Side, Tiling, tiling
from weft.cpu.permute.stage import Values, stage
from weft.planner.schedule import Scalar
from weft.spec.permutation import Permutation

_Words = ctypes.c_int64 * params.CALL_WORDS
_pack = struct.Struct(f"{params.CALL_WORDS}q").pack  # quicker than ctypes

RUN = """\
from numba import cfunc
from weft.cpu.permute.kernel import run


@cfunc("void(int64)", error_model="numpy")
def entry(frame):
    run(frame)
"""

_CELLS = """\
from numba import cfunc
from weft.cpu.permute.kernel import cells


@cfunc("void(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)", error_model="numpy")
def entry(x, p_x, q_x, to, p_to, q_to, p, q, size, streams):
    cells(x, p_x, q_x, to, p_to, q_to, p, q, size, streams)
"""

_SQUARES = """\
from numba import cfunc, int8
from weft.cpu.permute.kernel import {squares} as squares


@cfunc("void(int64, int64, int64, int64, int64, int64)", error_model="numpy")
def entry(x, rows, to, columns, p, q):
    squares(x, rows, to, columns, p, q, {number})
"""


@lru_cache
def squares_of(size: int, side: int, *, streamed: bool = False) -> int:
    """Address of the kernel that transposes a tile in squares of so many items; narrower where vectors are."""
    side = min(side, max(vector_bytes() // size, 1))
    name = "streamed_squares" if streamed else "squares"
    return compiled(_SQUARES.format(squares=name, number=params.number(size, side)), kernel=True)


def cells_kernel() -> int:
    return compiled(_CELLS, kernel=True)


class CpuPermuteLaunch:
    """Runs on new pointers; it keeps no state between calls and may run in several threads at once."""

    def __init__(self, permutation: Permutation, schedule: CpuPermuteSchedule) -> None:
        self._kept: list[np.ndarray] = []
        self._address = compiled(RUN, kernel=True)
        self._run = callback(self._address)
        self._threads = schedule.threads
        self._scale = permutation.scale if permutation.scaled else None
        self._size = reach(permutation.d)
        self._words = np.zeros(params.WORDS, np.int64)
        self._plan = self._words.ctypes.data
        cut = tiling(permutation)
        self._set_tiles(cut, schedule.threads)
        self._set_kernels(permutation, schedule, cut)

    def __call__(self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> None:
        frame = self._frame(x, c, d, alpha, beta)
        if self._threads == 1:
            self._run(frame)
        else:
            together(self._address, frame, min(self._threads, torch.get_num_threads()))

    def bound(
        self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar
    ) -> HeldFrame:
        """The run on these tensors, whose addresses are taken now."""
        return HeldFrame(self._address, self._frame(x, c, d, alpha, beta), self._threads)

    def _frame(self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> Any:
        """The words of a call."""
        scalars = (0, 0, 0, 0) if self._scale is None else scalar_words(alpha, beta, self._scale)
        words = _pack(self._plan, 0, *scalars, x.data_ptr(), d.data_ptr(), 0 if c is None else c.data_ptr())
        if self._size >= HUGE:
            advise(d, self._size)
        return _Words.from_buffer_copy(words)

    def _keep(self, table: Sequence[tuple[int, ...]] | np.ndarray) -> int:
        kept = np.ascontiguousarray(table, np.int64)
        self._kept.append(kept)
        return kept.ctypes.data

    def _set_tiles(self, cut: Tiling, threads: int) -> None:
        words, sizes = self._words, (cut.x_size, cut.d_size)
        words[params.X_SIZE], words[params.D_SIZE] = sizes
        outer = [(axis.extent, axis.x * cut.x_size, axis.d * cut.d_size) for axis in cut.outer]
        outer = outer or [(1, 0, 0)]
        words[params.OUTER], words[params.OUTER_COUNT] = self._keep(outer), len(outer)
        words[params.TILES] = cut.tiles
        words[params.CHUNK] = max(cut.tiles // (8 * threads), 1) if threads > 1 else cut.tiles
        for at, side in ((params.P_MODE, cut.p), (params.Q_MODE, cut.q), (params.R_MODE, cut.run)):
            words[at] = cut.outer.index(side.outer) if side.pieces > 1 else -1
            words[at + 1], words[at + 2] = side.tile, side.longest
        words[params.P_X], words[params.P_D] = self._tables(cut.p, sizes)
        words[params.Q_X], words[params.Q_D] = self._tables(cut.q, sizes)

    def _tables(self, side: Side, sizes: tuple[int, int]) -> tuple[int, int]:
        """Bytes from a tile's first cell to each along a side, in X and in D."""
        found = []
        for tensor, size in enumerate(sizes, 1):
            table = np.zeros(1, np.int64)
            for axis in side.axes[:-1]:
                table = (np.arange(axis.extent)[:, None] * (axis[tensor] * size) + table).reshape(-1)
            if side.axes:
                last = np.arange(side.longest // len(table))
                table = (last[:, None] * (side.axes[-1][tensor] * size) + table).reshape(-1)
            found.append(self._keep(table))
        return found[0], found[1]

    def _set_kernels(self, permutation: Permutation, schedule: CpuPermuteSchedule, cut: Tiling) -> None:
        words = self._words
        words[params.CELLS] = cells_kernel()
        if schedule.square:
            words[params.SQUARES] = squares_of(cut.x_size, schedule.square)
            if schedule.streams and permutation.is_move:
                words[params.STREAMED_SQUARES] = squares_of(cut.x_size, LINE // cut.x_size, streamed=True)
        if schedule.streams:
            words[params.STREAMS] = 2 if cut.run.tile * cut.d_size >= LONG else 1
        p, q, run = cut.p.longest, cut.q.longest, cut.run.longest
        words[params.WORKSPACE] = 8 * len(cut.outer) + 2 * LINE
        if not permutation.is_move:
            found = stage(Values.of(permutation))
            words[params.STAGE], words[params.IN_PLACE] = found.address, found.in_place
            words[params.CONSTANTS] = self._keep(words_of(found.constants))
            words[params.WHOLE_ROWS] = cut.whole_rows
            size = -(-p * q * run * max(cut.x_size, cut.d_size) // LINE) * LINE
            words[params.BUFFER] = size
            words[params.WORKSPACE] += 3 * size + 8 * (p + q) + 4 * LINE
