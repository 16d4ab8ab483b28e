"""Calls described for errors, and what a notebook shows."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import torch

_MOST = 8  # operands that are described one by one
_LONGEST = 200  # characters of an equation


def describe_call(call: str, equation: object, **arrays: Any) -> str:
    """One line for error messages: the call, its equation, and shape, strides and dtype of each array."""
    texts = [f"{name}: {_describe(value)}" for name, value in arrays.items() if value is not None]
    asked = _shown(equation)
    return f"{call}({asked}; {', '.join(texts)})" if texts else f"{call}({asked})"


def _shown(equation: object) -> str:
    """An equation as it was typed, at most so long; of an array in its place how it lies."""
    try:
        array = isinstance(equation, torch.Tensor) or hasattr(equation, "shape")
        text = _describe(equation) if array else repr(equation)
    except Exception:  # whatever an object of somebody else raises
        return type(equation).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def describe_many(call: str, equation: object, operands: Sequence[Any]) -> str:
    """The arguments of a call on any number of operands in one line."""
    text = str(equation)
    asked = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return f"{call}({asked!r}; {describe_operands(operands)})" if operands else f"{call}({asked!r})"


def describe_operands(operands: Sequence[Any], places: Sequence[int] = ()) -> str:
    """Shape, strides and dtype of each, of the first few where there are many; `places` are their numbers."""
    numbers = places if len(places) == len(operands) else range(len(operands))
    texts = [f"operand {at}: {_describe(value)}" for at, value in zip(numbers, operands[:_MOST], strict=False)]
    more = len(operands) - _MOST
    return ", ".join([*texts, f"{more} more"] if more > 0 else texts)


def _describe(value: Any) -> str:
    if type(value) in (tuple, list) and all(isinstance(extent, int) for extent in value):
        return f"shape ({', '.join(map(str, value))})"
    try:
        text = f"{'x'.join(map(str, value.shape)) or '0-d'} {str(value.dtype).removeprefix('torch.')}"
    except Exception:  # nested tensors, and whatever an object of somebody else raises
        return type(value).__name__
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_contiguous():
        text += f" strides {value.stride()}"
    return text


_LEFT = ' style="text-align:left"'


def table(rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """HTML of a table; the first cell of each row is its head. Everything is escaped."""
    top = "".join(f"<th{_LEFT}>{html.escape(head)}</th>" for head in heads)
    lines = [f"<thead><tr>{top}</tr></thead>"] if heads else []
    for first, *rest in rows:
        cells = "".join(f"<td{_LEFT}>{html.escape(str(cell))}</td>" for cell in rest)
        lines.append(f'<tr><th{_LEFT} scope="row">{html.escape(str(first))}</th>{cells}</tr>')
    return f"<table>{''.join(lines)}</table>"


def folded(title: str, text: str) -> str:
    """Text of a terminal, its spaces kept, shown by a click on its title."""
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"
