"""Which number types a contraction uses: storage from the tensors, then product, accumulator and result by choice; and
the one reader of what names a type, for Python and the command line alike.

Nothing is promoted silently and no less exact mode is a default: see `resolve`.

A sum of integers wraps around no earlier than its result does. One that is stored in 64 bits is made in int64. One that
becomes a floating number is made in int32, which matrix instructions add in, as long as no sum of its length leaves
that, else in int64. One that is stored in 32 bits or fewer is made in int32.

A type is named by a torch dtype, a NumPy dtype or scalar type, or text: torch's and NumPy's names, with or without
"torch." or "numpy." before them, and the short names of the field ("fp16", "half", "bf16", "e4m3", "c64", ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from weft.base.figures import dtype_name as dtype_name
from weft.base.figures import nearest
from weft.errors import DTypeError, UnsupportedError
from weft.spec.contraction import Arithmetic

#: What names a number type.
DTypeLike: TypeAlias = "torch.dtype | str | np.dtype[Any] | type[Any]"

_SHORT = {
    torch.float16: ("fp16", "f16", "half"),
    torch.bfloat16: ("bf16",),
    torch.float32: ("fp32", "f32", "float", "single"),
    torch.float64: ("fp64", "f64", "double"),
    torch.complex32: ("c32", "chalf"),
    torch.complex64: ("c64", "cfloat"),
    torch.complex128: ("c128", "cdouble"),
    torch.float8_e4m3fn: ("e4m3", "e4m3fn", "fp8", "fp8_e4m3", "float8_e4m3"),
    torch.float8_e5m2: ("e5m2", "fp8_e5m2"),
    torch.int8: ("i8", "s8", "char"),
    torch.int16: ("i16", "s16", "short"),
    torch.int32: ("i32", "s32", "int"),
    torch.int64: ("i64", "s64", "long"),
    torch.uint8: ("u8", "byte"),
    torch.uint16: ("u16",),
    torch.uint32: ("u32",),
    torch.uint64: ("u64",),
    torch.bool: ("b1", "bool8"),
}
#: Every name by which text may ask for a type.
NAMES = {dtype_name(dtype): dtype for dtype in _SHORT} | {
    short: dtype for dtype, names in _SHORT.items() for short in names
}

PRECISIONS = ("ieee", "ieee_bound", "tf32", "tf32x3", "3m")
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)

# The largest magnitude of a product of two values.
_LARGEST = {torch.int8: 128**2, torch.uint8: 255**2, torch.int16: 2**30}
NARROW = (torch.int8, torch.uint8, torch.int16, torch.int32)  # the integers that may be added in int32
# The accumulators each product type may have, its default first.
_ACCUMULATORS: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    **dict.fromkeys(FP8, (torch.float32,)),
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), (torch.float32, torch.float64)),
    torch.float64: (torch.float64,),
    torch.complex64: (torch.complex64, torch.complex128),
    torch.complex128: (torch.complex128,),
    **dict.fromkeys(NARROW, (torch.int32, torch.int64)),
    torch.int64: (torch.int64,),
}
# In what matrix instructions add products of elements as they are stored.
MATRIX_SUMS = {**dict.fromkeys((torch.float16, torch.bfloat16, *FP8), torch.float32), torch.int8: torch.int32}
# Truth values have no sum of products; other algebras keep them or count in integers.
_ACCUMULATORS_OF_BOOL = (torch.bool, torch.int32, torch.int64)
# What holds the sums of types that do not.
NEEDS_OUT_DTYPE = {
    **dict.fromkeys((torch.int8, torch.uint8), "torch.int32 holds them"),
    **dict.fromkeys(FP8, "torch.float16, torch.bfloat16 or torch.float32"),
}


def storage_type(a: torch.dtype, b: torch.dtype, algebra: bool = False, promote: bool = False) -> torch.dtype:
    """The type two operands have in common; `DTypeError` unless equal or real with complex of the same precision.

    Two fp8 types go together too, and the first stands for both. `algebra`: for another algebra than plus-times, which
    bool may have too. `promote`: operands of any two types, which then have torch's promoted type in common.
    """
    for dtype in (a, b):
        if dtype is torch.bool:
            if algebra:
                continue
            raise DTypeError("bool has no sum of products; convert the operands to an integer type")
        if dtype not in _ACCUMULATORS:
            raise UnsupportedError(f"operands of type {dtype_name(dtype)} are not supported yet")
    if a == b or a.to_real() == b or (a in FP8 and b in FP8):
        return a
    if b.to_real() == a:
        return b
    if promote:
        return promoted(a, b)
    raise DTypeError(
        f"operands of types {dtype_name(a)} and {dtype_name(b)}: nothing is promoted, convert one of them "
        "or say promote=True"
    )


def promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The type that torch promotes two types to; an fp8 type, which torch does not promote, goes to the other."""
    if a in FP8 or b in FP8:
        found = b if a in FP8 else a
        return found if found.is_floating_point or found.is_complex else torch.float16
    return torch.promote_types(a, b)


def find_dtype(value: object) -> torch.dtype | None:
    """The torch dtype that `value` names; None where it names none."""
    if isinstance(value, torch.dtype):
        return value
    if isinstance(value, str):
        text = value.strip().lower().removeprefix("torch.").removeprefix("numpy.").removeprefix("np.")
        return NAMES.get(text)
    if isinstance(value, type) and (issubclass(value, np.generic) or value in (float, complex, int, bool)):
        value = np.dtype(value)
    if isinstance(value, np.dtype):
        return NAMES.get(value.name)
    if isinstance(value, torch.Tensor):  # whose attributes may raise, as a nested tensor's shape does
        return None
    name = getattr(value, "name", None)  # of array libraries: jax.numpy.float16.dtype, ml_dtypes
    return NAMES.get(name) if isinstance(name, str) else None


def read_dtype(what: str, value: object, others: Iterable[str] = ()) -> torch.dtype:
    """The torch dtype that `value` names; `DTypeError` with what was typed and the nearest right word.

    `what` is the name of the argument; `others` are words that it takes besides types, for the message.
    """
    found = find_dtype(value)
    if found is not None and str(found).startswith("torch.q"):
        raise DTypeError(f"{what} is quantized ({dtype_name(found)}): nothing is computed in such types")
    if found is not None:
        return found
    words, known = [*others, *NAMES], ", ".join(others)
    right = "a number type (torch.float16, 'float16', 'fp16', numpy.float16, ...)"
    right += f" or one of {known}" if known else ""
    if isinstance(value, str):
        typed = value.strip().lower().removeprefix("torch.")
        raise DTypeError(f"{what}={value!r} names no number type{nearest(typed, words) or f': it is {right}'}")
    array = isinstance(value, torch.Tensor) or (hasattr(value, "shape") and not isinstance(value, type))
    given = type(value).__name__ if array else repr(value)  # not the values of an array
    raise DTypeError(f"{what} is {right}, not {given}")


def read_mode(what: str, value: object, modes: tuple[str, ...]) -> str | torch.dtype | None:
    """A mode by its name, whatever its case, or a number type; None stays None."""
    if value is None:
        return None
    if isinstance(value, str) and value.strip().lower() in modes:
        return value.strip().lower()
    return read_dtype(what, value, modes)


def read_types(out_dtype: Any, precision: Any, accumulate: Any) -> tuple[Any, Any, Any]:
    """The three choices of types of a call, read by the one reader of types; `out_dtype` may be a tuple of them."""
    if isinstance(out_dtype, (tuple, list)):
        out_dtype = tuple(read_dtype("out_dtype", each) if each is not None else None for each in out_dtype)
    elif out_dtype is not None:
        out_dtype = read_dtype("out_dtype", out_dtype)
    return (
        out_dtype,
        read_mode("precision", precision, PRECISIONS),
        read_dtype("accumulate", accumulate) if accumulate is not None else None,
    )


def resolve(
    a: torch.dtype,
    b: torch.dtype,
    precision: str | torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
    algebra: str | None = None,
    promote: bool = False,
    *,
    results: Iterable[torch.dtype] = (),
    count: int = 0,
) -> Arithmetic:
    """The types of products and sums for operands stored as `a` and `b`; `results` and `count`: the types that a sum's
    results have, and its length.

    `precision` None or "ieee": products in the storage type, a complex one of four real ones. "ieee_bound": the same,
    or any way to make float32 products whose proven bound is not above theirs. "3m" (complex operands only): a product
    may be made of three. "tf32" and "tf32x3" (float32 and complex64 only): the tensor cores' shortened
    float32, or three products of them that recover most of its digits; sums in float64 are of IEEE products. A dtype:
    values are rounded to it before they are multiplied. fp8 values are multiplied as float16, which holds both fp8
    types exactly and can be computed with; their own type as `precision` gives fp8 products, whose sums keep fewer
    digits on some tensor cores, and is for two operands of that type. `accumulate` None: float32 for fp8, half and
    single precision, float64 for double, int64 for int64; of shorter integers int32, which wraps, or int64, as results
    and length ask for. A wider type may be asked for. `algebra` is the name of another algebra
    than plus-times: products in shortened float32 are not for it, bool is, and stays bool. `promote`: operands of
    different types are multiplied in the type that torch promotes them to; each keeps its own in memory.

    Raises `DTypeError` or `UnsupportedError`.
    """
    storage = storage_type(a, b, algebra is not None, promote)
    mode, three, product = "ieee", False, torch.float16 if storage in FP8 else storage
    if isinstance(precision, torch.dtype):
        if precision in FP8 and not a == b == precision:
            raise DTypeError(
                f"products in {dtype_name(precision)} are of two operands of that type: nothing is rounded to it"
            )
        product = _checked_product(storage, precision)
    elif precision in ("tf32", "tf32x3", "3m"):
        three = precision == "3m"
        if algebra is not None:
            raise DTypeError(f"precision '{precision}' is for products of plus_times, the algebra is {algebra}")
        if not (storage.is_complex if three else storage in (torch.float32, torch.complex64)):
            kind = "complex" if three else "float32"
            raise DTypeError(f"precision '{precision}' is for {kind} products, the operands are {dtype_name(storage)}")
        mode = "ieee" if three else precision
    elif precision not in (None, "ieee", "ieee_bound"):
        raise DTypeError(
            f"precision {precision!r} is neither one of {', '.join(PRECISIONS)} nor a dtype"
            f"{nearest(str(precision), PRECISIONS)}"
        )
    allowed = _ACCUMULATORS_OF_BOOL if product is torch.bool else _ACCUMULATORS[product]
    if accumulate is not None and accumulate not in allowed:
        raise DTypeError(
            f"{dtype_name(product)} products accumulate in {' or '.join(map(dtype_name, allowed))}, "
            f"not in {_type_text(accumulate)}"
        )
    if accumulate in (torch.float64, torch.complex128):
        mode = "ieee"  # no tensor core adds shortened products up in double precision
    if accumulate is None:
        accumulate = sum_type(product, results, count) if product in NARROW else allowed[0]
    split = precision == "ieee_bound" and algebra is None and accumulate in (torch.float32, torch.complex64)
    return Arithmetic(product, accumulate, mode, three, split and product.to_real() is torch.float32)


def value_type(storage: torch.dtype, product: torch.dtype) -> torch.dtype:
    """The type in which an operand's values reach its function and the product: a real operand stays real."""
    return product if storage.is_complex else product.to_real()


def rounds(storage: torch.dtype, value: torch.dtype) -> bool:
    """Whether values stored in one type may lose digits in another."""
    if storage in FP8:  # of which torch knows no promotion
        return value != storage and (value in FP8 or not torch.can_cast(storage, value))
    return torch.promote_types(storage, value) != value


def result_type(storage: torch.dtype, out_dtype: torch.dtype | None, value: torch.dtype) -> torch.dtype:
    """D's type: `out_dtype`, else the operands'. `value` is the type that reaches the store (after the epilogue)."""
    if out_dtype is None:
        if storage in NEEDS_OUT_DTYPE:
            raise DTypeError(
                f"{dtype_name(storage)} operands need out_dtype: their sums do not fit "
                f"{dtype_name(storage)} (out_dtype={NEEDS_OUT_DTYPE[storage]})"
            )
        out_dtype = storage if not (storage.is_complex and not value.is_complex) else storage.to_real()
    if out_dtype not in NAMES.values():
        raise DTypeError(f"no result is stored as {_type_text(out_dtype)}")
    if not torch.can_cast(value, out_dtype):
        raise DTypeError(f"a result of type {dtype_name(value)} cannot be stored as {dtype_name(out_dtype)}")
    return out_dtype


def _checked_product(storage: torch.dtype, product: torch.dtype) -> torch.dtype:
    if product not in _ACCUMULATORS:  # bool too: nothing is rounded to it
        raise UnsupportedError(f"products in {dtype_name(product)} are not supported yet")
    if not torch.can_cast(storage, product):
        raise DTypeError(f"operands of type {dtype_name(storage)} cannot be multiplied as {dtype_name(product)}")
    return product


def _type_text(value: object) -> str:
    return dtype_name(value) if isinstance(value, torch.dtype) else repr(value)


# -- sums of integers --------------------------------------------------------------------------------------------------


def fits_int32(product: torch.dtype, count: int) -> bool:
    """Whether no sum of so many products leaves int32."""
    largest = _LARGEST.get(product)
    return largest is not None and count * largest < 2**31


def sum_type(product: torch.dtype, results: Iterable[torch.dtype], count: int) -> torch.dtype:
    """The type of a sum of so many products of integers of at most 32 bits, by the types that its results have."""
    types = set(results)
    if torch.int64 in types:
        return torch.int64
    becomes_real = any(dtype.is_floating_point or dtype.is_complex for dtype in types)
    return torch.int64 if becomes_real and not fits_int32(product, count) else torch.int32


def type_between(own: torch.dtype, asked: Any, accumulate: torch.dtype | None) -> torch.dtype:
    """The type of an intermediate result of operands of type `own`, where `out_dtype` asks for such results in the end:
    64 bits where a sum of any length has them. `accumulate` as it is asked for, else None."""
    wide = own in NARROW and sum_type(own, results_of(asked, own), 2**31) is torch.int64
    wide = wide and accumulate is not torch.int32
    return torch.int64 if wide else own


def results_of(asked: Any, storage: torch.dtype) -> Sequence[torch.dtype]:
    """The types that results have: as `out_dtype` asks, the operands' where it names none."""
    types = asked if isinstance(asked, tuple) else (asked,)
    return [storage if each is None else each for each in types]


def asked_types(out_dtype: Any, out: Any) -> Any:
    """The types of results that a call asks for: by `out_dtype`, else by its own places; None where by neither."""
    return result_types(out) if out_dtype is None else out_dtype


def result_types(out: Any) -> Any:
    """The types of results that a call brings its own places for; None where there is none."""
    if out is None:
        return None
    return tuple(one.dtype for one in out) if isinstance(out, tuple) else out.dtype
