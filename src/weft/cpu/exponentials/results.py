"""From sums of products of factors to D: logarithms, the tops added, the epilogue, and marks of what was lost.

    D[m, n] = epilogue(p[m] + q[n] + log(sum[m, n]) / rate)

A stage of `ttgt`'s last pass. Where something may have been lost it marks the results that the sum does not tell.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from weft.cpu.exponentials.factors import SHIFT
from weft.cpu.gett.layout import offsets
from weft.cpu.gett.params import AUX_BASE, D_BASE, D_CONSTANTS
from weft.cpu.gett.stages import AuxRead, GettStage, StageSource, aux_reads, in_the_plan
from weft.cpu.host import callback, together
from weft.cpu.jit import compiled
from weft.cpu.ttgt.params import SPACE_BASE
from weft.cpu.ttgt.passes import PassEntry, PassRoute, axes_of
from weft.cpu.ttgt.steps import WorkspaceMatrix
from weft.cpu.ttgt.ways import D, step_along
from weft.fn import Pointwise
from weft.fn.numba.emit import Held, inlined
from weft.planner.exponentials import Exponent, RowMajor
from weft.spec import Aux, Contraction, Role, Strides
from weft.spec.dtypes import dtype_name

TOPS, MARKS = ("top of A", "top of B"), "sums out of range"


class _Ending(NamedTuple):
    """The stage, as far as its code depends on the contraction."""

    accumulate: torch.dtype
    exponent: Exponent
    marks: bool
    epilogue: Pointwise | None
    aux: tuple[AuxRead, ...]
    results: tuple[torch.dtype, ...]


def with_places(contraction: Contraction, places: tuple[RowMajor, RowMajor, RowMajor]) -> Contraction:
    """The contraction that has both tops and the marks among its operands, behind its own."""
    names = (*TOPS, MARKS)
    aux = [Aux(name, "operand", each.layout, each.layout.dtype) for name, each in zip(names, places, strict=True)]
    modes = [
        mode._replace(strides=Strides(*mode.strides, *(each.stride(mode) for each in places)))
        for mode in contraction.modes
    ]
    return replace(contraction, modes=tuple(modes), aux=(*contraction.aux, *aux))


def route_of(contraction: Contraction, exponent: Exponent, *, marks: bool) -> PassRoute:
    """The last pass of a contraction `with_places`; its alpha is the least sum that tells its result."""
    accumulate, count = contraction.arithmetic.accumulate, len(contraction.aux) - 3
    given = aux_reads(contraction, contraction.epilogue_args if contraction.epilogue is not None else ())
    types = contraction.d.dtype, *(contraction.aux[at].dtype for at in contraction.outputs)
    stage = _stage(_Ending(accumulate, exponent, marks, contraction.epilogue, given, types))
    item = accumulate.itemsize
    tops = (PassEntry(item, AUX_BASE + count + at) for at in range(2))
    reads = (PassEntry(item, SPACE_BASE), *tops, *(PassEntry(*each.entry) for each in given))
    bases = D_BASE, *(AUX_BASE + at for at in contraction.outputs)
    writes = [PassEntry(dtype.itemsize, base) for dtype, base in zip(types, bases, strict=True)]
    writes += [PassEntry(1, AUX_BASE + count + 2)] if marks else []
    return PassRoute(stage.address, reads, tuple(writes), stage.constants)


@lru_cache(maxsize=256)
def _stage(ending: _Ending) -> GettStage:
    accumulate, rate = ending.accumulate, ending.exponent.rate
    kind, bits = dtype_name(accumulate), 8 * accumulate.itemsize
    loop = StageSource(accumulate, in_the_plan(D_CONSTANTS), contracts=True)
    writer, total = loop.writer, loop.value.name
    p, q = (loop.read(accumulate).name for _ in range(2))
    extra = [loop.read(each.dtype) for each in ending.aux]
    part = writer.let(f"vector.scaled_log{bits}({total}, {2 * SHIFT[accumulate]})")
    part = part if rate == 1 else writer.let(f"{part} * {kind}({1 / rate!r})")
    value = writer.let(f"({p} + {q}) + {part}")
    if ending.marks:
        nothing, zero = f"{kind}({'-' if rate > 0 else ''}np.inf)", f"{kind}(0.0)"
        least = loop.scalar("alpha", 0, accumulate)
        empty = writer.let(f"({total} == {zero}) & (({p} == {nothing}) | ({q} == {nothing}))")
        told = writer.let(f"({total} >= {least.name}) & ({total} < {kind}(np.inf))")
        value = writer.let(f"{nothing} if {empty} else {value}")
        mark = Held(writer.let(f"not ({told} | {empty})"), torch.bool)
    values = [Held(value, accumulate)]
    if ending.epilogue is not None:
        values = inlined(writer, ending.epilogue, [*values, *extra])
    for result, dtype in zip(values, ending.results, strict=True):
        loop.write(result, dtype)
    if ending.marks:
        loop.write(mark, torch.bool)
    return GettStage(compiled(loop.source), accumulate.itemsize, constants=loop.constants)


_Frame = ctypes.c_int64 * 10
ROWS = 32  # of a task
SOURCE = """\
import numpy as np
from numba import cfunc, float32, float64, int32, int64
from weft.cpu.gett.vector import fetch_add, load_word, whole_vectors
from weft.fn.numba.math import scaled_log{bits}
from weft.fn.numba.values import LOADS, STORES

load, store, load_rate = LOADS["{kind}"], STORES["{kind}"], LOADS["float64"]


@cfunc("void(int64)", error_model="numpy", fastmath={{"contract"}})
def entry(frame):
    whole_vectors()
    table, sums, d = load_word(frame + 8), load_word(frame + 16), load_word(frame + 24)
    first, second = load_word(frame + 32), load_word(frame + 40)
    batch, rows, columns = load_word(frame + 48), load_word(frame + 56), load_word(frame + 64)
    over = {kind}(load_rate(frame, 9))
    while True:
        start = fetch_add(frame) * {rows}
        if start >= batch * rows:
            break
        for row in range(start, min(start + {rows}, batch * rows)):
            total, to, top = sums + row * columns * {size}, d + load_word(table + 8 * row), load(first, row)
            tops = second + (row // rows) * columns * {size}
            for j in range(columns):
                store(to, j, (top + load(tops, j)) + over * scaled_log{bits}(load(total, j), {shift}))
"""


class PlainResults:
    """The last pass where nothing else is done, nothing is lost, and rows of D are contiguous."""

    def __init__(self, contraction: Contraction, matrix: WorkspaceMatrix, exponent: Exponent, threads: int) -> None:
        accumulate = contraction.arithmetic.accumulate
        size, (rows, columns), batch = accumulate.itemsize, matrix.shape, contraction.batch
        axes = axes_of(contraction, matrix.rows, columns * size)
        self._table = np.ascontiguousarray(offsets(axes, D_BASE), np.int64)
        (over,) = struct.unpack("q", struct.pack("d", 1 / exponent.rate))
        self._counts = (batch, rows // batch, columns, over)
        self._swapped, self._threads = matrix.columns[0].role is Role.M, threads
        self._address = compiled(
            SOURCE.format(
                kind=dtype_name(accumulate), bits=8 * size, size=size, shift=2 * SHIFT[accumulate], rows=ROWS
            ),
            kernel=True,
        )

    @staticmethod
    def serves(contraction: Contraction, matrix: WorkspaceMatrix) -> bool:
        plain = contraction.epilogue is None and not contraction.outputs
        return plain and contraction.d.dtype is contraction.arithmetic.accumulate and step_along(matrix.columns, D) == 1

    def __call__(self, sums: int, bases: Sequence[int], scalars: Sequence[int]) -> None:
        first, second = bases[-3:-1]
        if self._swapped:
            first, second = second, first
        frame = _Frame(0, self._table.ctypes.data, sums, bases[D_BASE], first, second, *self._counts)
        if self._threads == 1:
            callback(self._address)(frame)
        else:
            together(self._address, frame, min(self._threads, torch.get_num_threads()))
