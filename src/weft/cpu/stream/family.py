"""One pass over memory for sums, diagonals, outer and pointwise products, and products with vectors.

A family with the four doors of `weft.planner.schedule`. Its loops are compiled by numba when one is first built; they
read a plan, and a call of it, as blocks of words.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import permutations
from typing import Any

import numpy as np
import torch

from weft.cpu import jit
from weft.cpu.gett.split import launch_of, parts_of, split_schedule, steps_of
from weft.cpu.host import HUGE, PlanWords, WordsLaunch, advise, costs, reach, scalar_words
from weft.cpu.jit import compiled_kernel
from weft.cpu.permute.launch import squares_of
from weft.cpu.stream import params as at
from weft.cpu.stream.nest import (
    Nest,
    StreamAxis,
    StreamSchedule,
    StreamTypes,
    fault,
    nest_of,
    nests,
    room,
    rooms,
    side_of,
    types_of,
)
from weft.cpu.stream.params import IN_PLACE, SQUARES
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides, canonical

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


NAME = "stream"
MOST_REUSE = 6  # multiply-adds for each item of A, B and D
SMALL = 100_000  # products up to which one thread is as quick as two
_AS_PARTS = 1.1  # times of complex numbers that real parts may take as predicted: their vectors take two thirds
_OVERLAP = 0.75  # of the shorter of arithmetic and memory's work that the longer one hides
_START = 32  # bytes that memory could have moved while a run of neighbours begins, as it does for runs of 16 or less


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if (reason := jit.fault_on(target)) is not None:
        return reason
    if contraction.algebra is not None or contraction.aux or contraction.c is not None:
        return "it computes products and their sums alone"
    if any((contraction.a_fn, contraction.b_fn, contraction.epilogue)):
        return "it applies no functions"
    if contraction.a.dtype.is_complex and (contraction.conjugate_a or contraction.conjugate_b):
        return "it conjugates nothing"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if _reuse(contraction) > MOST_REUSE:
        return f"each item meets more than {MOST_REUSE} others: such products are for blocks in registers"
    return fault(contraction)


def _reuse(contraction: Contraction) -> float:
    m, n, k = contraction.m, contraction.n, contraction.k
    return m * n * k / (m * k + n * k + m * n)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    threads = max(target.processors, 1)
    found = best_schedule(contraction, threads)
    if (real := in_parts(contraction)) is not None:
        parts = replace(best_schedule(real, threads), in_parts=True)
        if predict(contraction, parts, target) < _AS_PARTS * predict(contraction, found, target):
            found = parts
    return Candidates((found,))


def predict(contraction: Contraction, schedule: StreamSchedule, target: Target) -> float:
    computed = in_parts(contraction) if schedule.in_parts else contraction
    assert computed is not None, "it was offered"
    if schedule.splits > 1:
        computed = steps_of(computed, schedule.splits).parts
    nest = nest_of(computed, types_of(computed), schedule.x, schedule.y)
    return call_seconds(schedule.threads) + seconds(computed, nest) / schedule.threads


def build(contraction: Contraction, schedule: StreamSchedule, target: Target) -> Launch:
    real = in_parts(contraction) if schedule.in_parts else None
    if real is None:
        return _launch(contraction, schedule)
    whole = _launch(contraction, best_schedule(contraction, schedule.threads))
    return ComplexPartsLaunch(_launch(real, schedule), whole, contraction.a.dtype)


def _launch(contraction: Contraction, schedule: StreamSchedule) -> Launch:
    return launch_of(contraction, schedule, StreamLaunch, best_schedule)


@lru_cache(maxsize=1024)
def best_schedule(contraction: Contraction, threads: int) -> StreamSchedule:
    """The tile of the least predicted time."""
    x, y, nest = min(nests(contraction), key=lambda found: seconds(contraction, found[2]))
    products = math.prod(mode.extent for mode in contraction.modes)
    threads = threads if products > SMALL else 1
    if nest.size < threads and (splits := parts_of(contraction, threads)) > 1:
        of_parts = partial(best_schedule, threads=threads)
        return split_schedule(contraction, splits, types_of(contraction).sum_size, of_parts)
    return StreamSchedule(x, y, min(threads, nest.size), threads * room(nest, types_of(contraction)))


# Constants of the section "stream":
#   call, team            seconds of a call; of starting threads
#   block, tile, row      of a block of D, of a tile, and of a row of a tile
#   item, turned          of four bytes of a row, and of four bytes that are transposed
#   single                of an item that is read or written by itself
#   memory, near, cache   bytes a second of one core, from memory, and from caches of so many bytes
#   writes                how many times as long products take that are not summed


def call_seconds(threads: int) -> float:
    """Seconds of a call besides its loops."""
    cost = costs(NAME)
    return cost("call") + (cost("team") if threads > 1 else 0.0)


def seconds(contraction: Contraction, nest: Nest) -> float:
    """Seconds of one thread that does it all."""
    cost, types, (x, y) = costs(NAME), types_of(contraction), (nest.x, nest.y)
    products = math.prod(mode.extent for mode in contraction.modes)
    along, across = nest.pieces
    rows: float = products // x.extent * along
    if x.kept and not y.kept and x.b == 0:
        rows = rows / min(4, y.extent)
    tiles = products // (x.extent * y.extent) * along * across
    held = max(types.operand_size, types.sum_size // 2)
    busy = nest.size * cost("block") + tiles * cost("tile") + rows * cost("row") + products * held / 4 * cost("item")
    kept = contraction.batch * contraction.m * contraction.n
    for place, way in zip((2, 3), nest.ways, strict=False):
        if way != IN_PLACE:
            busy += products / (1 if y[place] else y.extent / across) * _packed(way, types.operand_size)
    if not nest.writes:
        busy += kept * (cost("item") + (_packed(nest.ways[2], types.result_size) if nest.ways[2] != IN_PLACE else 0.0))
    read = _read(_moved(nest, types))
    whole = max(busy, read) + (1 - _OVERLAP) * min(busy, read)
    return whole if any(mode.role is Role.K for mode in contraction.modes) else whole * cost("writes")


def _packed(way: int, size: int) -> float:
    return costs(NAME)("turned") * max(size / 4, 0.5) if way == SQUARES else costs(NAME)("single")


def _moved(nest: Nest, types: StreamTypes) -> float:
    """Bytes that memory moves: items, and what beginning their runs costs."""
    axes = (*nest.outer, *nest.sums, nest.x, nest.y)
    total = 0.0
    for place, size in ((2, types.operand_size), (3, types.operand_size), (4, types.result_size)):
        items = math.prod(axis.extent for axis in axes if axis[place])
        total += items * size * (1 + _START / max(_run(nest, place) * size, 16))
    return total


def _read(size: float) -> float:
    cost = costs(NAME)
    return size / cost("memory" if size > cost("cache") else "near")


def _run(nest: Nest, at: int) -> int:
    """Neighbours in memory that a tile reads one after the other."""
    for (axis, block), (other, rows) in permutations(zip((nest.x, nest.y), nest.blocks, strict=True)):
        if axis[at] == 1:
            return block * rows if block == axis.extent == other[at] else block
    return 1


_REAL = {torch.complex64: ctypes.c_float, torch.complex128: ctypes.c_double}


def in_parts(contraction: Contraction) -> Contraction | None:
    """A contraction as one of real numbers with a mode of both parts; None where B has modes or nothing is complex."""
    accumulate = contraction.arithmetic.accumulate
    if not accumulate.is_complex or any(mode.strides.b for mode in contraction.modes):
        return None
    real = accumulate.to_real()
    modes = [mode._replace(strides=Strides(*(2 * step for step in mode.strides))) for mode in contraction.modes]
    modes.append(Mode(("part",), 2, Role.M, Strides(1, 0, 0, 1)))
    a, d = (
        Layout((*each.shape, 2), (*(2 * step for step in each.strides), 1), real)
        for each in (contraction.a, contraction.d)
    )
    found = replace(
        contraction, modes=tuple(modes), a=a, b=Layout((), (), real), d=d,
        arithmetic=Arithmetic(real, real, contraction.arithmetic.precision), conjugate_a=False, conjugate_b=False,
    )  # fmt: skip
    return canonical(found)


class ComplexPartsLaunch:
    """Launches for a number B that is real, and for any."""

    def __init__(self, real: Callable[..., None], whole: Callable[..., None], dtype: torch.dtype) -> None:
        self._real, self._whole, self._part = real, whole, _REAL[dtype]

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar,
        aux: AuxTensors = (),
    ) -> None:  # fmt: skip
        imaginary = self._part.from_address(b.data_ptr() + ctypes.sizeof(self._part)).value
        if alpha.imag == 0 and imaginary == 0:
            self._real(a, b, c, d, alpha.real, 0, aux)
        else:
            self._whole(a, b, c, d, alpha, beta, aux)
