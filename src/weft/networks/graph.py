"""What a network is: the labels of every operand and of the result, and the extent of each label.

Labels become numbers here, so any hashable object may be one, and so may any character of a text. A label that stands
in three operands or more (a hyper-edge) needs nothing special: it stays until the last of them has been met.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.errors import NotationError
from weft.spec.contraction import mode_extents
from weft.spec.notation import Label, Notation, Term, expand, from_sequences, implicit_from_sequences, label_text


@dataclass(frozen=True, slots=True)
class Operand:
    """How an operand's dimensions become labels: its diagonals are views, and so is an extent of 1 that broadcasts."""

    term: tuple[int, ...]  # of the view: each label once
    dims: tuple[tuple[int, ...], ...]  # of the operand, for each label of the view
    shape: tuple[int, ...]  # of the operand
    plain: bool  # the view is the operand

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The operand without repeated labels and without what broadcasts, over the same memory."""
        if self.plain:
            return tensor
        strides = [sum(tensor.stride(dim) for dim in dims) for dims in self.dims]
        return tensor.as_strided([self.shape[dims[0]] for dims in self.dims], strides)


@dataclass(frozen=True, slots=True)
class Graph:
    """A network of tensors. Labels are numbers; `names` has what they were called."""

    operands: tuple[Operand, ...]
    output: tuple[int, ...]
    extents: tuple[int, ...]  # by label
    names: tuple[Hashable, ...]  # by label
    ordered: bool = False  # operands may not change places: for an algebra of which nothing is known

    @property
    def terms(self) -> tuple[tuple[int, ...], ...]:
        return tuple(operand.term for operand in self.operands)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return tuple(self.extents[label] for label in self.output)

    def size(self, labels: Any) -> int:
        """How many elements a tensor of these labels has."""
        return math.prod([self.extents[label] for label in labels])

    def text(self, labels: Any) -> str:
        """Labels as the caller wrote them."""
        texts = [label_text(self.names[label]) for label in labels]
        return "".join(texts) if all(len(text) == 1 for text in texts) else "(" + ", ".join(texts) + ")"

    def hyper(self) -> tuple[int, ...]:
        """Labels of three places and more, the result's counted."""
        places = [0] * len(self.extents)
        for term in (*self.terms, self.output):
            for label in term:
                places[label] += 1
        return tuple(label for label, count in enumerate(places) if count > 2)


def read_equation(equation: Any, output: Any = None) -> Notation:
    """Text, or one sequence of labels for each operand, with the result's labels in `output`.

    Text may hold any character but ``,``, ``-``, ``>``, ``.`` and white space as a label, so all that
    `opt_einsum.get_symbol` makes. Without an output it has the labels that stand once, sorted (of a text, or where
    they can be sorted), else in the order in which they appear. `NotationError` for what cannot be read.
    """
    if isinstance(equation, str):
        left, arrow, right = equation.partition("->")
        if "->" in right:
            raise NotationError("'->' stands more than once")
        terms = [_characters(text) for text in left.split(",")]
        if arrow and output is not None:
            raise NotationError("the equation has an output after '->', and output= names one too")
        if arrow:
            return from_sequences(*terms, _characters(right))
    else:
        if isinstance(equation, (set, frozenset, Mapping)) or not hasattr(equation, "__iter__"):
            raise NotationError(f"an equation is text or sequences of labels, not {type(equation).__name__}")
        terms = list(equation)
    if output is not None:
        return from_sequences(*terms, _characters(output) if isinstance(output, str) else output)
    try:
        return implicit_from_sequences(*terms)
    except NotationError as error:
        if "sorted" not in str(error):
            raise
        return from_sequences(*terms, _once(terms))


def graph_of(notation: Notation, shapes: Sequence[Sequence[int]], *, ordered: bool = False) -> Graph:
    """The network of operands of these shapes; `NotationError` and `ShapeError` name what does not fit."""
    if not notation.inputs:
        raise NotationError("a network needs at least one operand")
    notation = expand(notation, [len(shape) for shape in shapes])
    extents = mode_extents(notation, shapes)
    numbers: dict[Label, int] = {}
    for term in notation.inputs:
        for label in term:
            numbers.setdefault(label, len(numbers))
    operands = tuple(
        _operand(term, shape, extents, numbers) for term, shape in zip(notation.inputs, shapes, strict=True)
    )
    output = tuple(numbers[label] for label in notation.output)
    sizes = tuple(extents[label] for label in numbers)
    names: tuple[Hashable, ...] = tuple(numbers)
    return Graph(operands, output, sizes, names, ordered)


def _operand(
    term: Term, shape: Sequence[int], extents: Mapping[Label, int], numbers: Mapping[Label, int]
) -> Operand:
    dims: dict[int, list[int]] = {}
    for dim, (label, extent) in enumerate(zip(term, shape, strict=True)):
        if extent == extents[label]:
            dims.setdefault(numbers[label], []).append(dim)
    plain = len(dims) == len(term)
    return Operand(tuple(dims), tuple(map(tuple, dims.values())), tuple(shape), plain)


def _characters(text: str) -> tuple[Any, ...]:
    """The labels of one operand in a text."""
    plain = "".join(text.split())
    head, dots, tail = plain.partition("...")
    for character in head + tail:
        if character in ".->,":
            raise NotationError(f"'{character}' in '{text}' is not a label")
    return (*head, Ellipsis, *tail) if dots else tuple(head)


def _once(terms: Sequence[Sequence[Any]]) -> list[Any]:
    """Labels that stand once, in the order in which they appear."""
    every = [label for term in terms for label in term]
    return [label for label in every if every.count(label) == 1]
