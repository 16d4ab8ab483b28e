"""Elements in memory as numba's values, by torch's number types: loads, stores, and roundings to half precision.

Half types are held as float32. Addresses are words, and elements are reached by LLVM's own pointer arithmetic, which
its vectoriser understands.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_HALF, _SINGLE, _SHORT, _INT = ir.HalfType(), ir.FloatType(), ir.IntType(16), ir.IntType(32)


def _element(builder: Any, base: Any, index: Any, kind: ir.Type) -> Any:
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])


def _plain(context: Any, held: Any) -> tuple[ir.Type, int]:
    kind = context.get_data_type(held)
    size = held.bitwidth // 8
    return kind, size // 2 if isinstance(held, types.Complex) else size


def _loader(held: Any, stored: ir.Type | None = None, widen: Any = None) -> Any:
    @intrinsic
    def load(typingctx: Any, base: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind, size = (stored, stored.width // 8 if isinstance(stored, ir.IntType) else 2) if stored else _plain(
                context, held
            )  # fmt: skip
            value = builder.load(_element(builder, args[0], args[1], kind))
            value.align = size
            return value if widen is None else widen(builder, value)

        return held(types.int64, types.int64), code

    return load


def _storer(held: Any, stored: ir.Type | None = None, narrow: Any = None) -> Any:
    @intrinsic
    def store(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind, size = (stored, stored.width // 8 if isinstance(stored, ir.IntType) else 2) if stored else _plain(
                context, held
            )  # fmt: skip
            value = args[2] if narrow is None else narrow(builder, args[2])
            builder.store(value, _element(builder, args[0], args[1], kind)).align = size
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


def _to_bool(builder: Any, value: Any) -> Any:
    return builder.icmp_unsigned("!=", value, ir.Constant(ir.IntType(8), 0))


_NUMBERS = {
    "float32": types.float32, "float64": types.float64, "complex64": types.complex64, "complex128": types.complex128,
    "int8": types.int8, "uint8": types.uint8, "int16": types.int16, "int32": types.int32, "int64": types.int64,
}  # fmt: skip
LOADS = {name: _loader(held) for name, held in _NUMBERS.items()} | {
    "float16": _loader(types.float32, _HALF, lambda builder, value: builder.fpext(value, _SINGLE)),
    "bfloat16": _loader(types.float32, _SHORT, _from_bfloat16),
    "bool": _loader(types.boolean, ir.IntType(8), _to_bool),
}
STORES = {name: _storer(held) for name, held in _NUMBERS.items()} | {
    "float16": _storer(types.float32, _HALF, lambda builder, value: builder.fptrunc(value, _HALF)),
    "bfloat16": _storer(types.float32, _SHORT, _to_bfloat16),
    "bool": _storer(types.boolean, ir.IntType(8), lambda builder, value: builder.zext(value, ir.IntType(8))),
}


@intrinsic
def round_float16(typingctx: Any, value: Any) -> Any:
    """The nearest value that float16 has."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.fptrunc(args[0], _HALF), _SINGLE)

    return types.float32(types.float32), code


@intrinsic
def round_bfloat16(typingctx: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _from_bfloat16(builder, _to_bfloat16(builder, args[0]))

    return types.float32(types.float32), code


@intrinsic
def bits_of(typingctx: Any, value: Any) -> Any:
    """The bits of a float64 as an integer."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _WORD)

    return types.int64(types.float64), code


@intrinsic
def of_bits(typingctx: Any, bits: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), code
