"""Auxiliary arguments of functions: operands and coordinates by name, and their layout along the modes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from weft.errors import NotationError, ShapeError
from weft.spec.contraction import Aux, Layout, check_diagonals, mode_strides
from weft.spec.notation import Label, Notation, expand, from_sequences, label_text, parse, term_text

_LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class AuxInput:
    """An operand or a coordinate that functions ask for by the name of a parameter."""

    name: str
    term: tuple[Label, ...]  # an operand's modes, or the one label of a coordinate
    layout: Layout | None  # None for a coordinate
    dtype: torch.dtype

    @property
    def aux(self) -> Aux:
        return Aux(self.name, "index" if self.layout is None else "operand", self.layout, self.dtype)

    def strides(self, extents: dict[Label, int]) -> dict[Label, int]:
        """Along each label it has: 1 for a coordinate, whose offset is its value."""
        return {self.term[0]: 1} if self.layout is None else mode_strides(self.term, self.layout, extents)


def read_modes(name: str, modes: Any, rank: int) -> tuple[Label, ...]:
    """The labels of an operand of that rank: text (``"mn"``, ``"...n"``) or a sequence of labels."""
    read = parse(f"{modes}->", new_labels=True) if isinstance(modes, str) else from_sequences(modes, ())
    if len(read.inputs) != 1:
        raise NotationError(f"operand '{name}' has one term of modes, not '{modes}'")
    (term,) = read.inputs
    try:
        return expand(Notation((term,), term), (rank,)).inputs[0]
    except ShapeError as error:
        raise ShapeError(f"operand '{name}': {error}") from None


def operand(name: str, term: tuple[Label, ...], layout: Layout, extents: Mapping[Label, int]) -> AuxInput:
    """An operand with those modes, its extents checked: each is the mode's, or 1 and broadcasts."""
    check_diagonals(term, layout.shape, f"operand '{name}'")
    for label, extent in zip(term, layout.shape, strict=True):
        wanted = extents.get(label, extent)  # an unknown label is refused where a function asks for it
        if extent not in (wanted, 1):
            raise ShapeError(
                f"label '{label_text(label)}' has extent {extent} in operand '{name}' and {wanted} in the contraction"
            )
    return AuxInput(name, term, layout, layout.dtype)


def coordinate(name: str, label: Label, extents: Mapping[Label, int]) -> AuxInput:
    """The coordinate along one mode: int32 where that holds every one of them, else int64."""
    try:
        extent = extents.get(label, 1)
    except TypeError:
        raise NotationError(f"index '{name}' is one label, not {type(label).__name__}") from None
    if label not in extents and isinstance(label, str) and len(label) > 1 and all(each in extents for each in label):
        raise NotationError(f"index '{name}' is the coordinate along one label, '{label}' names {len(label)}")
    return AuxInput(name, (label,), None, torch.int32 if extent - 1 <= _LARGEST_INT32 else torch.int64)


def check_reach(named: AuxInput, hook: str, tensor: str, labels: Collection[Label]) -> None:
    """A function sees one element of its tensor: what it takes beside it lies along that tensor's modes alone."""
    for label in named.term:
        if label not in labels:
            kind = "operand" if named.layout is not None else "index"
            there = f"its modes are '{term_text(tuple(labels))}'" if labels else "it has no modes"
            raise NotationError(
                f"{hook} works on elements of {tensor}, which has no label '{label_text(label)}' ({there}): "
                f"{kind} '{named.name}' cannot lie along it"
            )
