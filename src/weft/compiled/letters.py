"""Labels of any kind as letters, so that an equation is text whoever wrote it."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from itertools import chain

from weft.spec import Label, Notation

#: ASCII letters first, then those of other alphabets: any letter is a label.
_LETTERS = (string.ascii_letters, map(chr, range(0x3B1, 0x3C9)), map(chr, range(0x4E00, 0x9FA5)))


def letters(terms: Iterable[Iterable[Label]]) -> dict[Label, str]:
    """A letter for each label: its own where it is one."""
    labels = list(dict.fromkeys(label for term in terms for label in term))
    taken = {label for label in labels if _is_letter(label)}
    free: Iterator[str] = (letter for letter in chain(*_LETTERS) if letter not in taken)
    return {label: str(label) if label in taken else next(free) for label in labels}


def spelled_equation(notation: Notation, names: dict[Label, str]) -> str:
    """An equation whose ellipses are expanded."""
    terms = ["".join(names[label] for label in term) for term in (*notation.inputs, notation.output)]
    return f"{','.join(terms[:-1])}->{terms[-1]}"


def _is_letter(label: Label) -> bool:
    return isinstance(label, str) and len(label) == 1 and label.isalpha()
