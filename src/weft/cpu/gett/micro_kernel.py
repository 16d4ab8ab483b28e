"""The micro-kernel: a register block of sums, updated along k by one row of items and two vectors at a time.

    for each k:  acc[i, v] = reduce(acc[i, v], combine(a[i], b[v]))

Sums stay in registers (Goto 2008; BLIS, Van Zee 2015). The block is stored by rows, each to an address of its own, so
that D is written in its own order without a pass of its own.

A sum of floating numbers runs over `RUN` products at most. Then it is added to the others of its block of k, and those
to the blocks before: rounding errors grow with the length of what is summed in one go (Higham, Accuracy and Stability
of Numerical Algorithms, section 4.3).

A complex product keeps two real sums for each row: of a.re * b and of a.im * b, with b's components side by side. Then
a * b = first + i * second, put together once at the end; conjugation is a sign there. Each of the real products that a
complex one needs is one lane of one instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from weft.cpu.gett.params import OPERATIONS, VECTORS, Operation
from weft.cpu.gett.vector import HALF_WORD, KINDS, WORD, Kind, at, looped, splat, word

RUN = 192  # products of a running sum; a block of k has at most twice as many


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
    """The larger or smaller of any two values; NaN where one of them is NaN."""
    if kind.whole:
        return _larger(builder, kind, x, y, sign)
    chosen = builder.or_(builder.fcmp_ordered(sign, x, y), builder.fcmp_unordered("uno", x, x))
    return builder.select(chosen, x, y)


def applied(builder: Any, kind: Kind, name: str, x: Any, y: Any, exact: bool) -> Any:
    """One of the operations of a pair. `exact`: NaN is looked for."""
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
        return applied(builder, kind, reduce, applied(builder, kind, combine, x, y, exact), total, exact)

    return step


@intrinsic
def micro_kernel(
    typingctx: Any, k: Any, rows: Any, row_step: Any, first: Any, second: Any, slot_step: Any, start: Any,
    to_first: Any, to_second: Any, to_rows: Any, kind: Any, operation: Any,
) -> Any:  # fmt: skip
    """The sums of one register block.

    `rows`, `to_rows`: addresses of a word for each row, where its items begin and how far into D it goes. `first`,
    `second`: the two vectors at k = 0. `start`: sums to add to, a contiguous block, or 0 for none.
    """
    found = KINDS[kind]
    chosen = OPERATIONS[operation.count - 1]

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        k, rows, row_step, first, second, slot_step, start, *to, to_rows, _, _ = args
        block = _Block(found, chosen, (row_step, slot_step), (first, second), _words(builder, rows, found.rows))
        sums = block.summed(builder, k) if found.whole or chosen.reduce != "add" else _halved(builder, block, k)
        totals = _with_start(builder, block, block.finished(builder, sums), start)
        places = _words(builder, to_rows, found.rows)
        for at_sum, total in enumerate(totals):
            i, v = divmod(at_sum, VECTORS)
            stored = builder.store(total, at(builder, builder.add(to[v], places[i]), found.vector))
            stored.align = found.alignment
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10, kind, operation), code


class _Block(NamedTuple):
    """A register block: what is computed, and where its operands are stored."""

    kind: Kind
    operation: Operation
    steps: tuple[Any, Any]  # along k: of items in a row, and of vectors
    vectors: tuple[Any, Any]  # at k = 0
    places: list[Any]  # of each row at k = 0

    @property
    def parts(self) -> int:
        """Broadcast items of a row."""
        return 2 if self.kind.complex and not self.operation.real_row else 1

    def summed(self, builder: Any, k: Any, offsets: tuple[Any, Any] = (word(0), word(0))) -> list[Any]:
        """Sums of `k` products, at least one, from `offsets` (bytes in rows and vectors) on, begun anew."""
        found, chosen = self.kind, self.operation
        empty = ir.Constant(found.vector, [chosen.identity(found)] * found.width)

        def turn(left: Any, row: Any, slot: Any, *sums: Any) -> tuple[list[Any], Any]:
            vectors = []
            for base in self.vectors:
                vectors.append(builder.load(at(builder, builder.add(base, slot), found.vector)))
                vectors[-1].align = found.alignment
            step, new = _step(found, chosen.combine, chosen.reduce, chosen.exact), []
            for i in range(found.rows):
                for part in range(self.parts):
                    address = builder.add(self.places[i], row)
                    item = _broadcast(builder, found, builder.add(address, word(part * found.alignment)))
                    for v in range(VECTORS):
                        new.append(step(builder, item, vectors[v], sums[len(new)]))
            left = builder.sub(left, word(1))
            following = [left, *map(builder.add, (row, slot), self.steps), *new]
            return following, builder.icmp_signed(">", left, word(0))

        return looped(builder, (k, *offsets, *[empty] * (found.rows * self.parts * VECTORS)), turn)[3:]

    def added(self, builder: Any, more: list[Any], totals: list[Any]) -> list[Any]:
        """Sums reduced into earlier ones, in which a NaN stays whatever comes."""
        found, chosen = self.kind, self.operation
        return [applied(builder, found, chosen.reduce, x, y, chosen.exact) for x, y in zip(more, totals, strict=True)]

    def finished(self, builder: Any, sums: list[Any]) -> list[Any]:
        """Sums as D has them: of complex numbers both parts together, conjugated where that is requested."""
        found, chosen = self.kind, self.operation
        if chosen.real_row:
            return [_conjugate(builder, found, total) for total in sums] if chosen.conjugates_result else sums
        if not found.complex:
            return sums
        totals = []
        for i in range(found.rows):
            for v in range(VECTORS):
                first, second = (sums[(2 * i + part) * VECTORS + v] for part in range(2))
                totals.append(_complex(builder, found, first, second, chosen.conjugates_row, chosen.conjugates_result))
        return totals


def _halved(builder: Any, block: _Block, k: Any) -> list[Any]:
    """Sums of floating numbers, in two halves where they are long: what a sum rounds away grows with its length."""
    short = builder.icmp_signed("<=", k, word(RUN))
    half = builder.select(short, k, builder.lshr(builder.add(k, word(1)), word(1)))
    sums = block.summed(builder, half)
    before, further, done = builder.basic_block, builder.append_basic_block("half"), builder.append_basic_block("both")
    builder.cbranch(short, done, further)
    builder.position_at_end(further)
    offsets = builder.mul(half, block.steps[0]), builder.mul(half, block.steps[1])
    both = block.added(builder, block.summed(builder, builder.sub(k, half), offsets), sums)
    return _either(builder, done, (before, sums), (builder.basic_block, both))


def _with_start(builder: Any, block: _Block, totals: list[Any], start: Any) -> list[Any]:
    """A block's sums plus those of earlier blocks of k, where there are some: each block's sum begins anew."""
    found, before = block.kind, builder.basic_block
    resume, done = builder.append_basic_block("resume"), builder.append_basic_block("stored")
    builder.cbranch(builder.icmp_signed("!=", start, word(0)), resume, done)
    builder.position_at_end(resume)
    known = []
    for i in range(len(totals)):
        known.append(builder.load(at(builder, builder.add(start, word(i * found.lanes * found.size)), found.vector)))
        known[-1].align = found.alignment
    return _either(builder, done, (before, totals), (resume, block.added(builder, totals, known)))


def _either(builder: Any, done: Any, one: tuple[Any, list[Any]], other: tuple[Any, list[Any]]) -> list[Any]:
    """Values that come from one block of code or from another, which the builder is in, where both go on."""
    builder.branch(done)
    builder.position_at_end(done)
    found = []
    for x, y in zip(one[1], other[1], strict=True):
        found.append(builder.phi(x.type))
        found[-1].add_incoming(x, one[0])
        found[-1].add_incoming(y, other[0])
    return found


def _words(builder: Any, address: Any, count: int) -> list[Any]:
    return [builder.load(at(builder, builder.add(address, word(8 * i)), WORD)) for i in range(count)]


def _broadcast(builder: Any, kind: Kind, address: Any) -> Any:
    item = builder.load(at(builder, address, kind.component))
    item.align = kind.alignment
    return splat(builder, item, kind.vector)


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
