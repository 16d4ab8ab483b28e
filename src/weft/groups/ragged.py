"""Contractions over lists of different lengths, in one launch, as a group of contractions.

    weft.contract("bjd,bde->bje", x, w, ragged={"j": offsets})

A ragged mode, here j, has an extent of its own in each list b. It stands behind the label of the lists, and both are
one dimension of a packed tensor: list i of x has the rows from ``offsets[i]`` to ``offsets[i + 1]``. Several ragged
modes of one tensor are one dimension together, the last of them fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from operator import index
from typing import Any

import numpy as np
import torch

from weft.api.keywords import cast_by_autocast
from weft.api.lookup import read_notation
from weft.base.arguments import describe_call
from weft.base.arrays import any_autocast, as_tensor, is_transformed, like, without_memory
from weft.base.caches import cached_property
from weft.base.dispatch import outside_graphs, taken_by
from weft.errors import ArgumentError, NotationError, ShapeError, UnsupportedError, call_context
from weft.groups.packed import PlainPlan, Products, packed_plan
from weft.plans.keywords import TAKEN, read_options, refuse_unknown
from weft.spec import Label, Notation
from weft.spec.group import contiguous_strides
from weft.spec.notation import Term, label_text, term_text

Offsets = tuple[tuple[Label, tuple[int, ...]], ...]
Extents = dict[Label, int]

_USUAL = {"alpha": 1.0, "return_arg": False, "validate": False, "specialize": "auto"}


@dataclass(frozen=True)
class Ragged:
    """Which modes are ragged: the label of the lists, and of each mode where its lists begin, with the end of the last.
    """

    lists: Label
    offsets: Offsets

    @property
    def number(self) -> int:
        """How many lists there are."""
        return len(self.offsets[0][1]) - 1

    def has(self, label: Label) -> bool:
        """Whether a mode is ragged."""
        return any(name == label for name, _ in self.offsets)

    def lengths(self, label: Label) -> np.ndarray:
        """The extent of a ragged mode in each list."""
        return np.diff(dict(self.offsets)[label])

    def dims(self, term: Term) -> list[tuple[Label, ...]]:
        """The labels of each dimension of a tensor: that of the lists with the ragged ones behind it are one."""
        found: list[tuple[Label, ...]] = []
        for label in term:
            if not self.has(label):
                found.append((label,))
            elif found and found[-1][0] == self.lists:
                found[-1] = (*found[-1], label)
            else:
                text, head = f"'{label_text(label)}' of '{term_text(term)}'", label_text(self.lists)
                raise NotationError(f"{text} is ragged: it stands behind '{head}', whose lists it has")
        return found

    def inner(self, term: Term) -> Term:
        """The modes of one list."""
        return tuple([label for label in term if label != self.lists])


@dataclass(frozen=True)
class Lists:
    """The lists of a packed tensor, as parts of it."""

    ragged: Ragged
    term: Term
    shape: tuple[int, ...]
    signs: tuple[int, ...] = ()
    symmetry: tuple[Any, ...] = ()

    @cached_property
    def dims(self) -> list[tuple[Label, ...]]:
        """The labels of each dimension."""
        return self.ragged.dims(self.term)

    @cached_property
    def _at(self) -> int | None:
        """The dimension along which lists are; None where the tensor is the same in all."""
        return next((at for at, dim in enumerate(self.dims) if dim[0] == self.ragged.lists), None)

    @cached_property
    def _lengths(self) -> np.ndarray:
        """The extents of ragged modes in each list."""
        inner = () if self._at is None else self.dims[self._at][1:]
        return np.array([self.ragged.lengths(label) for label in inner]).reshape(len(inner), -1).T

    @cached_property
    def _ends(self) -> np.ndarray:
        """Where lists end along their dimension."""
        return np.cumsum(self._lengths.prod(1, dtype=np.int64))

    @property
    def stored(self) -> range:
        """The numbers of the lists."""
        return range(1 if self._at is None else self.ragged.number)

    def layout(self, strides: tuple[int, ...] | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The shape and the strides of each list, (lists, rank), and where it begins in a tensor of those strides."""
        if strides is None:
            strides = tuple([math.prod(self.shape[at + 1 :]) for at in range(len(self.shape))])
        count = len(self.stored)
        shapes, steps, starts = [], [], np.zeros(count, np.int64)
        for at, (extent, stride) in enumerate(zip(self.shape, strides, strict=True)):
            if at != self._at:
                shapes.append(np.full((count, 1), extent))
                steps.append(np.full((count, 1), stride))
            elif len(self.dims[at]) == 1:
                starts = np.arange(count) * stride
            else:
                shapes.append(self._lengths)
                steps.append(stride * contiguous_strides(self._lengths))
                starts = (self._ends - self._lengths.prod(1)) * stride
        nothing = np.zeros((count, 0), np.int64)
        return np.concatenate([nothing, *shapes], 1), np.concatenate([nothing, *steps], 1), starts

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor whose memory is what it says."""
        return tensor.resolve_conj().resolve_neg()

    def block(self, tensor: torch.Tensor, at: int) -> torch.Tensor:
        """The list of that number, a view."""
        if self._at is None:
            return tensor
        if len(self.dims[self._at]) == 1:
            return tensor.select(self._at, at)
        lengths = self._lengths[at].tolist()
        rows = math.prod(lengths)
        return tensor.narrow(self._at, int(self._ends[at]) - rows, rows).unflatten(self._at, lengths)

    def joined(self, found: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The packed tensor of all lists."""
        at, parts = self._at, [found[k] for k in self.stored]
        if at is None:
            return parts[0]
        if len(self.dims[at]) == 1:
            return torch.stack(parts, at)
        return torch.cat([each.flatten(at, at + len(self.dims[at]) - 2) for each in parts], at)


def check_offsets(offsets: Offsets, x: Any) -> None:
    """`ShapeError` for a jagged tensor whose lists are not those of the offsets that a call names."""
    if x.layout is torch.jagged:
        if getattr(x, "_lengths", None) is not None:
            raise UnsupportedError("a jagged tensor with holes between its lists: give its lists one after the other")
        place = getattr(x, "_ragged_idx", 1)
        if place != 1:
            raise UnsupportedError(f"the lists of a jagged tensor lie along dimension {place}: transpose it, to 1")
        own = tuple(x.offsets().tolist())
        if all(starts != own for _, starts in offsets):
            raise ShapeError(f"the lists of a jagged tensor begin at {_some(own)}, and ragged says otherwise")


def offsets_of(offsets: Offsets, label: Label, nested: Sequence[Any]) -> Any:
    """The offsets of a ragged mode for a jagged result: those of an operand that has the same lists, where one does."""
    starts = dict(offsets)[label]
    for x in nested:
        if tuple(x.offsets().tolist()) == starts:
            return x.offsets()
    return torch.tensor(starts, device=nested[0].device)


def _some(starts: tuple[int, ...]) -> str:
    return ", ".join(map(str, starts[:8])) + (", ..." if len(starts) > 8 else "")


def read_offsets(given: Any) -> Offsets:
    """The offsets of ragged modes, from a mapping of labels to them."""
    if not isinstance(given, Mapping) or not given:
        kind = type(given).__name__ if not isinstance(given, Mapping) else "an empty one"
        raise ArgumentError(f'ragged is a mapping from labels to offsets, not {kind}: {{"j": offsets}}')
    return tuple([(label, _starts(label, value)) for label, value in given.items()])


def _starts(label: Label, given: Any) -> tuple[int, ...]:
    """Offsets as numbers."""
    if isinstance(given, torch.Tensor) and (without_memory(given) or is_transformed(given)):
        raise UnsupportedError(
            f"the offsets of '{label_text(label)}' have no values while torch traces or maps over them, and decide "
            "what is computed: pass them as a list of numbers"
        )
    try:
        numbers = given if type(given) is list else torch.as_tensor(given, device="cpu").reshape(-1).tolist()
        return tuple(map(index, numbers))
    except (TypeError, RuntimeError, ValueError):
        raise ArgumentError(f"the offsets of '{label_text(label)}' are whole numbers, not {given!r}") from None


def read_ragged(notation: Notation, offsets: Offsets) -> Ragged:
    """The ragged modes of an equation."""
    given = [label for label, _ in offsets]
    for label, starts in offsets:
        if not starts or starts[0] != 0 or any(x > y for x, y in pairwise(starts)):
            text = f"the offsets of '{label_text(label)}'"
            lengths = " (of lengths: their cumulative sum, after a 0)" if starts and starts[0] else ""
            raise ArgumentError(f"{text} begin with 0 and do not fall, one more than lists{lengths}")
    if len({len(starts) for _, starts in offsets}) > 1:
        raise ShapeError(f"ragged modes have {' and '.join(str(len(starts) - 1) for _, starts in offsets)} lists")
    heads = {term[term.index(label) - 1] for term in (*notation.inputs, notation.output)
             for label in given if label in term and term.index(label)}  # fmt: skip
    heads -= set(given)
    if len(heads) != 1:
        raise NotationError(f"ragged modes of '{notation}' stand behind one label, that of the lists, everywhere")
    found = Ragged(heads.pop(), offsets)
    for term in (*notation.inputs, notation.output):
        if len(set(term)) < len(term):
            raise UnsupportedError(f"'{term_text(term)}' has a label twice: diagonals are not for ragged modes")
        found.dims(term)
    return found


def packed(name: str, x: Any) -> torch.Tensor:
    """A tensor in which lists and ragged modes are one dimension; of torch's jagged ones their values."""
    if isinstance(x, torch.Tensor) and x.is_nested:
        if x.layout is not torch.jagged:
            raise UnsupportedError(f"{name} is nested with layout {x.layout}: torch.jagged is taken")
        return x.values()
    return as_tensor(name, x).resolve_neg()


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
