"""A group as its pairs, each contracted by itself: what any call of `contract` takes, torch's modes included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.api.entry import contraction
from weft.base.arrays import as_result
from weft.errors import ArgumentError, ShapeError
from weft.groups.operands import as_operands
from weft.planner.options import Options
from weft.spec import Notation
from weft.spec.arguments import read_flag


def one_by_one(
    notation: Notation, operands: Sequence[Any], options: Options, out: Sequence[Any] | None = None,
    add: bool = False,
) -> list[Any]:  # fmt: skip
    """The results for operands a, b of each pair in turn; with `add` each is added to its place of `out`."""
    tensors = as_operands(operands)
    a, b = tensors[::2], tensors[1::2]
    places = [None] * len(a) if out is None else [as_result(each) for each in check_places(out, len(a))]
    terms = (*notation.inputs, notation.output)
    return [
        contraction(terms, x, y, options, place if add else None, out=place)
        for x, y, place in zip(a, b, places, strict=True)
    ]


def check_places(out: Any, count: int) -> Sequence[Any]:
    """`out` of a group, which has a place for each pair."""
    if not isinstance(out, (list, tuple)) or len(out) != count:
        given = len(out) if isinstance(out, (list, tuple)) else type(out).__name__
        raise ShapeError(f"out is a list of a place for each pair: {count}, not {given}")
    return out


def check_added(accumulate_into: bool, out: Any) -> bool:
    """Whether results are added to what `out` holds."""
    if read_flag("accumulate_into", accumulate_into) and out is None:
        raise ArgumentError("accumulate_into adds to what `out` holds: pass out")
    return accumulate_into
