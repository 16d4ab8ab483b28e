"""A plan of the loops as a block of words, and a call of it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from weft.cpu.host import HUGE, PlanWords, WordsLaunch, advise, reach, scalar_words
from weft.cpu.jit import compiled_kernel
from weft.cpu.permute.launch import squares_of
from weft.cpu.stream import params as at
from weft.cpu.stream.nest import Nest, StreamAxis, StreamSchedule, StreamTypes, nest_of, rooms, side_of, types_of
from weft.planner.schedule import AuxTensors, Scalar
from weft.spec import Contraction

_Words = ctypes.c_int64 * at.CALL_WORDS
_pack = struct.Struct(f"{at.BASES + 3}q{8 * (at.CALL_WORDS - at.BASES - 3)}x").pack  # quicker than ctypes


class StreamLaunch(WordsLaunch):
    """Runs on new pointers; it keeps no state between calls."""

    def __init__(self, contraction: Contraction, schedule: StreamSchedule) -> None:
        types = types_of(contraction)
        self._nest = nest_of(contraction, types, schedule.x, schedule.y)
        values = at.NAMES.index(types.operand), types.held, at.NAMES.index(types.result)
        super().__init__(compiled_kernel("weft.cpu.stream.kernel.run", *values), schedule.threads)
        self._dtype = contraction.arithmetic.accumulate
        self._size = reach(contraction.d)
        self._plain = StreamPlanWords(self._nest, types, schedule.threads)
        # A factor is one of sums: products that go straight to D have none.
        summing = self._nest._replace(writes=False)
        self._scaled = StreamPlanWords(summing, types, schedule.threads) if self._nest.writes else self._plain
        self._address_of_plan, self._one = self._plain.address, scalar_words(1, 0, self._dtype)[:2]

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar,
        aux: AuxTensors = (),
    ) -> None:  # fmt: skip
        self.start(self.frame(a, b, c, d, alpha))

    def frame(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, *_: Any
    ) -> Any:
        """The words of a call."""
        first, second = (b, a) if self._nest.swapped else (a, b)
        if alpha == 1:
            words = _pack(self._address_of_plan, 0, *self._one, first.data_ptr(), second.data_ptr(), d.data_ptr())
        else:
            scalars = scalar_words(alpha, 0, self._dtype)[:2]
            words = _pack(self._scaled.address, 0, *scalars, first.data_ptr(), second.data_ptr(), d.data_ptr())
        if self._size >= HUGE:
            advise(d, self._size)
        return _Words.from_buffer_copy(words)


class StreamPlanWords(PlanWords):
    """The words of one plan."""

    def __init__(self, nest: Nest, types: StreamTypes, threads: int) -> None:
        super().__init__(at.WORDS)
        words = self.words
        self._sizes = types.operand_size, types.operand_size, types.result_size
        words[at.OUTER], words[at.OUTER_COUNT] = self._table(nest.outer), len(nest.outer)
        words[at.SUMS], words[at.SUM_COUNT] = self._table(nest.sums), len(nest.sums)
        words[at.SUM_TOTAL] = int(np.prod([axis.extent for axis in nest.sums], dtype=np.int64))
        for axis, block, first in ((nest.x, nest.blocks[0], at.X_EXTENT), (nest.y, nest.blocks[1], at.Y_EXTENT)):
            words[first : first + 6] = axis.extent, block, axis.kept, *self._steps(axis)
        words[at.WRITES] = nest.writes
        words[at.PACK_A], words[at.PACK_B], words[at.PACK_D] = nest.ways
        self._set_squares(nest, types)
        words[at.SUMS_ROOM], words[at.TILE_ROOM] = rooms(nest, types)
        chunk = max(1, nest.size // (8 * threads)) if threads > 1 else nest.size
        words[at.TASKS], words[at.CHUNK], words[at.TOTAL] = -(-nest.size // chunk), chunk, nest.size

    def _steps(self, axis: StreamAxis) -> tuple[int, ...]:
        return tuple(step * size for step, size in zip(axis[2:], self._sizes, strict=True))

    def _table(self, axes: Sequence[StreamAxis]) -> int:
        return self.keep([(axis.extent, *self._steps(axis)) for axis in axes] or [(1, 0, 0, 0)])

    def _set_squares(self, nest: Nest, types: StreamTypes) -> None:
        if at.SQUARES not in nest.ways:
            return
        words, (along, across) = self.words, nest.blocks
        items, rows = np.arange(along), np.arange(across) * along
        for word, step in zip((at.X_TABLE_A, at.X_TABLE_B, at.X_TABLE_D), self._steps(nest.x), strict=True):
            words[word] = self.keep(items * step)
        for turn, table, size in (
            (at.TURN, at.PITCH_TABLE, types.operand_size), (at.TURN_D, at.PITCH_TABLE_D, types.result_size),
        ):  # fmt: skip
            words[turn], words[table] = squares_of(size, side_of(nest, size)), self.keep(rows * size)
