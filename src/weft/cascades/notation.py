"""The equation of a cascade: one contraction, or two of which the second begins where the first ends.

    bqhd,bkhd->bqhk, bqhk,bkhe->bqhe
    A    B     S     S    C     D
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.errors import NotationError
from weft.spec import Label, Notation, parse
from weft.spec.contraction import mode_extents
from weft.spec.notation import expand, from_sequences, label_text, term_text, terms_of

_FORM = "'ab,cb->ac', or 'ab,cb->ac, ac,cd->ad' where the second contraction takes the result of the first"


@dataclass(frozen=True, slots=True)
class CascadeNotation:
    """Labels of A, B, S, C and D; C and D are None where there is no second contraction."""

    a: tuple[Label, ...]
    b: tuple[Label, ...]
    s: tuple[Label, ...]
    c: tuple[Label, ...] | None = None
    d: tuple[Label, ...] | None = None

    @property
    def terms(self) -> tuple[tuple[Label, ...], ...]:
        """The labels of A, B and, where there is one, C."""
        return (self.a, self.b) if self.c is None else (self.a, self.b, self.c)

    def __str__(self) -> str:
        text = f"{term_text(self.a)},{term_text(self.b)}->{term_text(self.s)}"
        if self.c is None or self.d is None:
            return text
        return f"{text}, {term_text(self.s)},{term_text(self.c)}->{term_text(self.d)}"


def read(equation: Any, ranks: Sequence[int]) -> CascadeNotation:
    """An equation, as text or as sequences of labels (A, B, S) or (A, B, S, C, D), for operands of those ranks."""
    first, second = _parts(equation)
    wanted = 2 if second is None else 3
    if len(ranks) != wanted:
        raise NotationError(f"the equation names {wanted} operands, {len(ranks)} were given")
    one = expand(first, ranks[:2])
    if second is None:
        return CascadeNotation(one.inputs[0], one.inputs[1], one.output)
    at = _place_of(first, second)
    order = [len(one.output), ranks[2]] if at == 0 else [ranks[2], len(one.output)]
    two = expand(second, order)
    if sorted(map(str, two.inputs[at])) != sorted(map(str, one.output)):
        raise NotationError(f"the first contraction ends in '{term_text(one.output)}': {_SECOND}")
    return CascadeNotation(one.inputs[0], one.inputs[1], one.output, two.inputs[1 - at], two.output)


_SECOND = "the second begins with the same labels"


def _parts(equation: Any) -> tuple[Notation, Notation | None]:
    if not isinstance(equation, str):
        terms = terms_of(equation)
        if len(terms) not in (3, 5):
            raise NotationError(f"sequences of labels are (A, B, S) or (A, B, S, C, D), not {len(terms)}")
        first = from_sequences(*terms[:3])
        return first, None if len(terms) == 3 else from_sequences(terms[2], terms[3], terms[4])
    parts = equation.split("->")
    if len(parts) == 2:
        return _of_two(parse(equation)), None
    middle = parts[1].split(",") if len(parts) == 3 else []
    if len(middle) != 3:
        raise NotationError(f"a cascade is {_FORM}; not '{equation}'")
    return _of_two(parse(f"{parts[0]}->{middle[0]}")), parse(f"{middle[1]},{middle[2]}->{parts[2]}")


def _of_two(notation: Notation) -> Notation:
    if len(notation.inputs) != 2:
        raise NotationError(f"the first contraction of a cascade has two operands: {_FORM}")
    return notation


def _place_of(first: Notation, second: Notation) -> int:
    """The operand of the second contraction that the first one ends in."""
    for at, term in enumerate(second.inputs):
        if set(term) == set(first.output) and len(term) == len(first.output):
            return at
    raise NotationError(f"the first contraction ends in '{term_text(first.output)}': {_SECOND}")


def extents_of(notation: CascadeNotation, shapes: Sequence[Sequence[int]]) -> dict[Label, int]:
    """The extent of each label, extent 1 broadcasting; `ShapeError` names the label that clashes."""
    check_labels(notation)
    return mode_extents(Notation(notation.terms, ()), shapes)


def check_labels(notation: CascadeNotation) -> None:
    """`NotationError` for two labels of S that a function could not tell apart."""
    names = [str(label) for label in notation.s]
    for label, name in zip(notation.s, names, strict=True):
        if names.count(name) > 1:
            raise NotationError(f"two labels of '{term_text(notation.s)}' read '{label_text(label)}'")


def labels_of(modes: Iterable[str], notation: CascadeNotation) -> tuple[Label, ...]:
    """The labels of S that a function names."""
    known = {str(label): label for label in notation.s}
    for mode in modes:
        if mode not in known:
            raise NotationError(
                f"between: the function reduces over '{mode}', which '{term_text(notation.s)}' does not have"
            )
    return tuple(known[mode] for mode in modes)
