"""The graph of a network: the labels of every operand and of the result, and the extent of each label.

Labels become numbers here, so any hashable object may be one, and so may any character of a text. A label that stands
in three operands or more (a hyper-edge) needs nothing special: it stays until the last of them has been met.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import torch

from weft.errors import NotationError
from weft.fn.algebra import Early
from weft.spec import Label, Notation
from weft.spec.contraction import mode_extents
from weft.spec.notation import Term, expand, from_sequences, implicit_from_sequences, label_text, terms_of


class LabelCut(NamedTuple):
    """A label that becomes two: `outer` counts stretches of `length` indices, `inner` the indices within a stretch.

    `inner` keeps the label's number.
    """

    outer: int
    inner: int
    length: int


@dataclass(frozen=True, slots=True)
class Dims:
    """How a tensor's dimensions become labels: its diagonals are views, and so are an extent of 1 that broadcasts and
    the two labels of one that is cut."""

    term: tuple[int, ...]  # of the view: each label once
    dims: tuple[tuple[int, ...], ...]  # of the tensor, for each label of the view but outer ones
    shape: tuple[int, ...]  # of the tensor
    cuts: tuple[LabelCut, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the view is the tensor."""
        return len(self.dims) == len(self.shape) and not self.cuts

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with the labels of `term`, over the same memory."""
        if len(self.dims) != len(self.shape):
            strides = [sum(tensor.stride(dim) for dim in dims) for dims in self.dims]
            tensor = tensor.as_strided([self.shape[dims[0]] for dims in self.dims], strides)
        if not self.cuts:
            return tensor
        length = {cut.outer: cut.length for cut in self.cuts}
        for at, label in enumerate(self.term):
            if label in length:  # the dimension here has still both labels
                tensor = tensor.unflatten(at, (tensor.shape[at] // length[label], length[label]))
        return tensor

    def cut(self, cut: LabelCut) -> Dims:
        """Dimensions where one label is cut in two."""
        if cut.inner not in self.term:
            return self
        at = self.term.index(cut.inner)
        return replace(self, term=(*self.term[:at], cut.outer, *self.term[at:]), cuts=(*self.cuts, cut))

    def together(self) -> Dims:
        """Dimensions with every label whole."""
        outer = {cut.outer for cut in self.cuts}
        return replace(self, term=tuple(label for label in self.term if label not in outer), cuts=()) if outer else self


@dataclass(frozen=True, slots=True)
class Graph:
    """A network of tensors. Labels are numbers; `names` has what they were called."""

    operands: tuple[Dims, ...]
    result: Dims
    extents: tuple[int, ...]  # by label
    names: tuple[Hashable, ...]  # by label; both labels of one that is cut have its name
    ordered: bool = False  # operands may not change places: for an algebra of which nothing is known
    early: Early = field(default_factory=Early)  # whether labels may be reduced before the last step

    @property
    def output(self) -> tuple[int, ...]:
        return self.result.term

    @property
    def terms(self) -> tuple[tuple[int, ...], ...]:
        return tuple([operand.term for operand in self.operands])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple([self.extents[label] for label in self.output])

    @property
    def cuts(self) -> tuple[LabelCut, ...]:
        """Cuts of all labels, each once."""
        return tuple(dict.fromkeys(cut for tensor in (*self.operands, self.result) for cut in tensor.cuts))

    def cut(self, label: int, length: int) -> Graph:
        """The network where `label` is stretches of so many indices: one label within a stretch and one of stretches,
        which is the last. `length` divides the label's extent."""
        cut, extent = LabelCut(len(self.extents), label, length), self.extents[label]
        extents = (*self.extents[:label], length, *self.extents[label + 1 :], extent // length)
        return self._changed(lambda dims: dims.cut(cut), extents, (*self.names, self.names[label]))

    def together(self) -> Graph:
        """The network with every label whole."""
        if not self.cuts:
            return self
        extents = list(self.extents)
        for cut in self.cuts:
            extents[cut.inner] *= extents[cut.outer]
        count = len(extents) - len(self.cuts)
        return self._changed(Dims.together, tuple(extents[:count]), self.names[:count])

    def _changed(self, change: Callable[[Dims], Dims], extents: tuple[int, ...], names: tuple[Hashable, ...]) -> Graph:
        operands = tuple(map(change, self.operands))
        return replace(self, operands=operands, result=change(self.result), extents=extents, names=names)

    def size(self, labels: Any) -> int:
        """How many elements a tensor of these labels has."""
        return math.prod(map(self.extents.__getitem__, labels))

    def text(self, labels: Any) -> str:
        """Labels as the caller wrote them."""
        texts = [label_text(self.names[label]) for label in labels]
        return "".join(texts) if all(len(text) == 1 for text in texts) else "(" + ", ".join(texts) + ")"

    def hyper(self) -> tuple[int, ...]:
        """Labels of three places and more, the result's counted."""
        places = Counter(label for term in (*self.terms, self.output) for label in term)
        return tuple(label for label in range(len(self.extents)) if places[label] > 2)


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
        terms = list(terms_of(equation))
    if output is not None:
        return from_sequences(*terms, _characters(output) if isinstance(output, str) else output)
    try:
        return implicit_from_sequences(*terms)
    except NotationError as error:
        if "sorted" not in str(error):
            raise
        return from_sequences(*terms, _once(terms))


def graph_of(
    notation: Notation, shapes: Sequence[Sequence[int]], *, ordered: bool = False, early: Early | None = None
) -> Graph:
    """The network of operands of these shapes; `NotationError` and `ShapeError` name what does not fit."""
    if not notation.inputs:
        raise NotationError("a network needs at least one operand")
    notation = expand(notation, [len(shape) for shape in shapes])
    extents = mode_extents(notation, shapes)
    numbers = {label: at for at, label in enumerate(dict.fromkeys(chain(*notation.inputs)))}
    operands = tuple(
        _operand(term, shape, extents, numbers) for term, shape in zip(notation.inputs, shapes, strict=True)
    )
    sizes = tuple(extents[label] for label in numbers)
    names: tuple[Hashable, ...] = tuple(numbers)
    result = dims_of([numbers[label] for label in notation.output], sizes)
    return Graph(operands, result, sizes, names, ordered, early or Early())


def dims_of(order: Sequence[int], extents: Sequence[int]) -> Dims:
    """A tensor with these labels, by whose numbers `extents` are."""
    return Dims(tuple(order), tuple((dim,) for dim in range(len(order))), tuple(extents[label] for label in order))


def _operand(term: Term, shape: Sequence[int], extents: Mapping[Label, int], numbers: Mapping[Label, int]) -> Dims:
    dims: dict[int, list[int]] = {}
    for dim, (label, extent) in enumerate(zip(term, shape, strict=True)):
        if extent == extents[label]:
            dims.setdefault(numbers[label], []).append(dim)
    return Dims(tuple(dims), tuple(map(tuple, dims.values())), tuple(shape))


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
