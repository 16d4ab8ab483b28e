"""Which blocks of two tensors meet, and in which block of the result."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from weft.blocks.tensor import BlockTensor, Key, Structure
from weft.errors import ShapeError
from weft.spec import Notation
from weft.spec.arguments import reads

Pair = tuple[int, int]


class Products(NamedTuple):
    """A sum of products of blocks: D's block k is the sum over its pairs (i, j) of A's block i times B's block j."""

    notation: Notation
    a: Structure
    b: Structure
    d: Structure
    pairs: tuple[tuple[int, tuple[Pair, ...]], ...]  # k, and its pairs

    def derivative(self, side: int) -> Products:
        """The products that make the gradient of A or B (`side` 0, 1), of D's gradient and the other operand."""
        (first, second), output = self.notation.inputs, self.notation.output
        found: dict[int, list[Pair]] = defaultdict(list)
        for k, pairs in self.pairs:
            for pair in pairs:
                found[pair[side]].append((k, pair[1 - side]))
        own, other = ((first, self.a), (second, self.b)) if side == 0 else ((second, self.b), (first, self.a))
        rows = tuple((at, tuple(found[at])) for at in sorted(found))
        return Products(Notation((output, other[0]), own[0]), self.d, other[1], own[1], rows)

    @property
    def has_lone_modes(self) -> bool:
        """Whether an operand has a mode that stands nowhere else: a gradient is the same all along it."""
        (first, second), output = self.notation.inputs, self.notation.output
        return bool(set(first) - {*second, *output} or set(second) - {*first, *output})


def products(notation: Notation, a: Structure, b: Structure) -> Products:
    """All products of two tensors; `ShapeError` where no blocks meet."""
    found = meeting(notation, a, b)
    if not found:
        raise ShapeError(f"no blocks of a and b meet by '{notation}': the result is zero")
    first, second = notation.inputs
    shapes = []
    for (i, j), *_ in found.values():
        extents = {**dict(zip(first, a.shapes[i], strict=True)), **dict(zip(second, b.shapes[j], strict=True))}
        shapes.append(tuple(extents[label] for label in notation.output))
    return Products(notation, a, b, Structure.of(list(found), shapes),
                    tuple((at, tuple(pairs)) for at, pairs in enumerate(found.values())))  # fmt: skip


@reads("blocks.meeting")
def meeting(notation: Notation, a: Structure, b: Structure) -> dict[Key, list[tuple[int, int]]]:
    """For each block of the result the pairs of blocks, by place, that are summed into it."""
    first, second = notation.inputs
    shared = [label for label in first if label in second]
    of_a, of_b = [first.index(label) for label in shared], [second.index(label) for label in shared]
    by_sectors = defaultdict(list)
    for j, key in enumerate(b.keys):
        by_sectors[tuple(key[at] for at in of_b)].append(j)
    found: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    places = [(0, first.index(label)) if label in first else (1, second.index(label)) for label in notation.output]
    for i, key in enumerate(a.keys):
        for j in by_sectors.get(tuple(key[at] for at in of_a), ()):
            both = (key, b.keys[j])
            found[tuple(both[which][at] for which, at in places)].append((i, j))
    return dict(found)


def check_sectors(notation: Notation, a: BlockTensor, b: BlockTensor) -> None:
    """A sector of a shared mode has one extent in both; extents of 1 do not broadcast here."""
    first, second = notation.inputs
    modes_a, modes_b = a.sectors(), b.sectors()
    for at, label in enumerate(first):
        if label in second:
            other = modes_b[second.index(label)]
            for sector, extent in modes_a[at].items():
                if other.get(sector, extent) != extent:
                    raise ShapeError(
                        f"sector {sector!r} of '{label}' has extent {extent} in a and {other[sector]} in b"
                    )
