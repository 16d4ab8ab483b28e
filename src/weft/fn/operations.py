"""Every primitive operation in every language: one row of `OPERATIONS` says how Triton, CUDA C++ and numba write it.

A lowering takes a writer, the dtype in which the operation computes, and the arguments of the aten operation; it
returns an expression. Operands come converted to that dtype. Where languages agree but for calls, choices and
quotients, which their writers say, a row has one lowering. What torch decides otherwise than C or a language (NaN in
extrema, signs of remainders, special powers, shifts past the width, negation of zero) the expressions say.

In Triton transcendental functions are `libdevice`'s (CUDA's on NVIDIA, OCML on AMD), not the faster and less exact
`tl.exp` and its kin; division and square root round correctly. On NVIDIA they flush float32 subnormals unless the
kernel is compiled with Triton's option `enable_reflect_ftz=False`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from weft.errors import UnsupportedError
from weft.fn import cuda
from weft.fn.numba import writer as numba
from weft.fn.triton import activations
from weft.fn.triton import writer as triton
from weft.fn.writer import Writer, computing

Lowering = Callable[..., str]


class OperationRow(NamedTuple):
    """How each language writes an operation, None where it has no code for it, and what it costs on a GPU.

    `slots` are issue slots for each element, or two figures for float32: of results that are rounded to half precision
    at once, and of others; see `weft.fn.triton.emit`.
    """

    triton: Lowering | None
    cuda: Lowering | None
    numba: Lowering | None
    slots: float | tuple[float, float] = 1.0


#: Functions of floating numbers that libraries of mathematics have, by the names that C and aten share.
FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
    "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "sqrt", "rsqrt", "hypot", "atan2",
    "copysign", "nextafter",
)  # fmt: skip
_SLOTS = {"exp": 8.0, "exp2": 4.0, "sqrt": 8.0, "rsqrt": 3.0, "copysign": 1.0, "nextafter": 1.0}
MANY = 20.0  # the average of `libdevice`'s elementary functions
#: Functions of one element that cost many instructions.
ELEMENTARY = frozenset({*FUNCTIONS, "pow", "fmod", "elu", "gelu", "sigmoid"} - {"copysign", "nextafter"})


# -- forms -------------------------------------------------------------------------------------------------------------


class _Fields(dict[str, str]):
    """The operands x and y, the type T and the numbers of a template, each written when it is asked for."""

    def __init__(self, w: Writer, t: torch.dtype, operands: tuple[Any, ...]) -> None:
        super().__init__()
        self._w, self._t, self._operands = w, t, operands

    def __missing__(self, name: str) -> str:
        w, t = self._w, self._t
        if name in "xy":
            found = w.operand(self._operands["xy".index(name)], t)
        else:
            found = w.type(t) if name == "T" else w.constant({"zero": 0, "one": 1, "minus_one": -1}[name], t)
        self[name] = found
        return found


def _form(text: str, whole: str | None = None, truth: str | None = None, kind: torch.dtype | None = None) -> Lowering:
    """A text with `_Fields`; others where given for whole numbers and for truth values. Operands are of that `kind`."""

    def lowering(w: Writer, t: torch.dtype, *operands: Any) -> str:
        t = kind or t
        chosen = text if t.is_floating_point or t.is_complex else whole or text
        return (truth if truth and t == torch.bool else chosen).format_map(_Fields(w, t, operands))

    return lowering


def _row(general: Lowering | str, slots: float | tuple[float, float] = 1.0, **own: Lowering) -> OperationRow:
    """One lowering for all languages, but for those that have one of their own."""
    form = _form(general) if isinstance(general, str) else general
    return OperationRow(**{"triton": form, "cuda": form, "numba": form, **own}, slots=slots)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _sum(symbol: str, w: Writer, t: torch.dtype, x: Any, y: Any, *, alpha: Any = 1) -> str:
    return f"{w.operand(x, t)} {'|' if t == torch.bool else symbol} {_times(w, t, y, alpha)}"


def _times(w: Writer, t: torch.dtype, x: Any, factor: Any) -> str:
    number = w.number(x)
    if number is not None:
        return w.constant(number * factor, t)
    value = w.operand(x, t)
    return value if factor == 1 else w.typed(f"{value} {'&' if t == torch.bool else '*'} {w.constant(factor, t)}", t)


def _wrapping(symbol: str, plain: Lowering) -> OperationRow:
    """A sum or a product; C++ has forms of its own for those of wide integers."""

    def lowering(w: Writer, t: torch.dtype, x: Any, y: Any, **alpha: Any) -> str:
        return cuda.wrapping(symbol, w, t, x, y, **alpha) if t in cuda.WIDE else plain(w, t, x, y, **alpha)

    return _row(plain, cuda=lowering)


def _rsub(w: Writer, t: torch.dtype, x: Any, y: Any, alpha: Any = 1) -> str:
    return lowering_of("sub", w)(w, t, y, x, alpha=alpha)


def _div(w: Writer, t: torch.dtype, x: Any, y: Any, *, rounding_mode: str | None = None) -> str:
    if rounding_mode == "floor":
        return lowering_of("floor_divide", w)(w, t, x, y)
    if not t.is_floating_point:
        return w.truncated(t, w.operand(x, t), w.operand(y, t))
    quotient = w.quotient(t, x, y)
    return quotient if rounding_mode is None else w.call("trunc", t, w.typed(quotient, t))


def _fmod(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    dividend, divisor = w.operand(x, t), w.operand(y, t)
    return w.call("fmod", t, dividend, divisor) if t.is_floating_point else w.rest(t, dividend, divisor)


def _remainder(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    """The rest with the sign of the divisor."""
    rest, divisor = w.typed(_fmod(w, t, x, y), t), w.operand(y, t)
    return w.select(_signs_differ(w, t, rest, y), f"{rest} + {divisor}", rest)


def _floor_divide(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    """The whole quotient below. One of what divides evenly is within an ulp of a whole number, and is rounded to it (as
    CPython does)."""
    dividend, divisor = w.operand(x, t), w.operand(y, t)
    rest = w.typed(_fmod(w, t, x, y), t)
    below = w.typed(_signs_differ(w, t, rest, y), torch.bool)
    if not t.is_floating_point:
        return f"{w.truncated(t, dividend, divisor)} - {w.cast(below, torch.bool, t)}"
    zero, one, half = (w.constant(number, t) for number in (0.0, 1.0, 0.5))
    direct = w.typed(w.quotient(t, x, y), t)
    even = w.typed(w.quotient(t, w.typed(f"{dividend} - {rest}", t), divisor), t)
    even = w.typed(w.select(below, f"{even} - {one}", even), t)
    whole = w.typed(w.call("floor", t, even), t)
    whole = w.typed(w.select(f"{even} - {whole} > {half}", f"{whole} + {one}", whole), t)
    nothing = w.call("copysign", t, f"{even} * {zero}", direct)
    whole = w.typed(w.select(f"{even} == {zero}", nothing, whole), t)
    return w.select(f"{divisor} == {zero}", direct, whole)


def _signs_differ(w: Writer, t: torch.dtype, rest: str, y: Any) -> str:
    """Whether a rest that is not zero has the other sign than its divisor."""
    zero, number = w.constant(0, t), w.number(y)
    if number is not None:
        return f"{rest} {'<' if number > 0 else '>'} {zero}"
    return f"({rest} != {zero}) & (({rest} < {zero}) ^ ({w.operand(y, t)} < {zero}))"


def _as_python(symbol: str, general: Lowering) -> Lowering:
    """An operation of whole numbers that Python has: the sign is the divisor's, as torch's is."""

    def lowering(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        if t.is_floating_point:
            return general(w, t, x, y)
        return f"int64({w.operand(x, t)}) {symbol} int64({w.operand(y, t)})"

    return lowering


def _pow(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    """Some exponents torch computes without its general power, NaN and infinities included."""
    exponent, base = w.number(y), w.operand(x, t)
    if not t.is_floating_point:
        return _integer_power(w, t, base, exponent)
    if w.number(x) == 2:
        return w.call("exp2", t, w.operand(y, t))
    if exponent in (1, 2, 3):
        return " * ".join([base] * int(exponent))
    if exponent in (0.5, -0.5):
        return w.call("sqrt" if exponent > 0 else "rsqrt", t, base)
    if exponent in (-1, -2):
        return w.quotient(t, 1.0, base if exponent == -1 else w.typed(f"{base} * {base}", t))
    return w.call("pow", t, base, w.operand(y, t))


def _integer_power(w: Writer, t: torch.dtype, base: str, exponent: Any) -> str:
    """By repeated squaring, which wraps as torch's does."""
    if not isinstance(exponent, int) or exponent < 0:
        raise UnsupportedError(f"an integer to the power of a tensor has no code {w.where}; cast to float")
    product, result = lowering_of("mul", w), w.constant(1, t)
    while exponent > 0:
        if exponent & 1:
            result = w.typed(product(w, t, result, base), t)
        exponent >>= 1
        if exponent:
            base = w.typed(product(w, t, base, base), t)
    return result


def _round(w: Writer, t: torch.dtype, x: Any, *, decimals: int = 0) -> str:
    value = w.operand(x, t)
    if not t.is_floating_point:
        return value
    if decimals == 0:
        return w.call("rint", t, value)
    scale = w.constant(10.0 ** abs(decimals), t)
    if decimals > 0:
        return w.quotient(t, w.typed(w.call("rint", t, w.typed(f"{value} * {scale}", t)), t), scale)
    return f"{w.call('rint', t, w.typed(w.quotient(t, value, scale), t))} * {scale}"


def _called(name: str, w: Writer, t: torch.dtype, *operands: Any) -> str:
    return w.call(name, t, *[w.operand(each, t) for each in operands])


def _rounded(name: str, w: Writer, t: torch.dtype, x: Any) -> str:
    return _called(name, w, t, x) if t.is_floating_point else w.operand(x, t)


def _shift(symbol: str) -> OperationRow:
    first, second, third = (partial(language.shift, symbol) for language in (triton, cuda, numba))
    return OperationRow(first, second, third)


# -- order, truth ------------------------------------------------------------------------------------------------------


def _comparison(symbol: str) -> OperationRow:
    def lowering(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        common = w.common(x, y)
        return f"{w.compared(x, common)} {symbol} {w.compared(y, common)}"

    return _row(lowering)


def _extremum(larger: bool, w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    if t == torch.bool:
        return f"{w.operand(x, t)} {'|' if larger else '&'} {w.operand(y, t)}"
    return w.extremum(t, larger, x, y)


def _clamp(w: Writer, t: torch.dtype, x: Any, min: Any = None, max: Any = None) -> str:
    value = w.operand(x, t)
    if min is not None:
        value = w.typed(_extremum(True, w, t, value, min), t)
    return value if max is None else _extremum(False, w, t, value, max)


def _past_nan(larger: bool, w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    """The larger or the smaller of two values, the other one where one is NaN."""
    if not t.is_floating_point:
        return _extremum(larger, w, t, x, y)
    a, b = w.operand(x, t), w.operand(y, t)
    return w.select(f"({a} {'>=' if larger else '<='} {b}) | ({b} != {b})", a, b)


def _where(w: Writer, t: torch.dtype, condition: Any, x: Any, y: Any) -> str:
    return w.select(w.operand(condition, torch.bool), w.operand(x, t), w.operand(y, t))


def _infinite(*signs: float) -> OperationRow:
    def lowering(w: Writer, t: torch.dtype, x: Any) -> str:
        kind = computing(w.common(x)) if w.language == "cuda" else w.common(x)
        if not kind.is_floating_point:
            return "false" if w.language == "cuda" else "{0} != {0}".format(w.operand(x, kind))
        value = w.operand(x, kind)
        if w.language == "triton" and len(signs) == 2:
            return f"tl.abs({value}) == {w.constant(math.inf, kind)}"
        joint = " || " if w.language == "cuda" else " or "
        return joint.join(f"{value} == {w.constant(sign * math.inf, kind)}" for sign in signs)

    return _row(lowering)


def _isnan(w: Writer, t: torch.dtype, x: Any) -> str:
    kind = w.common(x)
    return "{0} != {0}".format(w.compared(x, kind) if w.language == "cuda" else w.operand(x, kind))


def _signbit(w: Writer, t: torch.dtype, x: Any) -> str:
    kind = w.common(x)
    value = w.compared(x, kind)
    if w.language == "triton":
        bits = torch.int64 if kind == torch.float64 else torch.int32
        if kind.is_floating_point:
            return f"{value}.to({w.type(bits)}, bitcast=True) < {w.constant(0, bits)}"
        return f"{value} < {w.constant(0, torch.int8 if kind == torch.bool else kind)}"
    if not kind.is_floating_point:
        return f"{value} < 0"
    return f"bits_of({value}) < 0" if w.language == "cuda" else f"bits_of(float64({value})) < 0"


# -- types -------------------------------------------------------------------------------------------------------------


def _view(w: Writer, t: torch.dtype, x: Any, dtype: torch.dtype) -> str:
    held = w.common(x)
    if w.language == "triton":
        return f"{w.operand(x, held)}.to({w.type(dtype)}, bitcast=True)"
    return f"{'bits_of' if held.is_floating_point else 'of_bits'}({w.operand(x, held)})"


def _to_copy(w: Writer, t: torch.dtype, x: Any, *, dtype: torch.dtype) -> str:
    value = w.operand(x, t)
    if w.language == "triton" and dtype != t:
        return f"{w.converted_to(value, dtype)}.to({w.type(t)})"
    return w.cast(value, t, dtype)


def _part(name: str) -> OperationRow:
    return OperationRow(None, None, lambda w, t, x: f"{w.operand(x, w.common(x))}.{name}")


def _folded(w: Writer, t: torch.dtype, *arguments: Any, **keywords: Any) -> str:
    raise AssertionError("constants are folded before they are lowered")


# -- the table ---------------------------------------------------------------------------------------------------------

_truths = partial(_form, kind=torch.bool)

#: By the names of aten's operations.
OPERATIONS: dict[str, OperationRow] = {
    **{name: _row(partial(_called, name), _SLOTS.get(name, MANY)) for name in FUNCTIONS},
    **{name: _row(partial(_rounded, name)) for name in ("floor", "ceil", "trunc")},
    "expm1": _row(partial(_called, "expm1"), (6.0, 15.0), triton=activations.expm1),
    "tanh": _row(partial(_called, "tanh"), (10.0, 14.0), triton=activations.tanh),
    "sigmoid": OperationRow(activations.sigmoid, cuda.sigmoid, numba.sigmoid, (4.0, 13.0)),
    "elu": OperationRow(activations.elu, cuda.elu, numba.elu, (6.0, 9.0)),
    "gelu": _row(activations.gelu, (10.5, 14.0), numba=numba.gelu),
    "add": _wrapping("+", partial(_sum, "+")), "sub": _wrapping("-", partial(_sum, "-")), "rsub": _row(_rsub),
    "mul": _wrapping("*", _form("{x} * {y}", truth="{x} & {y}")),
    # Triton's minus is 0 - x: it loses the sign of zero.
    "neg": OperationRow(_form("{x} * {minus_one}", "{zero} - {x}"), cuda.negative, _form("-{x}")),
    "div": _row(_div, 9.0), "reciprocal": _row(lambda w, t, x: w.quotient(t, 1.0, x), 8.0), "fmod": _row(_fmod, MANY),
    "remainder": _row(_remainder, numba=_as_python("%", _remainder)),
    "floor_divide": _row(_floor_divide, numba=_as_python("//", _floor_divide)),
    "pow": _row(_pow, MANY), "round": _row(_round),
    "sign": OperationRow(
        _form("({x} > {zero}).to({T}) - ({x} < {zero}).to({T})", truth="{x}"),
        _form("{T}({x} > {zero}) - {T}({x} < {zero})", truth="{x}"),
        numba.sign,
    ),
    "abs": OperationRow(_form("tl.abs({x})"), cuda.absolute, _form("abs({x})")),
    **{name: _comparison(symbol) for name, symbol in (
        ("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="),
    )},
    **dict.fromkeys(("maximum", "clamp_min"), _row(partial(_extremum, True))),
    **dict.fromkeys(("minimum", "clamp_max"), _row(partial(_extremum, False))),
    "clamp": _row(_clamp), "fmax": _row(partial(_past_nan, True)), "fmin": _row(partial(_past_nan, False)),
    "where": _row(_where), "masked_fill": _row(lambda w, t, x, mask, value: _where(w, t, mask, value, x)),
    "logical_and": _row(_truths("{x} & {y}")), "logical_or": _row(_truths("{x} | {y}")),
    "logical_xor": _row(_truths("{x} != {y}"), triton=_truths("{x} ^ {y}")),
    "logical_not": OperationRow(_truths("~{x}"), _truths("!{x}"), _truths("not {x}")),
    "bitwise_and": _row("{x} & {y}"), "bitwise_or": _row("{x} | {y}"),
    "bitwise_xor": _row("{x} ^ {y}", numba=_form("{x} ^ {y}", truth="{x} != {y}")),
    "bitwise_not": OperationRow(
        _form("{x} ^ {minus_one}"), _form("~{x}", truth="!{x}"), _form("~{x}", truth="not {x}")
    ),
    **dict.fromkeys(("bitwise_left_shift", "__lshift__"), _shift("<<")),
    **dict.fromkeys(("bitwise_right_shift", "__rshift__"), _shift(">>")),
    "isinf": _infinite(1.0, -1.0), "isposinf": _infinite(1.0), "isneginf": _infinite(-1.0), "isnan": _row(_isnan),
    "signbit": _row(_signbit), "view": _row(_view, 0.0), "_to_copy": _row(_to_copy), "detach": _row("{x}"),
    "copy": _row(lambda w, t, x, source: w.operand(source, t), 0.0), "full_like": _row(_folded, 0.0),
    "scalar_tensor": _row(_folded, 0.0), "real": _part("real"), "imag": _part("imag"),
    "conj_physical": OperationRow(None, None, lambda w, t, x: w.operand(x, t) + ".conjugate()" * t.is_complex),
}  # fmt: skip
OPERATIONS["sgn"] = OPERATIONS["sign"]
for _name in ("erfinv", "nextafter"):  # torch's operations run them on the CPU
    OPERATIONS[_name] = OPERATIONS[_name]._replace(numba=None)


def lowering_of(name: str, w: Writer) -> Lowering:
    """The lowering of an operation in a writer's language. `UnsupportedError` where there is none."""
    found: Lowering | None = getattr(OPERATIONS.get(name), w.language, None)
    if found is None:
        raise UnsupportedError(f"{name} has no code {w.where}")
    return found


#: Names of the operations that Triton has code for.
FUSED = frozenset(name for name, operation in OPERATIONS.items() if operation.triton)
