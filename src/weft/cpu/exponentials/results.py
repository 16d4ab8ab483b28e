"""From sums of products of factors to D: logarithms, the tops added, the epilogue, and marks of what was lost.

    D[m, n] = epilogue(p[m] + q[n] + log(sum[m, n]) / rate)

A stage of `ttgt`'s last pass. Where something may have been lost it marks the results that the sum does not tell.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch

from weft.cpu.exponentials.factors import SHIFT
from weft.cpu.gett.params import AUX_BASE, D_BASE, D_CONSTANTS
from weft.cpu.gett.stages import AuxRead, GettStage, StageSource, aux_reads, in_the_plan
from weft.cpu.jit import compiled
from weft.cpu.ttgt.params import SPACE_BASE
from weft.cpu.ttgt.passes import PassEntry, PassRoute
from weft.fn import Pointwise
from weft.fn.numba.emit import Held, inlined
from weft.planner.exponentials import Exponent, RowMajor
from weft.spec import Aux, Contraction, Strides
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
    loop = StageSource(accumulate, in_the_plan(D_CONSTANTS))
    writer, total = loop.writer, loop.value.name
    p, q = (loop.read(accumulate).name for _ in range(2))
    extra = [loop.read(each.dtype) for each in ending.aux]
    part = writer.let(f"vector.scaled_log{bits}({total}, {2 * SHIFT[accumulate]})")
    part = part if rate == 1 else writer.let(f"{part} * {kind}({1 / rate!r})")
    value = writer.let(f"({p} + {q}) + {part}")
    if ending.marks:
        nothing, most = (f"{kind}({sign}np.inf)" for sign in (("-", "") if rate > 0 else ("", "-")))
        least = loop.scalar("alpha", 0, accumulate)
        there = [writer.let(f"({top} == {top}) & ({top} != {most})") for top in (p, q)]
        empty = writer.let(f"(({p} == {nothing}) & {there[1]}) | (({q} == {nothing}) & {there[0]})")
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
