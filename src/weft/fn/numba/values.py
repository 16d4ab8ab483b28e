"""Functions that compiled code alone calls: how they are made, and those for elements in memory as numba's values.

numba leaves out what Python and C would call, a fifth of its work. Elements are loaded, stored, and rounded to short
types by torch's number types. Floating types of one and two bytes are held as float32. Addresses are words, and
elements are reached by LLVM's own pointer arithmetic, which its vectoriser understands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from weft.fn.writer import past_e4m3


def inner_with(**options: Any) -> Any:
    """The decorator of such functions, with more options of numba's."""
    return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", **options)


inner = inner_with()
#: Of functions that are called at one place: as part of their caller they are optimised and assembled once, not twice.
inline = inner_with(inline="always")


def by_type(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose code depends on the types of its arguments: for these `implementation` returns one to inline."""

    def of_compiled_code(*arguments: Any) -> Any:
        raise NotImplementedError("compiled code alone")

    overload(of_compiled_code, strict=False)(implementation)
    return of_compiled_code


_WORD = ir.IntType(64)
_HALF, _SINGLE, _BYTE, _SHORT, _INT = ir.HalfType(), ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32)


def _place(context: Any, builder: Any, held: Any, stored: ir.Type | None, base: Any, index: Any) -> tuple[Any, int]:
    """The address of an element, which is held as it is where no type is given that it is stored in; its alignment."""
    kind = stored or context.get_data_type(held)
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index]), context.get_abi_alignment(kind)


def _loader(held: Any, stored: ir.Type | None = None, widen: Any = None) -> Any:
    @intrinsic
    def load(typingctx: Any, base: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place, alignment = _place(context, builder, held, stored, *args)
            value = builder.load(place)
            value.align = alignment
            return value if widen is None else widen(builder, value)

        return held(types.int64, types.int64), code

    return load


def _storer(held: Any, stored: ir.Type | None = None, narrow: Any = None) -> Any:
    @intrinsic
    def store(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = args[2] if narrow is None else narrow(builder, args[2])
            place, alignment = _place(context, builder, held, stored, *args[:2])
            builder.store(value, place).align = alignment
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, held), code

    return store


def _from_bfloat16(builder: Any, value: Any) -> Any:
    bits = builder.shl(builder.zext(value, _INT), ir.Constant(_INT, 16))
    return builder.bitcast(bits, _SINGLE)


def _to_bfloat16(builder: Any, value: Any) -> Any:
    """To nearest, ties to even: a bias of half a unit, less one where the last kept bit is 0. NaN stays NaN."""
    bits = builder.bitcast(value, _INT)
    odd = builder.and_(builder.lshr(bits, ir.Constant(_INT, 16)), ir.Constant(_INT, 1))
    rounded = builder.add(bits, builder.add(odd, ir.Constant(_INT, 0x7FFF)))
    rounded = builder.select(builder.fcmp_unordered("uno", value, value), ir.Constant(_INT, 0x7FC00000), rounded)
    return builder.trunc(builder.lshr(rounded, ir.Constant(_INT, 16)), _SHORT)


class _Short(NamedTuple):
    """A floating type of one byte: bits of its fraction, and bits of float32 with a meaning to it."""

    fraction: int
    bias: int
    past: int  # the least number that is past its largest, as float32 has it
    least: int  # its least normal number
    largest: int  # bits of what it has instead of what is past: NaN, infinity, or its largest number
    special: int  # bits of what follows its largest number


_E4M3 = _Short(3, 7, 1087 << 20, 121 << 23, past_e4m3(), 0x7F)
_E5M2 = _Short(2, 15, 143 << 23, 113 << 23, 0x7C, 0x7C)


def _to_byte(kind: _Short) -> Any:
    """To nearest, ties to even; below the normal numbers by a sum that rounds, as in torch's `Float8_e4m3fn.h`.

    A normal number is rounded by a bias of half a unit, less one where the last kept bit is 0.
    """

    def code(builder: Any, value: Any) -> Any:
        def number(bits: int) -> Any:
            return ir.Constant(_INT, bits & 0xFFFFFFFF)

        shift = 23 - kind.fraction
        bits = builder.bitcast(value, _INT)
        size = builder.and_(bits, number(0x7FFFFFFF))
        scale = number((127 - kind.bias + shift + 1) << 23)
        moved = builder.fadd(builder.bitcast(size, _SINGLE), builder.bitcast(scale, _SINGLE))
        small = builder.sub(builder.bitcast(moved, _INT), scale)
        odd = builder.and_(builder.lshr(size, number(shift)), number(1))
        rounded = builder.add(builder.add(size, odd), number(((kind.bias - 127) << 23) + (1 << (shift - 1)) - 1))
        rounded = builder.lshr(rounded, number(shift))
        most = builder.icmp_unsigned(">", rounded, number(kind.largest))
        rounded = builder.select(most, number(kind.largest), rounded)
        found = builder.select(builder.icmp_unsigned("<", size, number(kind.least)), small, rounded)
        past = builder.select(builder.icmp_unsigned(">", size, number(255 << 23)), number(0x7F), number(kind.largest))
        found = builder.select(builder.icmp_unsigned(">=", size, number(kind.past)), past, found)
        sign = builder.and_(builder.lshr(bits, number(24)), number(0x80))
        return builder.trunc(builder.or_(found, sign), _BYTE)

    return code


def _from_byte(kind: _Short) -> Any:
    """Its bits moved into a float32 are the value times a power of two, subnormal numbers as well."""

    def code(builder: Any, value: Any) -> Any:
        wide = builder.zext(value, _INT)
        size = builder.and_(wide, ir.Constant(_INT, 0x7F))
        moved = builder.bitcast(builder.shl(size, ir.Constant(_INT, 23 - kind.fraction)), _SINGLE)
        scaled = builder.fmul(moved, ir.Constant(_SINGLE, 2.0 ** (127 - kind.bias)))
        bits = builder.bitcast(scaled, _INT)
        for least, found in ((kind.special, 0x7F800000), (0x7D if kind is _E5M2 else 0x7F, 0x7FC00000)):
            special = builder.icmp_unsigned(">=", size, ir.Constant(_INT, least))
            bits = builder.select(special, ir.Constant(_INT, found), bits)
        sign = builder.shl(builder.and_(wide, ir.Constant(_INT, 0x80)), ir.Constant(_INT, 24))
        return builder.bitcast(builder.or_(bits, sign), _SINGLE)

    return code


_NUMBERS = {
    "float32": types.float32, "float64": types.float64, "complex64": types.complex64, "complex128": types.complex128,
    "int8": types.int8, "uint8": types.uint8, "int16": types.int16, "int32": types.int32, "int64": types.int64,
}  # fmt: skip
#: The types that short floating ones are stored in, and what makes a float32 of such a value, and that of a float32.
_SHORTS = {
    "float16": (
        _HALF, lambda builder, value: builder.fpext(value, _SINGLE),
        lambda builder, value: builder.fptrunc(value, _HALF),
    ),
    "bfloat16": (_SHORT, _from_bfloat16, _to_bfloat16),
    "float8_e4m3fn": (_BYTE, _from_byte(_E4M3), _to_byte(_E4M3)),
    "float8_e5m2": (_BYTE, _from_byte(_E5M2), _to_byte(_E5M2)),
}  # fmt: skip
LOADS = {
    **{name: _loader(held) for name, held in _NUMBERS.items()},
    **{name: _loader(types.float32, stored, widen) for name, (stored, widen, _) in _SHORTS.items()},
    "bool": _loader(types.boolean, _BYTE, lambda builder, value: builder.icmp_unsigned("!=", value, _BYTE(0))),
}
STORES = {
    **{name: _storer(held) for name, held in _NUMBERS.items()},
    **{name: _storer(types.float32, stored, narrow) for name, (stored, _, narrow) in _SHORTS.items()},
    "bool": _storer(types.boolean, _BYTE, lambda builder, value: builder.zext(value, _BYTE)),
}


def _rounding(narrow: Any, widen: Any) -> Any:
    """A function: the nearest value that a short type has."""

    @intrinsic
    def nearest(typingctx: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return widen(builder, narrow(builder, args[0]))

        return types.float32(types.float32), code

    return nearest


ROUNDS = {name: _rounding(narrow, widen) for name, (_, widen, narrow) in _SHORTS.items()}


@intrinsic
def bits_of(typingctx: Any, value: Any) -> Any:
    """The bits of a float32 or float64 as an integer."""
    single = value == types.float32

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _INT if single else _WORD)

    return types.int32(types.float32) if single else types.int64(types.float64), code


@intrinsic
def of_bits(typingctx: Any, bits: Any) -> Any:
    """The float32 or float64 of such bits."""
    single = bits == types.int32

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _SINGLE if single else ir.DoubleType())

    return types.float32(types.int32) if single else types.float64(types.int64), code
