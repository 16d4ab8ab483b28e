"""Lowerings that every language writes alike: arithmetic, comparisons, truth and bits. A language's table begins with
these and adds its own.

A lowering takes a writer, the dtype in which the operation computes, and the arguments of the aten operation; it
returns an expression. Operands come converted to that dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.fn.writer import Writer

Lowering = Callable[..., str]
Extremum = Callable[[Any, torch.dtype, bool, Any, Any], str]  # of a writer, a dtype, whether the larger, two operands
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


def extrema(extremum: Extremum) -> dict[str, Lowering]:
    """Lowerings of the operations that take the larger or the smaller of two values."""

    def maximum(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        return extremum(w, t, True, x, y)

    def minimum(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        return extremum(w, t, False, x, y)

    def clamp(w: Writer, t: torch.dtype, x: Any, min: Any = None, max: Any = None) -> str:
        value = w.operand(x, t)
        if min is not None:
            value = w.typed(extremum(w, t, True, value, min), t)
        return value if max is None else extremum(w, t, False, value, max)

    return {"maximum": maximum, "clamp_min": maximum, "minimum": minimum, "clamp_max": minimum, "clamp": clamp}
