"""Which blocks of two tensors meet, and in which block of the result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from weft.blocks.tensor import Key, Structure
from weft.errors import ShapeError
from weft.groups.packed import Products
from weft.spec import Notation
from weft.spec.arguments import reads
from weft.spec.notation import Label, Term

Sign = Callable[[Key, Key], int]


def plus(first: Key, second: Key) -> int:
    """The sign of products of numbers that commute."""
    return 1


def products(
    notation: Notation, a: Structure, b: Structure, d: Structure | None = None, sign: Sign = plus
) -> Products:
    """All products of two tensors, into the blocks of `d`, else into those that they make.

    Raises `ShapeError` where there is no `d` and no blocks meet. `sign`: that of each product of two blocks, by their
    names.
    """
    found = meeting(notation, a, b)
    if d is None and not found:
        raise ShapeError(f"no blocks of a and b meet by '{notation}': the result is zero")
    if d is None:
        d = Structure.of(list(found), [shape_of(notation, a, b, pairs[0]) for pairs in found.values()])
    rows, equal = [], _equal_sums(notation, a, b)
    for at in d.stored:
        pairs = found.get(d.keys[at], ())
        if pairs and shape_of(notation, a, b, pairs[0]) != d.shapes[at]:
            made = shape_of(notation, a, b, pairs[0])
            raise ShapeError(f"block {d.keys[at]} of the result has shape {made}, that of `like` {d.shapes[at]}")
        if pairs:
            weights = [sign(a.keys[i], b.keys[j]) * equal(a.keys[i]) for i, j in pairs]
            rows.append((at, tuple([(i, j, weight) for (i, j), weight in zip(pairs, weights, strict=True) if weight])))
    return Products(notation, a, b, d, tuple(rows))


def _equal_sums(notation: Notation, a: Structure, b: Structure) -> Callable[[Key], int]:
    """How often a product of A's block of that name is the same again, as symmetries of both operands exchange labels
    that are summed over: counted for one of those blocks, and 0 for the others."""
    first, second = notation.inputs
    summed = [label for label in first if label in second and label not in notation.output]

    def exchanges(term: Term, structure: Structure) -> dict[tuple[Label, ...], int]:
        moves = (({label: term[at] for label, at in zip(term, order, strict=True)}, sign)
                 for order, sign in structure.symmetry)  # fmt: skip
        return {tuple([move[label] for label in summed]): sign for move, sign in moves
                if all(move[label] == label for label in term if label not in summed)}  # fmt: skip

    of_b = exchanges(second, b)
    common = [order for order, sign in exchanges(first, a).items() if of_b.get(order) == sign]
    if len(common) < 2:
        return lambda key: 1
    places = [[first.index(label) for label in order] for order in common]
    own = [first.index(label) for label in summed]

    def counted(key: Key) -> int:
        names = {tuple([key[at] for at in each]) for each in places}
        return len(names) if tuple([key[at] for at in own]) == min(names) else 0

    return counted


def shape_of(notation: Notation, a: Structure, b: Structure, pair: tuple[int, int]) -> tuple[int, ...]:
    """The shape of the product of two blocks."""
    (first, second), (i, j) = notation.inputs, pair
    extents = {**dict(zip(first, a.shapes[i], strict=True)), **dict(zip(second, b.shapes[j], strict=True))}
    return tuple([extents[label] for label in notation.output])


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


def check_sectors(notation: Notation, a: Structure, b: Structure) -> None:
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
