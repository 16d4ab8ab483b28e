"""Lowerings that every language writes alike: arithmetic, comparisons, truth, bits, and what torch decides otherwise
than C (NaN in extrema, signs of remainders, special powers). A language's table begins with these and adds its own.

A lowering takes a writer, the dtype in which the operation computes, and the arguments of the aten operation; it
returns an expression. Operands come converted to that dtype.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.fn.writer import Writer

Lowering = Callable[..., str]

#: Functions of floating numbers that libraries of mathematics have, by the names that C and aten share.
FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
    "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "sqrt", "rsqrt", "hypot", "atan2",
    "copysign", "nextafter",
)  # fmt: skip
Register = Callable[..., Callable[[Lowering], Lowering]]


def registering(table: dict[str, Lowering]) -> Register:
    """A decorator that puts a lowering into a table, under each of some names."""

    def lowers(*names: str) -> Callable[[Lowering], Lowering]:
        def register(lowering: Lowering) -> Lowering:
            table.update(dict.fromkeys(names, lowering))
            return lowering

        return register

    return lowers


def template(text: str) -> Lowering:
    """`text` with the operands, converted to the computing dtype, for {0}, {1}, ..."""

    def lowering(w: Writer, t: torch.dtype, *operands: Any) -> str:
        return text.format(*(w.operand(operand, t) for operand in operands))

    return lowering


def _add(w: Writer, t: torch.dtype, x: Any, y: Any, *, alpha: Any = 1) -> str:
    return f"{w.operand(x, t)} {'|' if t == torch.bool else '+'} {_times(w, t, y, alpha)}"


def _sub(w: Writer, t: torch.dtype, x: Any, y: Any, *, alpha: Any = 1) -> str:
    return f"{w.operand(x, t)} - {_times(w, t, y, alpha)}"


def _rsub(w: Writer, t: torch.dtype, x: Any, y: Any, alpha: Any = 1) -> str:
    return f"{w.operand(y, t)} - {_times(w, t, x, alpha)}"


def _times(w: Writer, t: torch.dtype, x: Any, factor: Any) -> str:
    number = w.number(x)
    if number is not None:
        return w.constant(number * factor, t)
    value = w.operand(x, t)
    return value if factor == 1 else w.typed(f"{value} {'&' if t == torch.bool else '*'} {w.constant(factor, t)}", t)


def _mul(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    return f"{w.operand(x, t)} {'&' if t == torch.bool else '*'} {w.operand(y, t)}"


def _comparison(symbol: str) -> Lowering:
    def lowering(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        common = w.common(x, y)
        return f"{w.compared(x, common)} {symbol} {w.compared(y, common)}"

    return lowering


def _copy(w: Writer, t: torch.dtype, x: Any, source: Any) -> str:
    return w.operand(source, t)


def _folded(w: Writer, t: torch.dtype, *arguments: Any, **keywords: Any) -> str:
    raise AssertionError("constants are folded before they are lowered")


COMMON: dict[str, Lowering] = {
    "add": _add, "sub": _sub, "rsub": _rsub, "mul": _mul,
    "eq": _comparison("=="), "ne": _comparison("!="), "lt": _comparison("<"), "le": _comparison("<="),
    "gt": _comparison(">"), "ge": _comparison(">="),
    "logical_and": lambda w, t, x, y: f"{w.operand(x, torch.bool)} & {w.operand(y, torch.bool)}",
    "logical_or": lambda w, t, x, y: f"{w.operand(x, torch.bool)} | {w.operand(y, torch.bool)}",
    "bitwise_and": template("{0} & {1}"), "bitwise_or": template("{0} | {1}"),
    "isnan": lambda w, t, x: "{0} != {0}".format(w.operand(x, w.common(x))),
    "copy": _copy, "detach": template("{0}"), "full_like": _folded, "scalar_tensor": _folded,
}  # fmt: skip


class Expressions(ABC):
    """A language's own expressions, and the lowerings that all languages make of such.

    `w` writes, `t` is the type that an operation computes in, `x` and `y` are its operands, and texts are values of
    that type.
    """

    name: str
    lacks: tuple[str, ...] = ()  # of `FUNCTIONS`

    @abstractmethod
    def call(self, name: str, t: torch.dtype, *values: str) -> str:
        """A function of floating numbers, by the name that C has for it."""

    @abstractmethod
    def select(self, condition: str, x: str, y: str) -> str:
        """x where the condition holds, else y."""

    @abstractmethod
    def quotient(self, w: Any, t: torch.dtype, x: Any, y: Any) -> str:
        """A quotient of floating numbers, rounded correctly."""

    @abstractmethod
    def truncated(self, w: Any, t: torch.dtype, x: str, y: str) -> str:
        """A quotient of integers, towards zero."""

    @abstractmethod
    def rest(self, w: Any, t: torch.dtype, x: str, y: str) -> str:
        """The rest of that division, with the sign of the dividend."""

    @abstractmethod
    def extremum(self, w: Any, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
        """The larger or the smaller of two values, NaN where one is."""

    def product(self, w: Any, t: torch.dtype, x: str, y: str) -> str:
        """A product of integers, which wraps."""
        return f"{x} * {y}"

    def table(self) -> dict[str, Lowering]:
        """Lowerings by the names of aten's operations."""
        return {
            **COMMON, "div": self._div, "reciprocal": lambda w, t, x: self.quotient(w, t, 1.0, x), "fmod": self._fmod,
            "remainder": self.remainder, "floor_divide": self.floor_divide, "pow": self._pow,
            "maximum": partial(self._extremum, True), "clamp_min": partial(self._extremum, True),
            "minimum": partial(self._extremum, False), "clamp_max": partial(self._extremum, False),
            "clamp": self._clamp, "fmax": partial(self._past_nan, True), "fmin": partial(self._past_nan, False),
            "where": self._where, "masked_fill": lambda w, t, x, mask, value: self._where(w, t, mask, value, x),
            "round": self._round, **{name: partial(self._rounded, name) for name in ("floor", "ceil", "trunc")},
            **{name: partial(self._called, name) for name in FUNCTIONS if name not in self.lacks},
        }  # fmt: skip

    def _div(self, w: Writer, t: torch.dtype, x: Any, y: Any, *, rounding_mode: str | None = None) -> str:
        if rounding_mode == "floor":
            return self.floor_divide(w, t, x, y)
        if not t.is_floating_point:
            return self.truncated(w, t, w.operand(x, t), w.operand(y, t))
        quotient = self.quotient(w, t, x, y)
        return quotient if rounding_mode is None else self.call("trunc", t, w.typed(quotient, t))

    def _fmod(self, w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        dividend, divisor = w.operand(x, t), w.operand(y, t)
        if t.is_floating_point:
            return self.call("fmod", t, dividend, divisor)
        return self.rest(w, t, dividend, divisor)

    def remainder(self, w: Any, t: torch.dtype, x: Any, y: Any) -> str:
        """The rest with the sign of the divisor."""
        rest, divisor = w.typed(self._fmod(w, t, x, y), t), w.operand(y, t)
        return self.select(self._signs_differ(w, t, rest, y), f"{rest} + {divisor}", rest)

    def floor_divide(self, w: Any, t: torch.dtype, x: Any, y: Any) -> str:
        """The whole quotient below. One of what divides evenly is within an ulp of a whole number, and is rounded to
        it (as CPython does)."""
        dividend, divisor = w.operand(x, t), w.operand(y, t)
        rest = w.typed(self._fmod(w, t, x, y), t)
        below = w.typed(self._signs_differ(w, t, rest, y), torch.bool)
        if not t.is_floating_point:
            return f"{self.truncated(w, t, dividend, divisor)} - {w.cast(below, torch.bool, t)}"
        zero, one, half = (w.constant(number, t) for number in (0.0, 1.0, 0.5))
        direct = w.typed(self.quotient(w, t, x, y), t)
        even = w.typed(self.quotient(w, t, w.typed(f"{dividend} - {rest}", t), divisor), t)
        even = w.typed(self.select(below, f"{even} - {one}", even), t)
        whole = w.typed(self.call("floor", t, even), t)
        whole = w.typed(self.select(f"{even} - {whole} > {half}", f"{whole} + {one}", whole), t)
        nothing = self.call("copysign", t, f"{even} * {zero}", direct)
        whole = w.typed(self.select(f"{even} == {zero}", nothing, whole), t)
        return self.select(f"{divisor} == {zero}", direct, whole)

    def _signs_differ(self, w: Writer, t: torch.dtype, rest: str, y: Any) -> str:
        """Whether a rest that is not zero has the other sign than its divisor."""
        zero, number = w.constant(0, t), w.number(y)
        if number is not None:
            return f"{rest} {'<' if number > 0 else '>'} {zero}"
        return f"({rest} != {zero}) & (({rest} < {zero}) ^ ({w.operand(y, t)} < {zero}))"

    def _pow(self, w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        """Some exponents torch computes without its general power, NaN and infinities included."""
        exponent, base = w.number(y), w.operand(x, t)
        if not t.is_floating_point:
            return self._integer_power(w, t, base, exponent)
        if w.number(x) == 2:
            return self.call("exp2", t, w.operand(y, t))
        if exponent in (1, 2, 3):
            return " * ".join([base] * int(exponent))
        if exponent in (0.5, -0.5):
            return self.call("sqrt" if exponent > 0 else "rsqrt", t, base)
        if exponent in (-1, -2):
            return self.quotient(w, t, 1.0, base if exponent == -1 else w.typed(f"{base} * {base}", t))
        return self.call("pow", t, base, w.operand(y, t))

    def _integer_power(self, w: Writer, t: torch.dtype, base: str, exponent: Any) -> str:
        """By repeated squaring, which wraps as torch's does."""
        if not isinstance(exponent, int) or exponent < 0:
            raise UnsupportedError(f"an integer to the power of a tensor has no code {self.name}; cast to float")
        result = w.constant(1, t)
        while exponent > 0:
            if exponent & 1:
                result = w.typed(self.product(w, t, result, base), t)
            exponent >>= 1
            if exponent:
                base = w.typed(self.product(w, t, base, base), t)
        return result

    def _extremum(self, larger: bool, w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        if t == torch.bool:
            return f"{w.operand(x, t)} {'|' if larger else '&'} {w.operand(y, t)}"
        return self.extremum(w, t, larger, x, y)

    def _clamp(self, w: Writer, t: torch.dtype, x: Any, min: Any = None, max: Any = None) -> str:
        value = w.operand(x, t)
        if min is not None:
            value = w.typed(self._extremum(True, w, t, value, min), t)
        return value if max is None else self._extremum(False, w, t, value, max)

    def _past_nan(self, larger: bool, w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        """The larger or the smaller of two values, the other one where one is NaN."""
        if not t.is_floating_point:
            return self._extremum(larger, w, t, x, y)
        a, b = w.operand(x, t), w.operand(y, t)
        return self.select(f"({a} {'>=' if larger else '<='} {b}) | ({b} != {b})", a, b)

    def _where(self, w: Writer, t: torch.dtype, condition: Any, x: Any, y: Any) -> str:
        return self.select(w.operand(condition, torch.bool), w.operand(x, t), w.operand(y, t))

    def _called(self, name: str, w: Writer, t: torch.dtype, *operands: Any) -> str:
        return self.call(name, t, *[w.operand(each, t) for each in operands])

    def _rounded(self, name: str, w: Writer, t: torch.dtype, x: Any) -> str:
        value = w.operand(x, t)
        return self.call(name, t, value) if t.is_floating_point else value

    def _round(self, w: Writer, t: torch.dtype, x: Any, *, decimals: int = 0) -> str:
        value = w.operand(x, t)
        if not t.is_floating_point:
            return value
        if decimals == 0:
            return self.call("rint", t, value)
        scale = w.constant(10.0 ** abs(decimals), t)
        if decimals > 0:
            return self.quotient(w, t, w.typed(self.call("rint", t, w.typed(f"{value} * {scale}", t)), t), scale)
        return f"{self.call('rint', t, w.typed(self.quotient(w, t, value, scale), t))} * {scale}"
