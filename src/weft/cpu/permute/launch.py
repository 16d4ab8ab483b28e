"""A plan of a permutation as a block of words, its stage, and a call of it.

The stage that values pass through has conj, fn, alpha, beta * C and a cast, as one loop that numba compiles.
"""

from __future__ import annotations

import ctypes
import struct
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.cpu.gett.family import LOADABLE
from weft.cpu.gett.stages import GettStage, Held, StageSource, function_fault, words_of
from weft.cpu.host import HUGE, PlanWords, WordsLaunch, advise, reach, scalar_words, whole_lines
from weft.cpu.jit import compiled, compiled_kernel
from weft.cpu.level import vector_bytes
from weft.cpu.permute import params
from weft.cpu.permute.params import ALPHA, CONSTANTS, PLAN
from weft.cpu.permute.schedule import LINE, LONG, CpuPermuteSchedule, Side, Tiling, tiling
from weft.fn import Pointwise
from weft.fn.pointwise import inlined
from weft.planner.schedule import Scalar
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation, scaling_type


class Values(NamedTuple):
    """The types, function and scaling that the code of a stage depends on."""

    x: torch.dtype
    d: torch.dtype
    fn: Pointwise | None = None
    conjugate: bool = False
    scaled: bool = False
    added: bool = False

    @property
    def in_place(self) -> bool:
        return self.x.itemsize == self.d.itemsize

    @classmethod
    def of(cls, permutation: Permutation) -> Values:
        return cls(
            permutation.x.dtype, permutation.d.dtype, permutation.fn, permutation.conjugate, permutation.scaled,
            permutation.c is not None,
        )  # fmt: skip


def fault(values: Values) -> str | None:
    """Why there is no code for them; None where there is. Compiles nothing."""
    for dtype in (values.x, values.d):
        if dtype not in LOADABLE:
            return f"kernels do not compute with {dtype_name(dtype)}"
    return function_fault("fn", values.fn)


@lru_cache(maxsize=512)
def stage(values: Values) -> GettStage:
    """A compiled stage: reads X's values, then C's; writes D's, over X's where they have one size."""
    loop = StageSource(values.x, (PLAN - ALPHA, CONSTANTS))
    writer, found = loop.writer, loop.value
    c = loop.read(values.d) if values.added else None
    if values.conjugate:
        found = Held(writer.let(f"{found.name}.conjugate()"), found.dtype)
    if values.fn is not None:
        (found,) = inlined(writer, values.fn, [found])
    if values.scaled:
        scale = scaling_type(found.dtype, values.d)
        total = f"{loop.scalar('alpha', 0, scale).name} * {writer.cast(found.name, found.dtype, scale)}"
        if c is not None:
            total += f" + {loop.scalar('beta', 2, scale).name} * {writer.cast(c.name, c.dtype, scale)}"
        found = Held(writer.typed(total, scale), scale)
    loop.write(found, values.d, 0 if values.in_place else None)
    return GettStage(compiled(loop.source), values.x.itemsize, constants=loop.constants)


_Words = ctypes.c_int64 * params.CALL_WORDS
_pack = struct.Struct(f"{params.CALL_WORDS}q").pack  # quicker than ctypes


@lru_cache
def squares_of(size: int, side: int, *, streamed: bool = False) -> int:
    """Address of the kernel that transposes a tile in squares of so many items; narrower where vectors are."""
    side = min(side, max(vector_bytes() // size, 1))
    kernel = f"weft.cpu.permute.kernel.{'streamed_squares' if streamed else 'squares'}"
    return compiled_kernel(kernel, params.SHAPES.index((size, side)), words="x, rows, to, columns, p, q")


def cells_kernel() -> int:
    words = "x, p_x, q_x, to, p_to, q_to, p, q, size, streams"
    return compiled_kernel("weft.cpu.permute.kernel.cells", words=words)


def tiles_kernel() -> int:
    return compiled_kernel("weft.cpu.permute.kernel.run")


class CpuPermuteLaunch(WordsLaunch):
    """Runs on new pointers; it keeps no state between calls."""

    def __init__(self, permutation: Permutation, schedule: CpuPermuteSchedule) -> None:
        super().__init__(tiles_kernel(), schedule.threads)
        self._scale = permutation.scale if permutation.scaled else None
        self._size = reach(permutation.d)
        self._plan = PlanWords(params.WORDS)
        cut = tiling(permutation)
        self._set_tiles(cut, schedule.threads)
        self._set_kernels(permutation, schedule, cut)

    def __call__(self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> None:
        self.start(self.frame(x, c, d, alpha, beta))

    def frame(self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> Any:
        """The words of a call."""
        scalars = (0, 0, 0, 0) if self._scale is None else scalar_words(alpha, beta, self._scale)
        words = _pack(self._plan.address, 0, *scalars, x.data_ptr(), d.data_ptr(), 0 if c is None else c.data_ptr())
        if self._size >= HUGE:
            advise(d, self._size)
        return _Words.from_buffer_copy(words)

    def _set_tiles(self, cut: Tiling, threads: int) -> None:
        words, sizes = self._plan.words, (cut.x_size, cut.d_size)
        words[params.X_SIZE], words[params.D_SIZE] = sizes
        outer = [(axis.extent, axis.x * cut.x_size, axis.d * cut.d_size) for axis in cut.outer]
        outer = outer or [(1, 0, 0)]
        words[params.OUTER], words[params.OUTER_COUNT] = self._plan.keep(outer), len(outer)
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
            found.append(self._plan.keep(table))
        return found[0], found[1]

    def _set_kernels(self, permutation: Permutation, schedule: CpuPermuteSchedule, cut: Tiling) -> None:
        words = self._plan.words
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
            values = Values.of(permutation)
            found = stage(values)
            words[params.STAGE], words[params.IN_PLACE] = found.address, values.in_place
            words[params.CONSTANTS] = self._plan.keep(words_of(found.constants))
            words[params.WHOLE_ROWS] = cut.whole_rows
            size = whole_lines(p * q * run * max(cut.x_size, cut.d_size))
            words[params.BUFFER] = size
            words[params.WORKSPACE] += 3 * size + 8 * (p + q) + 4 * LINE
