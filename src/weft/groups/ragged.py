"""Contractions over lists of different lengths, in one launch, as a group of contractions.

    weft.contract("bjd,bde->bje", x, w, ragged={"j": offsets})

A ragged mode, here j, has an extent of its own in each list b. It stands behind the label of the lists, and both are
one dimension of a packed tensor: list i of x has the rows from ``offsets[i]`` to ``offsets[i + 1]``. Several ragged
modes of one tensor are one dimension together, the last of them fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any

import numpy as np
import torch

from weft.api.autocast import cast_by_autocast
from weft.api.lookup import read_notation
from weft.base.arrays import any_autocast, like
from weft.base.describe import describe_call
from weft.base.dispatch import outside_graphs, taken_by
from weft.errors import NotationError, ShapeError, UnsupportedError, call_context
from weft.groups.lists import Lists, Offsets, Ragged, check_offsets, offsets_of, packed, read_offsets, read_ragged
from weft.groups.packed import PlainPlan, Products, packed_plan
from weft.plans.keywords import TAKEN, read_options, refuse_unknown
from weft.spec import Label, Notation
from weft.spec.notation import label_text, term_text

Extents = dict[Label, int]

_USUAL = {"alpha": 1.0, "return_arg": False, "validate": False, "specialize": "auto"}


@outside_graphs
def contract_ragged(equation: Any, a: Any, b: Any, given: Any, keywords: Mapping[str, Any]) -> Any:
    """``contract(equation, a, b, ragged=given, **keywords)``."""
    with call_context(lambda: describe_call("contract", equation)):
        words = {name: value for name, value in keywords.items() if value is not None}
        words = {name: value for name, value in words.items() if name not in _USUAL or value != _USUAL[name]}
        refuse_unknown("contract", words)
        for name in words:
            if name not in TAKEN["blocks.contract"]:
                raise UnsupportedError(f"{name} is not for ragged modes: contract the lists one by one")
        notation, offsets = read_notation(equation), read_offsets(given)
        nested = [x for x in (a, b) if isinstance(x, torch.Tensor) and x.is_nested]
        for each in nested:
            check_offsets(offsets, each)
        x, y = packed("a", a), packed("b", b)
        if any_autocast():
            x, y = cast_by_autocast((x, y), words.get("precision"))
        options = read_options("blocks.contract", words)
        plan = packed_plan(("ragged", notation, offsets), x, y, options, lambda: _plan(notation, offsets, x, y))
        result: torch.Tensor = plan.contract(x, y, options)
        first = read_ragged(notation, offsets).dims(notation.output)[:1] if nested else []
        if first and len(first[0]) == 2:
            return torch.nested.nested_tensor_from_jagged(result, offsets_of(offsets, first[0][1], nested))
        return like(a, result) if not nested else result


def _plan(notation: Notation, offsets: Offsets, x: torch.Tensor, y: torch.Tensor) -> Products | PlainPlan:
    """The products of lists; a plain contraction where they are alike in all tensors that have them."""
    ragged = read_ragged(notation, offsets)
    extents, plain = _extents(notation, ragged, x, y), _as_plain(notation, ragged)
    return _products(notation, ragged, x, y, extents) if plain is None else PlainPlan(plain)


def _as_plain(notation: Notation, ragged: Ragged) -> tuple[Any, ...] | None:
    """The terms of a plain contraction that says the same, a sum over no list among them; None where there is none."""
    dims = [tuple(ragged.dims(term)) for term in (*notation.inputs, notation.output)]
    packed = {dim for each in dims for dim in each if dim[0] == ragged.lists}
    nothing = not ragged.number and ragged.lists not in notation.output
    return tuple(dims) if len(packed) == 1 or nothing else None


def _products(
    notation: Notation, ragged: Ragged, x: torch.Tensor, y: torch.Tensor, extents: Extents
) -> Products:
    """The product of each list of one tensor and that of the other."""
    (first, second), output = notation.inputs, notation.output
    d = Lists(ragged, output, tuple([_extent(ragged, dim, extents) for dim in ragged.dims(output)]))
    a, b = Lists(ragged, first, tuple(x.shape)), Lists(ragged, second, tuple(y.shape))
    i, j = (range(ragged.number) if ragged.lists in term else repeat(0) for term in notation.inputs)
    pairs = tuple(zip(i, j, repeat(1, ragged.number), strict=False))
    rows = enumerate([(pair,) for pair in pairs]) if ragged.lists in output else [(0, pairs)]
    inner = Notation((ragged.inner(first), ragged.inner(second)), ragged.inner(output))
    return Products(inner, a, b, d, tuple(rows))


def _extents(notation: Notation, ragged: Ragged, x: torch.Tensor, y: torch.Tensor) -> Extents:
    """The extents of modes that are not ragged; `ShapeError` where tensors do not fit."""
    found: Extents = {ragged.lists: ragged.number}
    for name, term, tensor in (("a", notation.inputs[0], x), ("b", notation.inputs[1], y)):
        dims = ragged.dims(term)
        if len(dims) != tensor.dim():
            raise ShapeError(f"{name} has {tensor.dim()} dimensions, '{term_text(term)}' with packed lists {len(dims)}")
        for at, dim in enumerate(dims):
            if len(dim) == 1 and found.setdefault(dim[0], tensor.shape[at]) != tensor.shape[at]:
                raise ShapeError(
                    f"label '{label_text(dim[0])}' has extent {tensor.shape[at]} in {name}, {found[dim[0]]} elsewhere"
                )
            if len(dim) > 1 and (wanted := _extent(ragged, dim, found)) != (rows := tensor.shape[at]):
                raise ShapeError(f"{name} has {rows} rows of '{term_text(dim)}', the offsets end at {wanted}")
    for label in notation.output:
        if label not in found and not ragged.has(label):
            raise NotationError(f"label '{label_text(label)}' of the result is in no operand")
    return found


def _extent(ragged: Ragged, dim: tuple[Label, ...], extents: Extents) -> int:
    """The extent of a dimension of a packed tensor."""
    if len(dim) == 1:
        return extents[dim[0]]
    return int(np.prod([ragged.lengths(label) for label in dim[1:]], 0).sum())


taken_by("ragged contraction", contract_ragged)
