"""From einsum text or label sequences to a `Notation`: which labels stand where.

Nothing here knows extents. Text is parsed once and cached; an ellipsis is kept as `...` until the ranks are known,
then `expand` puts one `Broadcast` label for each dimension it stands for.
"""

from __future__ import annotations

import itertools
import math
import string
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import torch

from weft.base.figures import counted, given
from weft.errors import NotationError, ShapeError

#: Where the symbols of `opt_einsum.get_symbol` go on after the letters of ASCII; none of them has a meaning of its own.
FIRST_SYMBOL = "\u00c0"

_MOST_LABELS = 1 << 16  # of an array that stands for a sequence of them

Label: TypeAlias = Hashable
Term: TypeAlias = tuple[Label | EllipsisType, ...]


@dataclass(frozen=True, order=True, slots=True)
class Broadcast:
    """The label of a dimension that an ellipsis stands for, counted from the right as NumPy broadcasts."""

    position: int  # -1 is the last one

    def __str__(self) -> str:
        return f"...[{self.position}]"


@dataclass(frozen=True, slots=True)
class Notation:
    """Labels of each input and of the output, in the order of their dimensions; `...` may stand in each once."""

    inputs: tuple[Term, ...]
    output: Term

    def __str__(self) -> str:
        return ",".join(map(term_text, self.inputs)) + "->" + term_text(self.output)


def label_text(label: Label | EllipsisType) -> str:
    """A label in messages."""
    return "..." if label is Ellipsis else str(label)


def term_text(term: Term) -> str:
    """The labels of one operand in messages: `abc`, or `(row, col)` where labels are not letters."""
    texts = [label_text(label) for label in term]
    if all(len(text) == 1 or text.startswith("...") for text in texts):
        return "".join(texts)
    return "(" + ", ".join(texts) + ")"


@lru_cache(maxsize=4096)
def parse(equation: str, *, new_labels: bool = False) -> Notation:
    """Read einsum text, e.g. ``"ij,jk->ik"``, ``"...ij,...jk"``, ``"ab, bc"``.

    Labels are single letters of any alphabet, and all other signs from U+00C0 on: every symbol that
    `opt_einsum.get_symbol` makes. Spaces mean nothing (those from U+00C0 on are labels). Without ``->`` the output
    holds the ellipsis first and then, in sorted order, every label that stands exactly once: NumPy's rule.

    Raises `NotationError` for text that is not an equation, for an output label that is repeated, and for one that no
    input has, unless `new_labels` allows it.
    """
    if not isinstance(equation, str):
        raise NotationError(f"an equation is text, not {type(equation).__name__}")
    left, arrow, right = equation.partition("->")
    if "->" in right:
        raise NotationError("'->' stands more than once")
    inputs = tuple(_parse_term(text) for text in left.split(","))
    output = _parse_term(right) if arrow else _implicit_output(inputs)
    return _checked(Notation(inputs, output), new_labels)


def terms_of(equation: object) -> tuple[Any, ...]:
    """The terms of an equation that is no text; `NotationError` for what yields none."""
    if isinstance(equation, (set, frozenset, dict)) or not isinstance(equation, Iterable):
        raise NotationError(f"an equation is text or sequences of labels, not {type(equation).__name__}")
    return _listed("an equation", equation)


def _listed(what: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """The elements of a sequence, plain numbers where it is a tensor; `NotationError` where it does not yield them."""
    try:
        if isinstance(values, (torch.Tensor, np.ndarray)):
            if math.prod(values.shape) > _MOST_LABELS:
                raise NotationError(f"{what} has {math.prod(values.shape)} labels")
            return tuple(values.tolist())
        return tuple(values)
    except NotationError:
        raise
    except Exception as error:  # whatever an object of somebody else raises
        kind = type(values).__name__
        raise NotationError(f"{what} of type {kind} yields no labels ({type(error).__name__})") from None


def from_sequences(*terms: Sequence[Label], new_labels: bool = False) -> Notation:
    """Labels given as sequences, the output last: ``from_sequences(("m", "k"), ("k", "n"), ("m", "n"))``.

    Any hashable object is a label, so there can be more of them than letters; `...` is the ellipsis. `new_labels` as
    for `parse`.
    """
    read: list[Term] = []
    if not terms:
        raise NotationError("there are no labels: one sequence for each operand, and the result's")
    for term in terms:
        if isinstance(term, (set, frozenset, dict)) or not hasattr(term, "__iter__"):
            raise NotationError(f"labels come as a sequence, not {type(term).__name__}")
        # Elements of a torch tensor are tensors, which are equal to nothing but themselves as labels.
        labels = _listed("a term", term)
        for label in labels:
            if isinstance(label, torch.Tensor):
                raise NotationError("a tensor is no label: two of one value are different labels; pass numbers")
            try:
                hash(label)
            except TypeError:
                raise NotationError(f"label {label!r} is not hashable") from None
        read.append(labels)
    for term in read:
        if sum(label is Ellipsis for label in term) > 1:
            raise NotationError(f"'...' stands more than once in {term_text(term)}")
    return _checked(Notation(tuple(read[:-1]), read[-1]), new_labels)


def implicit_from_sequences(*terms: Sequence[Label]) -> Notation:
    """Like `from_sequences` without an output: the labels that stand once, sorted (they must be sortable)."""
    inputs = from_sequences(*terms, ()).inputs
    try:
        return _checked(Notation(inputs, _implicit_output(inputs)))
    except TypeError:
        raise NotationError("labels that cannot be sorted need an explicit output") from None


def expand(notation: Notation, ranks: Sequence[int]) -> Notation:
    """Replace every ellipsis by `Broadcast` labels, given the rank of each input.

    Raises `ShapeError` when a rank does not match its labels.
    """
    if len(ranks) != len(notation.inputs):
        raise NotationError(f"the equation names {counted(len(notation.inputs), 'operand')}, {given(len(ranks))}")
    several = len(ranks) > 1
    inputs = tuple(
        _expand_input(term, rank, f"operand {at}: " if several else "")
        for at, (term, rank) in enumerate(zip(notation.inputs, ranks, strict=True))
    )
    # Only what an ellipsis stands for here: labels of an earlier expansion are ordinary labels by now.
    dotted = [new for old, new in zip(notation.inputs, inputs, strict=True) if Ellipsis in old]
    hidden = {label for term in dotted for label in term if isinstance(label, Broadcast)}
    shared = tuple(sorted(hidden))  # most negative position first: the outermost dimension
    if shared and Ellipsis not in notation.output:
        raise NotationError("'...' stands for dimensions of the inputs, but the output has no '...'")
    output: list[Label] = []
    for label in notation.output:
        output.extend(shared if label is Ellipsis else (label,))
    return Notation(inputs, tuple(output))


def _parse_term(text: str) -> Term:
    text = "".join([character for character in text if character >= FIRST_SYMBOL or not character.isspace()])
    head, dots, tail = text.partition("...")
    if "..." in tail:
        raise NotationError(f"'...' stands more than once in '{text}'")
    for character in head + tail:
        if character < FIRST_SYMBOL and not character.isalpha():
            arrow = " ('->' comes before the labels of the result)" if character in "-=>" else ""
            raise NotationError(f"'{character}' in '{text}' is not a label: labels are letters{arrow}")
    return (*head, Ellipsis, *tail) if dots else tuple(head)


def _implicit_output(inputs: Sequence[Term]) -> Term:
    count = Counter(label for term in inputs for label in term if label is not Ellipsis)
    once = sorted(label for label, times in count.items() if times == 1)  # type: ignore[type-var]
    dots = (Ellipsis,) if any(Ellipsis in term for term in inputs) else ()
    return (*dots, *once)


def _checked(notation: Notation, new_labels: bool = False) -> Notation:
    known = {label for term in notation.inputs for label in term}
    for label, times in Counter(notation.output).items():
        if times > 1:
            raise NotationError(f"label '{label_text(label)}' stands {times} times in the output")
        if label not in known and label is not Ellipsis and not new_labels:
            raise NotationError(f"output label '{label_text(label)}' stands in no input")
    return notation


def _expand_input(term: Term, rank: int, place: str) -> Term:
    dims = counted(rank, "dimension")
    if Ellipsis not in term:
        if len(term) != rank:
            raise ShapeError(f"{place}'{term_text(term)}' has {counted(len(term), 'label')}, its tensor {dims}")
        return term
    hidden = rank - (len(term) - 1)
    if hidden < 0:
        raise ShapeError(f"{place}'{term_text(term)}' has {counted(len(term) - 1, 'label')}, its tensor only {dims}")
    at = term.index(Ellipsis)
    return (*term[:at], *(Broadcast(position) for position in range(-hidden, 0)), *term[at + 1 :])


def new_label(notation: Notation) -> Label:
    """A label that an equation does not have: the same in every call, so that what is made with it is found again."""
    taken = {label for term in (*notation.inputs, notation.output) for label in term}
    return next(label for label in zip(itertools.repeat("batch"), itertools.count()) if label not in taken)


def letters(terms: Iterable[Iterable[Label]]) -> dict[Label, str]:
    """A letter for each label, so that an equation is text whoever wrote it: its own where it is one."""
    labels = dict.fromkeys(label for term in terms for label in term)
    own = {label for label in labels if isinstance(label, str) and len(label) == 1 and label.isalpha()}
    free = unused_letters(own)
    return {label: str(label) if label in own else next(free) for label in labels}


def unused_letters(taken: Container[Label]) -> Iterator[str]:
    """Letters that are not taken: those of ASCII, then ideographs."""
    yield from (letter for letter in string.ascii_letters if letter not in taken)
    yield from (chr(code) for code in range(0x4E00, 0x9FFF) if chr(code) not in taken)


def spelled_equation(notation: Notation, names: Mapping[Label, str]) -> str:
    """An equation without ellipses as text, its labels by these names."""
    terms = ["".join(names[label] for label in term) for term in (*notation.inputs, notation.output)]
    return f"{','.join(terms[:-1])}->{terms[-1]}"
