"""The placement of the tensors of a backward pass: a gradient as its tensor, sums and whatever has their shape as D."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.distributed.planned.placement import Places, Span, held


@dataclass(frozen=True)
class PassLayout:
    """Tensors are named as the steps of `weft.autograd` name them; labels are those of the plain form."""

    extents: Mapping[str, int]
    mesh: tuple[int, ...]
    at: tuple[int, ...]  # this rank's place in the mesh
    places: Mapping[str, Places]  # of A, B, D, and of each operand of functions

    def places_of(self, source: str, term: str) -> Places:
        """The placement of a source that has these labels."""
        return within(self.places[_origin(source)], term)

    def span(self, label: str, places: Places) -> Span:
        """The indices of a label that this rank has."""
        return held(label, self.extents[label], places, self.mesh, self.at)

    def whole(self, term: str) -> tuple[int, ...]:
        return tuple(self.extents[label] for label in term)

    def part(self, source: str, term: str) -> tuple[int, ...]:
        """The shape of this rank's part."""
        places = self.places_of(source, term)
        return tuple(self.span(label, places).extent for label in term)


def within(places: Places, term: str) -> Places:
    """The places of a tensor of labels `term`, so that each rank has what belongs to its part of one under `places`."""
    return tuple(label if label is not None and str(label) in term else None for label in places)


def _origin(source: str) -> str:
    """The tensor of the forward pass that a source is placed as: "dA along mk" as A, "dD1", "G" and "sums" as D."""
    if "operand " in source:
        return source.removeprefix("d ")
    first = source.split()[0].removeprefix("d")
    return first if first in ("A", "B") else "D"
