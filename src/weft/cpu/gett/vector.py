"""Vectors of the host in numba: loads, stores and transposes in registers, as LLVM instructions.

numba has no vector type. An intrinsic writes LLVM's own, whose width is what the host has. Addresses are int64. Which
number type an intrinsic is for is given by the numba type of its last argument, `kind`, whose value is not used: so the
loops around are written once and compiled for each type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from weft.cpu.gett.params import BLOCK_ROWS
from weft.cpu.level import vector_bytes

WORD, BYTE, HALF_WORD = ir.IntType(64), ir.IntType(8), ir.IntType(32)


class Kind(NamedTuple):
    """A number type as kernels see it; a complex number is an item of two components."""

    component: ir.Type
    size: int  # bytes of an item
    lanes: int  # items of a vector
    rows: int  # of a register block
    complex: bool = False
    whole: bool = False

    @property
    def width(self) -> int:
        """Components of a vector."""
        return self.lanes * (2 if self.complex else 1)

    @property
    def vector(self) -> ir.VectorType:
        return ir.VectorType(self.component, self.width)

    @property
    def alignment(self) -> int:
        return self.size // (2 if self.complex else 1)


def kind_of(component: ir.Type, size: int, *, is_complex: bool = False, whole: bool = False) -> Kind:
    """A register block is 6 rows of two vectors: 12 of 16 registers hold sums (BLIS, Van Zee 2015)."""
    rows = BLOCK_ROWS // 2 if is_complex else BLOCK_ROWS
    return Kind(component, size, vector_bytes() // size, rows, is_complex, whole)


KINDS: dict[Any, Kind] = {
    types.float32: kind_of(ir.FloatType(), 4),
    types.float64: kind_of(ir.DoubleType(), 8),
    types.complex64: kind_of(ir.FloatType(), 8, is_complex=True),
    types.complex128: kind_of(ir.DoubleType(), 16, is_complex=True),
    types.int32: kind_of(HALF_WORD, 4, whole=True),
    types.int64: kind_of(WORD, 8, whole=True),
}


def at(builder: Any, address: Any, kind: ir.Type) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def word(value: int) -> ir.Constant:
    return ir.Constant(WORD, value)


def splat(builder: Any, item: Any, vector: ir.VectorType) -> Any:
    """An item in all lanes."""
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, item, ir.Constant(HALF_WORD, 0))
    zeros = ir.Constant(ir.VectorType(HALF_WORD, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, nothing, zeros)


def looped(builder: Any, starts: Sequence[Any], turn: Callable[..., tuple[list[Any], Any]]) -> list[Any]:
    """The last values of a loop over registers, from `starts` on.

    `turn` makes the next values of those that it is given, and says whether another turn follows.
    """
    before, loop, done = builder.basic_block, builder.append_basic_block("turn"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    values = [builder.phi(start.type) for start in starts]
    for value, start in zip(values, starts, strict=True):
        value.add_incoming(start, before)
    following, again = turn(*values)
    builder.cbranch(again, loop, done)
    for value, new in zip(values, following, strict=True):
        value.add_incoming(new, loop)
    builder.position_at_end(done)
    return following


def _constant(of: Any) -> Any:
    @intrinsic
    def constant(typingctx: Any, kind: Any) -> Any:
        value = of(KINDS[kind])
        return types.int64(kind), lambda context, builder, signature, args: word(value)

    return constant


item_size = _constant(lambda kind: kind.size)
lane_count = _constant(lambda kind: kind.lanes)
row_count = _constant(lambda kind: kind.rows)


@intrinsic
def opaque(typingctx: Any, value: Any) -> Any:
    """The value, which the compiler no longer knows: a loop over it is not unrolled."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.asm(ir.FunctionType(WORD, [WORD]), "", "=r,0", args, side_effect=False)

    return types.int64(types.int64), code


@intrinsic
def whole_vectors(typingctx: Any) -> Any:
    """Let LLVM make vectors as long as kernels': for some processors it takes half of that by itself."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if vector_bytes() == 64:  # llvmlite knows no attributes with values
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def load_word(typingctx: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(at(builder, args[0], WORD))

    return types.int64(types.int64), code


@intrinsic
def store_word(typingctx: Any, address: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], at(builder, args[0], WORD))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


def _copier(of: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, alignment = of(signature)
        value = builder.load(at(builder, args[1], kind))
        value.align = alignment
        builder.store(value, at(builder, args[0], kind)).align = alignment
        return context.get_dummy_value()

    return code


@intrinsic
def copy_vector(typingctx: Any, to: Any, source: Any, kind: Any) -> Any:
    code = _copier(lambda signature: (KINDS[signature.args[2]].vector, KINDS[signature.args[2]].alignment))
    return types.void(types.int64, types.int64, kind), code


@intrinsic
def copy_item(typingctx: Any, to: Any, source: Any, kind: Any) -> Any:
    def of(signature: Any) -> tuple[ir.Type, int]:
        found = KINDS[signature.args[2]]
        return ir.IntType(8 * found.size), found.alignment  # LLVM gathers and scatters no short vectors

    return types.void(types.int64, types.int64, kind), _copier(of)


def _copy_bytes(size: int) -> Any:
    @intrinsic
    def copy(typingctx: Any, to: Any, source: Any) -> Any:
        return types.void(types.int64, types.int64), _copier(lambda signature: (ir.IntType(8 * size), 1))

    return copy


copy_1, copy_2, copy_4, copy_8 = (_copy_bytes(size) for size in (1, 2, 4, 8))


@intrinsic
def store_half_word(typingctx: Any, address: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(builder.trunc(args[1], HALF_WORD), at(builder, args[0], HALF_WORD))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def stack(typingctx: Any, size: Any) -> Any:
    """The address of so many bytes that live as long as the function around; the number is a constant."""
    if not isinstance(size, types.IntegerLiteral):
        return None

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        memory = cgutils.alloca_once(builder, BYTE, size=size.literal_value)  # of an array it would clear each byte
        memory.align = 64
        return builder.ptrtoint(memory, WORD)

    return types.int64(size), code


def _of_c(name: str, result: ir.Type, builder: Any, argument: Any) -> Any:
    """A call of a function of the C library."""
    shape = ir.FunctionType(result, [argument.type])
    return builder.call(cgutils.get_or_insert_function(builder.module, shape, name), [argument])


@intrinsic
def allocate(typingctx: Any, size: Any) -> Any:
    """The address of so many bytes, until `release`: an array of numba's would tie kernels to its runtime."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(_of_c("malloc", BYTE.as_pointer(), builder, args[0]), WORD)

    return types.int64(types.int64), code


@intrinsic
def release(typingctx: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _of_c("free", ir.VoidType(), builder, at(builder, args[0], BYTE))
        return context.get_dummy_value()

    return types.void(types.int64), code


@intrinsic
def fetch_add(typingctx: Any, address: Any) -> Any:
    """The word at an address, and one more there: threads draw tasks by it."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", at(builder, args[0], WORD), word(1), "monotonic")

    return types.int64(types.int64), code


@intrinsic
def raise_to(typingctx: Any, address: Any, value: Any) -> Any:
    """Let the integer at an address be no less than a value, whatever other threads do to it meanwhile."""
    kind = HALF_WORD if value == types.int32 else WORD

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.atomic_rmw("max", at(builder, args[0], kind), args[1], "monotonic")
        return context.get_dummy_value()

    return types.void(types.int64, value), code


@intrinsic
def invoke(typingctx: Any, function: Any, arguments: Any) -> Any:
    """Call the function at an address with a tuple of words."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = cgutils.unpack_tuple(builder, args[1])
        shape = ir.FunctionType(ir.VoidType(), [WORD] * len(given))
        builder.call(at(builder, args[0], shape), given)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), code


def _extreme(sign: str) -> Any:
    @intrinsic
    def extreme(typingctx: Any, address: Any, count: Any, kind: Any) -> Any:
        if not isinstance(count, types.IntegerLiteral):
            return None

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found, most = KINDS[signature.args[2]], None
            for i in range(count.literal_value // found.lanes):
                place = builder.add(args[0], word(i * found.lanes * found.size))
                vector = builder.load(at(builder, place, found.vector))
                most = vector if most is None else _further(builder, sign, vector, most)
            step = found.lanes // 2
            while step:
                mask = ir.Constant(ir.VectorType(HALF_WORD, found.lanes), [j ^ step for j in range(found.lanes)])
                most = _further(builder, sign, builder.shuffle_vector(most, most, mask), most)
                step //= 2
            return builder.extract_element(most, ir.Constant(HALF_WORD, 0))

        return kind(types.int64, count, kind), code

    return extreme


def _further(builder: Any, sign: str, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(sign, x, y), x, y)


#: The largest or smallest of so many items at an address, whole vectors of them, none of them NaN.
largest, smallest = _extreme(">"), _extreme("<")


def prefetched(builder: Any, address: Any) -> None:
    """Have the cache line at an address fetched."""
    pointer = BYTE.as_pointer()
    shape = ir.FunctionType(ir.VoidType(), [pointer, HALF_WORD, HALF_WORD, HALF_WORD])
    function = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0i8")
    builder.call(function, [builder.inttoptr(address, pointer), *(ir.Constant(HALF_WORD, each) for each in (0, 3, 1))])


def stored(builder: Any, value: Any, address: Any, *, streamed: int) -> None:
    """`streamed`: bytes of the vector, which begins at a multiple of them; 0 for an ordinary store."""
    store = builder.store(value, at(builder, address, value.type))
    store.align = streamed or 1
    if streamed:
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(HALF_WORD, 1)]))


def transposing(ahead: Mapping[int, int] | None = None, *, streamed: bool = False) -> Any:
    """The transposition of a square; `ahead`: bytes that are prefetched along its rows, by the size of an item."""

    @intrinsic
    def transpose(typingctx: Any, source: Any, rows: Any, target: Any, columns: Any, kind: Any) -> Any:
        """A square of items: rows at source + rows[i] become those at target + columns[i].

        Rows change places by halves, then by quarters: log2(lanes) shuffles for a vector.
        """

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, rows, target, columns, _ = args
            found = KINDS[signature.args[4]]
            values = []
            for i in range(found.lanes):
                offset = builder.load(at(builder, builder.add(rows, word(8 * i)), WORD))
                address = builder.add(source, offset)
                values.append(builder.load(at(builder, address, found.vector)))
                values[-1].align = 1
                if ahead is not None:
                    prefetched(builder, builder.add(address, word(ahead[found.size])))
            for i, column in enumerate(transposed(builder, values, found)):
                offset = builder.load(at(builder, builder.add(columns, word(8 * i)), WORD))
                size = found.lanes * found.size if streamed else 0
                stored(builder, column, builder.add(target, offset), streamed=size)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64, kind), code

    return transpose


transpose = transposing()


def transposed(builder: Any, rows: list[Any], kind: Kind) -> list[Any]:
    """The columns of a square of vectors."""
    lanes, each = kind.lanes, 2 if kind.complex else 1

    def mask(items: list[int]) -> ir.Constant:
        spread = [item * each + part for item in items for part in range(each)]
        return ir.Constant(ir.VectorType(HALF_WORD, len(spread)), spread)

    step = lanes // 2
    while step:
        low = mask([j if not (j // step) % 2 else lanes + j - step for j in range(lanes)])
        high = mask([j + step if not (j // step) % 2 else lanes + j for j in range(lanes)])
        found = list(rows)
        for i in range(lanes):
            if not (i // step) % 2:
                found[i] = builder.shuffle_vector(rows[i], rows[i + step], low)
                found[i + step] = builder.shuffle_vector(rows[i], rows[i + step], high)
        rows, step = found, step // 2
    return rows
