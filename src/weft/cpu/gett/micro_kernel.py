"""The micro-kernel: a register block of sums, updated along k by one row of items and two vectors at a time.

    for each k:  acc[i, v] = reduce(acc[i, v], combine(a[i], b[v]))

Sums stay in registers (Goto 2008; BLIS, Van Zee 2015). The block is stored by rows, each to an address of its own, so
that D is written in its own order without a pass of its own.

A complex product keeps two real sums for each row: of a.re * b and of a.im * b, with b's components side by side. Then
a * b = first + i * second, put together once at the end; conjugation is a sign there. Each of the real products that a
complex one needs is one lane of one instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from weft.cpu.gett.operations import OPERATIONS, Operation
from weft.cpu.gett.params import VECTORS
from weft.cpu.gett.vector import HALF_WORD, KINDS, WORD, Kind, at, word


def _fma(builder: Any, kind: Kind, x: Any, y: Any, total: Any) -> Any:
    if kind.whole:
        return builder.add(builder.mul(x, y), total)
    name = f"llvm.fma.v{kind.width}f{kind.alignment * 8}"
    known = builder.module.globals.get(name)
    function = known or ir.Function(builder.module, ir.FunctionType(kind.vector, [kind.vector] * 3), name)
    return builder.call(function, [x, y, total])


def _larger(builder: Any, kind: Kind, x: Any, y: Any, sign: str) -> Any:
    """The larger or smaller of two values that are no NaN: one instruction on x86."""
    known = builder.icmp_signed(sign, x, y) if kind.whole else builder.fcmp_ordered(sign, x, y)
    return builder.select(known, x, y)


def _larger_or_nan(builder: Any, kind: Kind, x: Any, y: Any, sign: str) -> Any:
    """The same of any values: NaN where one of them is."""
    if kind.whole:
        return _larger(builder, kind, x, y, sign)
    chosen = builder.or_(builder.fcmp_ordered(sign, x, y), builder.fcmp_unordered("uno", x, x))
    return builder.select(chosen, x, y)


def _applied(builder: Any, kind: Kind, name: str, x: Any, y: Any, exact: bool) -> Any:
    if name == "mul":
        return builder.mul(x, y) if kind.whole else builder.fmul(x, y)
    if name == "add":
        return builder.add(x, y) if kind.whole else builder.fadd(x, y)
    if name in ("and", "xor"):
        return builder.and_(x, y) if name == "and" else builder.xor(x, y)
    larger = _larger_or_nan if exact else _larger
    return larger(builder, kind, x, y, ">" if name == "max" else "<")


def _step(kind: Kind, combine: str, reduce: str, exact: bool) -> Callable[..., Any]:
    """One product and sum: (builder, item of the row in all lanes, vector, sum) -> sum."""
    if (combine, reduce) == ("mul", "add"):
        return lambda builder, x, y, total: _fma(builder, kind, x, y, total)

    def step(builder: Any, x: Any, y: Any, total: Any) -> Any:
        return _applied(builder, kind, reduce, _applied(builder, kind, combine, x, y, exact), total, exact)

    return step


@intrinsic
def micro_kernel(
    typingctx: Any, k: Any, rows: Any, row_step: Any, first: Any, second: Any, slot_step: Any, start: Any,
    to_first: Any, to_second: Any, to_rows: Any, kind: Any, operation: Any,
) -> Any:  # fmt: skip
    """The sums of one register block.

    `rows`, `to_rows`: addresses of a word for each row, where its items begin and how far into D it goes. `first`,
    `second`: the two vectors at k = 0. `start`: sums to go on from, a contiguous block, or 0 for none.
    """
    found = KINDS[kind]
    chosen = OPERATIONS[operation.count - 1]

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        k, rows, row_step, first, second, slot_step, start, *to, to_rows, _, _ = args
        parts = 2 if found.complex and not chosen.real_row else 1  # broadcast items of a row
        totals = _started(builder, found, start, chosen)
        places = [builder.load(at(builder, builder.add(rows, word(8 * i)), WORD)) for i in range(found.rows)]
        before, loop, done = builder.basic_block, builder.append_basic_block("k"), builder.append_basic_block("stored")
        builder.branch(loop)
        builder.position_at_end(loop)
        counters = []
        for initial in (k, word(0), word(0)):
            counters.append(builder.phi(WORD))
            counters[-1].add_incoming(initial, before)
        sums = []
        for total in totals:
            sums.append(builder.phi(found.vector))
            sums[-1].add_incoming(total, before)
        vectors = []
        for base in (first, second):
            vectors.append(builder.load(at(builder, builder.add(base, counters[2]), found.vector)))
            vectors[-1].align = found.alignment
        step, new = _step(found, chosen.combine, chosen.reduce, chosen.exact), []
        for i in range(found.rows):
            for part in range(parts):
                address = builder.add(places[i], counters[1])
                item = _broadcast(builder, found, builder.add(address, word(part * found.alignment)))
                for v in range(VECTORS):
                    at_sum = (i * parts + part) * VECTORS + v
                    new.append(step(builder, item, vectors[v], sums[at_sum]))
        left = builder.sub(counters[0], word(1))
        following = (left, builder.add(counters[1], row_step), builder.add(counters[2], slot_step))
        builder.cbranch(builder.icmp_signed(">", left, word(0)), loop, done)
        for phi, value in zip((*counters, *sums), (*following, *new), strict=True):
            phi.add_incoming(value, loop)
        builder.position_at_end(done)
        for i in range(found.rows):
            along = builder.load(at(builder, builder.add(to_rows, word(8 * i)), WORD))
            for v, base in enumerate(to):
                total = new[i * parts * VECTORS + v]
                if chosen.real_row:
                    total = _conjugate(builder, found, total) if chosen.conjugates_result else total
                elif found.complex:
                    turned = new[(i * parts + 1) * VECTORS + v]
                    total = _complex(builder, found, total, turned, chosen.conjugates_row, chosen.conjugates_result)
                stored = builder.store(total, at(builder, builder.add(base, along), found.vector))
                stored.align = found.alignment
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10, kind, operation), code


def _broadcast(builder: Any, kind: Kind, address: Any) -> Any:
    item = builder.load(at(builder, address, kind.component))
    item.align = kind.alignment
    nothing, lanes = ir.Constant(kind.vector, ir.Undefined), ir.VectorType(HALF_WORD, kind.width)
    one = builder.insert_element(nothing, item, ir.Constant(HALF_WORD, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(lanes, [0] * kind.width))


def _started(builder: Any, kind: Kind, start: Any, operation: Operation) -> list[Any]:
    """Sums to begin with: the identity, or those of an earlier block of k."""
    empty = ir.Constant(kind.vector, [operation.identity(kind)] * kind.width)
    before = builder.basic_block
    resume, loop = builder.append_basic_block("resume"), builder.append_basic_block("begin")
    builder.cbranch(builder.icmp_signed("!=", start, word(0)), resume, loop)
    builder.position_at_end(resume)
    loaded = []
    for i in range(kind.rows * VECTORS):
        address = builder.add(start, word(i * kind.lanes * kind.size))
        loaded.append(builder.load(at(builder, address, kind.vector)))
        loaded[-1].align = kind.alignment
        if operation.conjugates_result:
            loaded[-1] = _conjugate(builder, kind, loaded[-1])
    builder.branch(loop)
    builder.position_at_end(loop)
    found = []
    for value in loaded:
        phi = builder.phi(kind.vector)
        phi.add_incoming(empty, before)
        phi.add_incoming(value, resume)
        found.append(phi)
    if not kind.complex or operation.real_row:
        return found
    pairs = [found[i : i + VECTORS] + [empty] * VECTORS for i in range(0, len(found), VECTORS)]
    return [total for pair in pairs for total in pair]


def _conjugate(builder: Any, kind: Kind, value: Any) -> Any:
    mask = ir.Constant(ir.VectorType(HALF_WORD, kind.width), [j + kind.width * (j % 2) for j in range(kind.width)])
    return builder.shuffle_vector(value, builder.fneg(value), mask)


def _complex(builder: Any, kind: Kind, first: Any, second: Any, row: bool, result: bool) -> Any:
    """first + i * second; minus where the row operand is conjugated; the result conjugated."""
    width = kind.width
    turned = builder.shuffle_vector(
        second, ir.Constant(kind.vector, ir.Undefined),
        ir.Constant(ir.VectorType(HALF_WORD, width), [j ^ 1 for j in range(width)]),
    )  # fmt: skip
    total, less = builder.fadd(first, turned), builder.fsub(first, turned)
    picked = [j + width * (j % 2 if row else 1 - j % 2) for j in range(width)]
    total = builder.shuffle_vector(total, less, ir.Constant(ir.VectorType(HALF_WORD, width), picked))
    return _conjugate(builder, kind, total) if result else total
