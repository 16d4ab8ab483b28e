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

from weft.cpu.gett.micro_kernel import applied
from weft.cpu.gett.params import VECTORS
from weft.cpu.gett.vector import KINDS, Kind, at, looped, splat, word
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
    nothing = ir.Constant(lanes, [0] * kind.lanes)

    def turn(at_k: Any, row: Any, column: Any, *kept: Any) -> tuple[list[Any], Any]:
        values = _values(builder, kind, how, row, column)
        here = splat(builder, builder.trunc(at_k, index) if kind.size < 8 else at_k, lanes)
        best, places = [], []
        for value, known, place in zip(values, kept[: len(first)], kept[len(first) :], strict=True):
            compare = builder.icmp_signed if kind.whole else builder.fcmp_ordered
            better = compare(sign, value, known)
            best.append(builder.select(better, value, known))
            places.append(builder.select(better, here, place))
        following = builder.add(at_k, word(1))
        steps = builder.add(row, word(count * kind.size)), builder.add(column, word(VECTORS * size))
        return [following, *steps, *best, *places], builder.icmp_signed("<", following, k)

    _, _, _, *last = looped(builder, (word(0), rows, columns, *first, *[nothing] * len(first)), turn)
    return last[: len(first)], last[len(first) :]


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
        x = splat(builder, item, kind.vector)
        found += [applied(builder, kind, how, x, vector, False) for vector in vectors]
    return found
