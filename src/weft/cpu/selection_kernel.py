"""A register block of a selection: the best combination along k, and where it stands, in registers side by side.

    for each k:  value[i, v] = combine(a[i], b[v])
                 where value is better than best[i, v]:  best[i, v], place[i, v] = value, k

Of equal values the first stays. Values hold no NaN: who calls has looked. Both operands come as panels: ROWS items, or
two vectors, for each k in turn.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from weft.cpu.gett.params import VECTORS
from weft.cpu.gett.vector import HALF_WORD, KINDS, WORD, Kind, at, word
from weft.cpu.level import vector_bytes

COMBINES = ("add", "mul", "max", "min")
BETTER = (">", "<")


def rows_of_block() -> int:
    """Rows of a register block: best values and places are 24 of 32 registers, or 8 of 16."""
    return 6 if vector_bytes() == 64 else 2


@intrinsic
def selected(typingctx: Any, k: Any, rows: Any, columns: Any, to: Any, combine: Any, better: Any, kind: Any) -> Any:
    """Write the best values of a block to an address, one row after the other, and their places behind them."""
    if not (isinstance(combine, types.IntegerLiteral) and isinstance(better, types.IntegerLiteral)):
        return None
    found, how, sign = KINDS[kind], COMBINES[combine.literal_value], BETTER[better.literal_value]

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        k, rows, columns, to = args[:4]
        best, places = _loop(builder, found, how, sign, k, rows, columns)
        size = found.lanes * found.size
        for i, vector in enumerate((*best, *places)):
            builder.store(vector, at(builder, builder.add(to, word(i * size)), vector.type)).align = found.alignment
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64, combine, better, kind), code


def _loop(
    builder: Any, kind: Kind, how: str, sign: str, k: Any, rows: Any, columns: Any
) -> tuple[list[Any], list[Any]]:
    count, size = rows_of_block(), kind.lanes * kind.size
    index = ir.IntType(8 * kind.size)
    lanes = ir.VectorType(index, kind.lanes)
    first = _values(builder, kind, how, rows, columns)
    before, loop, done = builder.basic_block, builder.append_basic_block("k"), builder.append_basic_block("selected")
    builder.branch(loop)
    builder.position_at_end(loop)
    at_k, row, column = (builder.phi(WORD) for _ in range(3))
    best, places = ([builder.phi(of) for _ in first] for of in (kind.vector, lanes))
    nothing = ir.Constant(lanes, [0] * kind.lanes)
    starts = (word(0), rows, columns, *first, *[nothing] * len(first))
    for phi, start in zip((at_k, row, column, *best, *places), starts, strict=True):
        phi.add_incoming(start, before)
    values = _values(builder, kind, how, row, column)
    here = _splat(builder, builder.trunc(at_k, index) if kind.size < 8 else at_k, lanes)
    new: list[tuple[Any, Any]] = []
    for value, known, place in zip(values, best, places, strict=True):
        compare = builder.icmp_signed if kind.whole else builder.fcmp_ordered
        better = compare(sign, value, known)
        new.append((builder.select(better, value, known), builder.select(better, here, place)))
    following = builder.add(at_k, word(1))
    steps = builder.add(row, word(count * kind.size)), builder.add(column, word(VECTORS * size))
    builder.cbranch(builder.icmp_signed("<", following, k), loop, done)
    ends = (following, *steps, *(value for value, _ in new), *(place for _, place in new))
    for phi, end in zip((at_k, row, column, *best, *places), ends, strict=True):
        phi.add_incoming(end, loop)
    builder.position_at_end(done)
    return [value for value, _ in new], [place for _, place in new]


def _values(builder: Any, kind: Kind, how: str, rows: Any, columns: Any) -> list[Any]:
    """Combinations of one k, row by row."""
    vectors = []
    for v in range(VECTORS):
        place = builder.add(columns, word(v * kind.lanes * kind.size))
        vectors.append(builder.load(at(builder, place, kind.vector)))
        vectors[-1].align = kind.alignment
    found = []
    for i in range(rows_of_block()):
        item = builder.load(at(builder, builder.add(rows, word(i * kind.size)), kind.component))
        x = _splat(builder, item, kind.vector)
        found += [_combined(builder, kind, how, x, vector) for vector in vectors]
    return found


def _combined(builder: Any, kind: Kind, how: str, x: Any, y: Any) -> Any:
    if how == "add":
        return builder.add(x, y) if kind.whole else builder.fadd(x, y)
    if how == "mul":
        return builder.mul(x, y) if kind.whole else builder.fmul(x, y)
    compare = builder.icmp_signed if kind.whole else builder.fcmp_ordered
    return builder.select(compare(">" if how == "max" else "<", x, y), x, y)


def _splat(builder: Any, item: Any, vector: ir.VectorType) -> Any:
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, item, ir.Constant(HALF_WORD, 0))
    zeros = ir.Constant(ir.VectorType(HALF_WORD, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, nothing, zeros)
