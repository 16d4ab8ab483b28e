"""The problem that all ranks solve together: labels, extents, a mesh, each tensor's placement. Equal on every rank."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from weft.distributed.planned.placement import Placed, Places, Span, coordinates, held
from weft.spec.notation import Label


@dataclass(frozen=True)
class RankProblem:
    """A contraction of whole tensors, and the placement of their parts."""

    a: Placed
    b: Placed
    d: Placed
    shapes: Mapping[str, tuple[int, ...]]  # of whole a, b and d
    extents: Mapping[Label, int]
    mesh: tuple[int, ...]
    items: Mapping[str, int]  # bytes of an element of a, b, d and of a "sum"; of a pair, where there are pairs
    pairs: bool = False  # whether a selected value travels with its index: whole, not by parts

    @property
    def size(self) -> int:
        return math.prod(self.mesh)

    @property
    def labels(self) -> tuple[Label, ...]:
        return tuple(dict.fromkeys((*self.d.term, *self.a.term, *self.b.term)))

    def is_reduced(self, label: Label | None) -> bool:
        return label is not None and label not in self.d.term

    def at(self, rank: int) -> tuple[int, ...]:
        return coordinates(rank, self.mesh)

    def bytes_of(self, name: str) -> int:
        return math.prod(self.shapes[name]) * self.items[name]

    def range(self, label: Label, places: Sequence[Label | None], at: Sequence[int]) -> Span:
        return held(label, self.extents[label], tuple(places), self.mesh, at)

    def repeated(self, term: Sequence[Label], shape: Sequence[int]) -> frozenset[Label]:
        """Labels along which a tensor of this shape is the same for all indices."""
        extents = zip(term, shape, strict=True)
        return frozenset(label for label, extent in extents if extent == 1 != self.extents.get(label, 1))

    def addend(self, repeated: Collection[Label], places: Places) -> tuple[tuple[int, ...], Places]:
        """The shape of a whole C that is the same along some labels, and its placement where D's is `places`."""
        shape = tuple(1 if label in repeated else self.extents[label] for label in self.d.term)
        return shape, tuple(None if label in repeated else label for label in places)
