"""Contractions over lists of different lengths, in one launch, as a group of contractions.

    weft.contract("bjd,bde->bje", x, w, ragged={"j": offsets})

A ragged mode, here j, has an extent of its own in each list b. It stands behind the label of the lists, and both are
one dimension of a packed tensor: list i of x has the rows from ``offsets[i]`` to ``offsets[i + 1]``. Several ragged
modes of one tensor are one dimension together, the last of them fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch

from weft.api.autocast import cast_by_autocast
from weft.api.entry import contraction
from weft.api.lookup import read_notation
from weft.api.permute import permute
from weft.base.arrays import any_autocast, is_transforming, like, outside_transforms
from weft.base.batched import each_of_batch
from weft.base.describe import describe_call
from weft.base.dispatch import is_traced, outside_graphs, taken_by
from weft.base.kept import is_capturing
from weft.engine.memo import Memo
from weft.errors import NotationError, ShapeError, UnsupportedError, call_context
from weft.fn.fingerprint import fingerprints
from weft.groups.launch import check_single, launch_of
from weft.groups.lists import Ragged, check_offsets, offsets_of, packed, read_ragged
from weft.planner.request import HOOKS
from weft.plans.checks import check_storage
from weft.plans.derivatives import asked as asked_of
from weft.plans.intermediates import part_options
from weft.plans.keywords import TAKEN, read_options, refuse_unknown
from weft.plans.resolving import resolved
from weft.spec import Label, Notation
from weft.spec.group import ONE, SIDES, group_form, group_table
from weft.spec.notation import Term, label_text, term_text

_PLANS = Memo("ragged: plans", 256)
_USUAL = {"c": None, "alpha": 1.0, "beta": None, "out": None, "c_fn": None, "return_arg": False, "validate": False,
          "specialize": "auto"}  # fmt: skip


@outside_graphs
def contract_ragged(equation: Any, a: Any, b: Any, given: Any, keywords: Mapping[str, Any]) -> Any:
    """``contract(equation, a, b, ragged=given, **keywords)``."""
    with call_context(lambda: describe_call("contract", equation)):
        said = {name: value for name, value in keywords.items() if value is not None and value is not _USUAL.get(name)}
        for name in said:
            if name in _USUAL and said[name] != _USUAL[name]:
                raise UnsupportedError(f"{name} is not for ragged modes: contract the lists one by one")
        words = {name: value for name, value in said.items() if name not in _USUAL}
        refuse_unknown("contract", words)
        for name in words:
            if name not in TAKEN["blocks.contract"]:
                raise UnsupportedError(f"{name} is not for ragged modes: contract the lists one by one")
        notation = read_notation(equation)
        ragged = read_ragged(notation, given)
        nested = [x for x in (a, b) if isinstance(x, torch.Tensor) and x.is_nested]
        for each in nested:
            check_offsets(ragged, each)
        x, y = packed("a", a), packed("b", b)
        check_storage("a", x)
        check_storage("b", y)
        if any_autocast():
            x, y = cast_by_autocast((x, y), words.get("precision"))
        result = _contracted(notation, ragged, x, y, words)
        first = ragged.dims(notation.output)[:1]
        if nested and first and len(first[0]) == 2:
            return torch.nested.nested_tensor_from_jagged(result, offsets_of(ragged, first[0][1], nested))
        return like(a, result) if not nested else result


def _contracted(
    notation: Notation, ragged: Ragged, x: torch.Tensor, y: torch.Tensor, words: Mapping[str, Any]
) -> torch.Tensor:
    """The packed result: that of a plain contraction where lists are alike in all tensors that have them."""
    plain = _as_plain(notation, ragged)
    if plain is not None:
        _extents(notation, ragged, x, y)
        return cast(torch.Tensor, contraction(plain, x, y, read_options("blocks.contract", dict(words))))
    if is_traced((x, y)) or is_transforming():
        return _one_by_one(notation, ragged, x, y, words)
    if not asked_of(x, y):
        return _planned(notation, ragged, x, y, words)
    functions = [words.get(name) for name in ("a_fn", "b_fn", "epilogue")]
    others = {name: value for name, value in words.items() if name not in HOOKS}
    lone = any(set(own) - {*other, *notation.output} for own, other in (notation.inputs, notation.inputs[::-1]))
    rounds = x.dtype.itemsize < 4 and any(functions)  # they would see sums that are rounded
    if lone or others or rounds or x.dtype != y.dtype:
        return _one_by_one(notation, ragged, x, y, words)
    x, y = (_applied(fn, side) for fn, side in zip(functions[:2], (x, y), strict=True))
    made: torch.Tensor = _Product.apply(notation, ragged, x, y)
    return _applied(functions[2], made)


@lru_cache(maxsize=256)
def _as_plain(notation: Notation, ragged: Ragged) -> tuple[Any, ...] | None:
    """The terms of a plain contraction that says the same; None where there is none."""
    dims = [tuple(ragged.dims(term)) for term in (*notation.inputs, notation.output)]
    packed = {dim for each in dims for dim in each if dim[0] == ragged.lists}
    return tuple(dims) if len(packed) == 1 else None


def _applied(function: Any, tensor: torch.Tensor) -> torch.Tensor:
    modes = range(tensor.dim())
    return tensor if function is None else cast(torch.Tensor, permute(tensor, (modes, modes), fn=function))


class _Product(torch.autograd.Function):
    """A product over lists, from packed tensors to a packed one; its derivatives are such products."""

    @staticmethod
    def forward(ctx: Any, notation: Notation, ragged: Ragged, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.notation, ctx.ragged = notation, ragged
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        return _planned(notation, ragged, x, y, {})

    @staticmethod
    def jvp(ctx: Any, _notation: None, _ragged: None, dx: torch.Tensor | None, dy: torch.Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        pairs = [(one, other) for one, other in ((dx, y), (x, dy)) if one is not None and other is not None]
        parts = [_contracted(ctx.notation, ctx.ragged, *pair, {}) for pair in pairs]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    @staticmethod
    @each_of_batch
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (first, second), output = ctx.notation.inputs, ctx.notation.output
        x, y = ctx.saved_tensors
        found: list[Any] = []
        for wanted, own, other, value in ((2, first, second, y), (3, second, first, x)):
            turned, needed = Notation((output, other), own), ctx.needs_input_grad[wanted]
            found.append(_contracted(turned, ctx.ragged, grad, value.conj(), {}) if needed else None)
        return None, None, *found


def _planned(
    notation: Notation, ragged: Ragged, x: torch.Tensor, y: torch.Tensor, words: Mapping[str, Any]
) -> torch.Tensor:
    """The packed result, by the plan of an earlier contraction of such tensors, else by a new one."""
    x, y = (side.resolve_conj().resolve_neg() for side in (x, y))  # copies lie otherwise than views
    prints = fingerprints(tuple(words.get(hook) for hook in HOOKS))
    said = tuple([(name, value) for name, value in words.items() if name not in HOOKS])
    layouts = tuple([(side.shape, side.stride(), side.dtype) for side in (x, y)])
    place = _PLANS.place((notation, ragged, layouts, x.device, prints, said))
    plan: RaggedPlan | None = _PLANS.get(place) if prints is not None else None
    if plan is None:
        plan = RaggedPlan(notation, ragged, x, y, words)
        if prints is not None and not is_capturing(x.device):
            _PLANS.put(place, plan)
    return plan(x, y)


class RaggedPlan:
    """Call it with tensors of the layouts that it was made for."""

    def __init__(
        self, notation: Notation, ragged: Ragged, x: torch.Tensor, y: torch.Tensor, words: Mapping[str, Any]
    ) -> None:
        self._made_of = notation, ragged, words
        (first, second), output = notation.inputs, notation.output
        extents = _extents(notation, ragged, x, y)
        inner = Notation((ragged.inner(first), ragged.inner(second)), ragged.inner(output))
        sides = [_lists(ragged, term, side.stride(), extents) for term, side in ((first, x), (second, y))]
        self.shape = [_extent(ragged, dim, extents) for dim in ragged.dims(output)]
        strides = [math.prod(self.shape[at + 1 :]) for at in range(len(self.shape))]
        _, strides_d, starts_d = _lists(ragged, output, strides, extents)
        table, _ = group_table(group_form(inner), [side[0] for side in sides], [side[1] for side in sides], strides_d)
        for at, (_, _, starts) in enumerate(sides):
            table.rows[:, at] = starts
        table.outputs[:, 0] = starts_d
        if ragged.lists not in output and ragged.number:  # all lists are summed into one result
            table = table._replace(outputs=np.array([[0, 0, ragged.number, ONE]], np.int64))
        options, device = read_options("blocks.contract", dict(words)), x.device
        with outside_transforms():
            left, right = (torch.empty(shapes[0].tolist(), dtype=side.dtype, device=device)
                           for (shapes, _, _), side in zip(sides, (x, y), strict=True))  # fmt: skip
            longest = int(table.sizes[:, SIDES.index("k")].sum())
            request = resolved(inner, str(notation), left, right, options, longest)
            check_single(request)
            self._launch = launch_of(table, request, y.dtype, False)
        self.dtype = request.d_dtype

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self._launch is None:
            notation, ragged, words = self._made_of
            return _one_by_one(notation, ragged, x, y, words)
        made = torch.empty(self.shape, dtype=self.dtype, device=x.device)
        if made.numel():
            self._launch(x, y, made)
        return made


Extents = dict[Label, int]


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
            if len(dim) > 1 and _extent(ragged, dim, found) != tensor.shape[at]:
                rows, wanted = tensor.shape[at], _extent(ragged, dim, found)
                raise ShapeError(f"{name} has {rows} rows of '{term_text(dim)}', the offsets end at {wanted}")
    for label in notation.output:
        if label not in found and not ragged.has(label):
            raise NotationError(f"label '{label_text(label)}' of the result is in no operand")
    return found


def _extent(ragged: Ragged, dim: tuple[Label, ...], extents: Extents) -> int:
    """The extent of a dimension of a packed tensor."""
    return int(_sizes(ragged, dim).sum()) if len(dim) > 1 else extents[dim[0]]


def _sizes(ragged: Ragged, dim: tuple[Label, ...]) -> np.ndarray:
    """Indices of a packed dimension in each list."""
    found = np.ones(ragged.number, np.int64)
    for label in dim[1:]:
        found = found * ragged.lengths(label)
    return found


def _lists(
    ragged: Ragged, term: Term, strides: Any, extents: Extents
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The shape and the strides of each list of a packed tensor, (lists, rank), and where it begins."""
    count = ragged.number
    shapes: list[np.ndarray] = []
    steps: list[np.ndarray] = []
    starts = np.zeros(count, np.int64)
    for dim, stride in zip(ragged.dims(term), strides, strict=True):
        if len(dim) > 1:
            sizes = _sizes(ragged, dim)
            starts += (np.cumsum(sizes) - sizes) * stride
            inner = [ragged.lengths(label) for label in dim[1:]]
            for at, lengths in enumerate(inner):
                shapes.append(lengths)
                steps.append(stride * _sizes(ragged, dim[at + 1 :]))
        elif dim[0] == ragged.lists:
            starts += np.arange(count) * stride
        else:
            shapes.append(np.full(count, extents[dim[0]]))
            steps.append(np.full(count, stride))
    both = [np.stack(each, 1).astype(np.int64) if each else np.zeros((count, 0), np.int64) for each in (shapes, steps)]
    return both[0], both[1], starts


def _views(ragged: Ragged, term: Term, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The lists of a packed tensor, views."""
    dims = ragged.dims(term)
    at = next((at for at, dim in enumerate(dims) if dim[0] == ragged.lists), None)
    start = 0
    for i in range(ragged.number):
        if at is None:
            yield tensor
        elif len(dims[at]) == 1:
            yield tensor.select(at, i)
        else:
            lengths = [int(ragged.lengths(label)[i]) for label in dims[at][1:]]
            yield tensor.narrow(at, start, math.prod(lengths)).unflatten(at, lengths)
            start += math.prod(lengths)


def _one_by_one(
    notation: Notation, ragged: Ragged, x: torch.Tensor, y: torch.Tensor, words: Mapping[str, Any]
) -> torch.Tensor:
    """The packed result, of one contraction for each list."""
    (first, second), output = notation.inputs, notation.output
    _extents(notation, ragged, x, y)
    terms = (ragged.inner(first), ragged.inner(second), ragged.inner(output))
    options = read_options("blocks.contract", dict(words))
    summed = ragged.lists not in output
    part = part_options(options, x.dtype, y.dtype) if summed else options
    found: list[Any] = []
    for i, (left, right) in enumerate(zip(_views(ragged, first, x), _views(ragged, second, y), strict=True)):
        asked = options if i + 1 == ragged.number else part
        found.append(contraction(terms, left, right, asked, found[-1] if summed and found else None))
    if summed:
        return cast(torch.Tensor, found[-1])
    dims = ragged.dims(output)
    at = next(at for at, dim in enumerate(dims) if dim[0] == ragged.lists)
    if len(dims[at]) == 1:
        return torch.stack(found, at)
    return torch.cat([each.flatten(at, at + len(dims[at]) - 2) for each in found], at)


taken_by("ragged contraction", contract_ragged)
