"""`weft.blocks.contract`: two block-sparse tensors, in one launch; which blocks meet, and in which of the result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, cast, overload

from weft.api.keywords import Equation, cast_by_autocast
from weft.api.lookup import read_notation
from weft.base.arguments import describe_call
from weft.base.arrays import any_autocast
from weft.base.dispatch import outside_graphs
from weft.base.figures import counted
from weft.blocks.charged import ChargedTensor, allowed, check_legs, contraction_sign, legs_of
from weft.blocks.charges import Charge
from weft.blocks.tensor import BlockTensor, Key, Structure
from weft.errors import ArgumentError, ShapeError, UnsupportedError, call_context
from weft.groups.packed import Products, packed_plan
from weft.plans.keywords import read_options, refuse_unknown
from weft.spec import Notation
from weft.spec.arguments import reads
from weft.spec.notation import Label, Term, term_text

Sign = Callable[[Key, Key], int]


def plus(first: Key, second: Key) -> int:
    """The sign of products of numbers that commute."""
    return 1


def products(notation: Notation, a: Structure, b: Structure, d: Structure | None = None, sign: Sign = plus) -> Products:
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


Blocked = BlockTensor | ChargedTensor


@overload
def contract(
    equation: Equation, a: ChargedTensor, b: ChargedTensor, *, like: None = None, **keywords: Any
) -> ChargedTensor: ...
@overload
def contract(
    equation: Equation, a: BlockTensor, b: BlockTensor, *, like: BlockTensor | None = None, **keywords: Any
) -> BlockTensor: ...
@outside_graphs
def contract(equation: Equation, a: Any, b: Any, *, like: BlockTensor | None = None, **keywords: Any) -> Any:
    """Contract two block-sparse tensors in one launch: blocks meet where the sectors of the modes they share agree.

    `equation` as for `weft.contract`, without ``...`` and without a label twice in one operand. `a_fn`, `b_fn` and
    `epilogue` are functions of the values of blocks; what is no block stays zero, whatever they make of zero.
    `out_dtype`, `precision`, `accumulate`, `backend` as for `weft.contract`. `like`: a tensor whose blocks the result
    has, and no others: those that no products meet in are zero, and of one with symmetries each is made once. Every
    block of the result is the sum of all its products, in an order that the blocks alone decide: its bits are the same
    in every call. The plan is kept for tensors of the same blocks.

    Two `ChargedTensor`, whose legs meet their duals, have a `ChargedTensor` as their result, or a 0-d tensor where no
    leg is left. Each label stands twice.

    Gradients reach the blocks' tensors: they are contractions of blocks, too, in one launch each, and functions are
    passes over the buffers then. Under `torch.func.vmap`, with modes of one operand alone, with an epilogue of a
    result in some of whose blocks nothing meets, and with `out_dtype`, `precision` or `accumulate` it is a contraction
    for each pair of blocks instead.

    Raises what `weft.contract` raises; a `ShapeError` names the sector whose extents differ. A result without a block
    is a `ShapeError`, too: no sectors meet.
    """
    with call_context(lambda: describe_call("blocks.contract", equation)):
        refuse_unknown("blocks.contract", keywords)
        given = {name: value for name, value in keywords.items() if value is not None}
        charged = isinstance(a, ChargedTensor)
        for name, value in (("a", a), ("b", b), *([] if like is None else [("like", like)])):
            if not isinstance(value, ChargedTensor if charged else BlockTensor):
                kind = "ChargedTensor, as a is" if charged else "BlockTensor"
                raise ArgumentError(f"{name} is a weft.blocks.{kind}, not {type(value).__name__}")
        if charged and like is not None:
            raise ArgumentError("like is for BlockTensor: charges say which blocks the result has")
        if a.device != b.device:
            raise UnsupportedError(f"a is on {a.device}, b on {b.device}")
        notation, options, x, y = read_notation(equation), read_options("blocks.contract", given), a.buffer, b.buffer
        if any_autocast():
            x, y = cast_by_autocast((x, y), keywords.get("precision"))
        if not charged:
            d = None if like is None else like.structure
            words: tuple[Any, ...] = "blocks", notation, a.structure, b.structure, d
            plan = packed_plan(words, x, y, options, lambda: _of_blocks(notation, a, b, d))
            return BlockTensor.over(cast(Structure, plan.products.d), plan.contract(x, y, options))
        words = "charged", notation, a.legs, a.charge, b.legs, b.charge
        plan = packed_plan(words, x, y, options, lambda: _of_charges(notation, a, b))
        buffer, legs = plan.contract(x, y, options), legs_of(notation, a, b)
        return ChargedTensor.over(legs, _charge(a, b), cast(Structure, plan.products.d), buffer) if legs else buffer[0]


def _of_blocks(notation: Notation, a: Blocked, b: Blocked, d: Structure | None, sign: Sign = plus) -> Products:
    """The products of two tensors, into the blocks of `d` or those that they make."""
    _check(notation, a, b)
    if d is not None and len(d.keys[0]) != len(notation.output):
        modes, output = counted(len(d.keys[0]), "mode"), notation.output
        raise ShapeError(f"the blocks of `like` have {modes}, '{term_text(output)}' {len(output)}")
    return products(notation, a.structure, b.structure, d, sign)


def _of_charges(notation: Notation, a: ChargedTensor, b: ChargedTensor) -> Products:
    """The products of two tensors that conserve charges."""
    check_legs(notation, a, b)
    legs = legs_of(notation, a, b)
    d = allowed(legs, _charge(a, b)) if legs else Structure.of([()], [()])
    sign = contraction_sign(notation, a.legs) if a.symmetry.has_fermions else plus
    return _of_blocks(notation, a, b, d, sign)


def _charge(a: ChargedTensor, b: ChargedTensor) -> Charge:
    return a.symmetry.sum([(1, a.charge), (1, b.charge)])


def _check(notation: Notation, a: Blocked, b: Blocked) -> None:
    for name, term, tensor in zip("ab", notation.inputs, (a, b), strict=True):
        rank = len(tensor.structure.keys[0])
        if len(term) != rank:
            given = f"'{term_text(term)}' has {counted(len(term), 'label')}"
            raise ShapeError(f"{given}, the blocks of {name} {counted(rank, 'mode')}")
        if len(set(term)) < len(term):
            raise UnsupportedError(f"'{term_text(term)}' has a label twice: diagonals are not for blocks")
    check_sectors(notation, a.structure, b.structure)
