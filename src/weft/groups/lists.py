"""Lists of different lengths, as a call names them: ragged modes, their offsets, and packed tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np
import torch

from weft.base.arrays import as_tensor, is_transformed, without_memory
from weft.base.bounded_cache import BoundedCache
from weft.base.cached import cached_property
from weft.errors import ArgumentError, NotationError, ShapeError, UnsupportedError
from weft.spec import Label, Notation
from weft.spec.notation import Term, label_text, term_text

_READ = BoundedCache(256)  # by equations and offsets


@dataclass(frozen=True)
class Ragged:
    """Which modes are ragged: the label of the lists, and of each mode where its lists begin, with the end of the last.
    """

    lists: Label
    offsets: tuple[tuple[Label, tuple[int, ...]], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Made once: every call asks for it, and there may be thousands of lists."""
        return hash((self.lists, self.offsets))

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


def check_offsets(ragged: Ragged, x: Any) -> None:
    """`ShapeError` for a jagged tensor whose lists are not those of the offsets that a call names."""
    if x.layout is torch.jagged:
        if getattr(x, "_lengths", None) is not None:
            raise UnsupportedError("a jagged tensor with holes between its lists: give its lists one after the other")
        place = getattr(x, "_ragged_idx", 1)
        if place != 1:
            raise UnsupportedError(f"the lists of a jagged tensor lie along dimension {place}: transpose it, to 1")
        own = tuple(x.offsets().tolist())
        if all(starts != own for _, starts in ragged.offsets):
            raise ShapeError(f"the lists of a jagged tensor begin at {_some(own)}, and ragged says otherwise")


def offsets_of(ragged: Ragged, label: Label, nested: Sequence[Any]) -> Any:
    """The offsets of a ragged mode for a jagged result: those of an operand that has the same lists, where one does."""
    starts = dict(ragged.offsets)[label]
    for x in nested:
        if tuple(x.offsets().tolist()) == starts:
            return x.offsets()
    return torch.tensor(starts, device=nested[0].device)


def _some(starts: tuple[int, ...]) -> str:
    return ", ".join(map(str, starts[:8])) + (", ..." if len(starts) > 8 else "")


def read_ragged(notation: Notation, given: Any) -> Ragged:
    """The ragged modes of an equation, from a mapping of labels to offsets; kept for others that are equal."""
    if not isinstance(given, Mapping) or not given:
        kind = type(given).__name__ if not isinstance(given, Mapping) else "an empty one"
        raise ArgumentError(f'ragged is a mapping from labels to offsets, not {kind}: {{"j": offsets}}')
    said = tuple([(label, _starts(label, value)) for label, value in given.items()])
    known: Ragged | None = _READ.get((notation, said))
    if known is None:
        known = _checked(notation, said)
        _READ.put((notation, said), known)
    return known


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


def _checked(notation: Notation, offsets: tuple[tuple[Label, tuple[Any, ...]], ...]) -> Ragged:
    given = [label for label, _ in offsets]
    for label, starts in offsets:
        if len(starts) < 2 or starts[0] != 0 or any(x > y for x, y in pairwise(starts)):
            text = f"the offsets of '{label_text(label)}'"
            raise ArgumentError(f"{text} begin with 0 and do not fall, one more than lists")
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
