"""`weft.blocks.contract`: two block-sparse tensors, in one launch."""

from __future__ import annotations

from typing import Any, overload

import torch

from weft.api.autocast import cast_by_autocast
from weft.api.keywords import Equation
from weft.api.lookup import read_notation
from weft.base.arrays import any_autocast
from weft.base.bounded_cache import BoundedCache
from weft.base.describe import describe_call
from weft.base.dispatch import outside_graphs
from weft.base.figures import counted
from weft.base.kept import is_capturing
from weft.blocks.charged import ChargedTensor, allowed, contraction_sign, result_legs
from weft.blocks.charges import Charge, Leg
from weft.blocks.gradient import with_gradient
from weft.blocks.meeting import check_sectors, products
from weft.blocks.plan import BlockPlan
from weft.blocks.tensor import BlockTensor, Structure
from weft.engine.memo import Memo
from weft.errors import ArgumentError, ShapeError, UnsupportedError, call_context
from weft.fn.fingerprint import fingerprints
from weft.planner.request import HOOKS
from weft.plans.checks import check_storage
from weft.plans.derivatives import asked as asked_of
from weft.plans.keywords import refuse_unknown
from weft.spec import Notation
from weft.spec.notation import term_text

Graded = tuple[tuple[Leg, ...], tuple[Leg, ...]]  # legs of A and B, where fermions make signs

Blocked = BlockTensor | ChargedTensor
_RESULTS = BoundedCache(2048)  # legs, charge and structure by those of operands
_PLANS = Memo("blocks: plans", 512)
_SCALAR = Structure.of([()], [()])


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
        notation = read_notation(equation)
        if any_autocast():
            buffers = cast_by_autocast((a.buffer, b.buffer), keywords.get("precision"))
            a, b = (_over(each, buffer) for each, buffer in zip((a, b), buffers, strict=True))
        if charged:
            return _of_charges(notation, a, b, given)
        return BlockTensor.over(*_contracted(notation, a, b, None if like is None else like.structure, given))


def _over(tensor: Blocked, buffer: torch.Tensor) -> Blocked:
    """A tensor with its blocks over another buffer."""
    if isinstance(tensor, BlockTensor):
        return BlockTensor.over(tensor.structure, buffer)
    return ChargedTensor.over(tensor.legs, tensor.charge, tensor.structure, buffer)


def _of_charges(notation: Notation, a: ChargedTensor, b: ChargedTensor, keywords: dict[str, Any]) -> Any:
    """The contraction of two tensors that conserve charges."""
    key = (notation, a.legs, a.charge, b.legs, b.charge)
    known: tuple[tuple[Leg, ...], Charge, Structure] | None = _RESULTS.get(key)
    if known is None:
        legs, charge = result_legs(notation, a, b), a.symmetry.sum([(1, a.charge), (1, b.charge)])
        known = legs, charge, allowed(legs, charge) if legs else _SCALAR
        _RESULTS.put(key, known)
    legs, charge, structure = known
    graded = (a.legs, b.legs) if a.symmetry.has_fermions else None
    _, buffer = _contracted(notation, a, b, structure, keywords, graded)
    return ChargedTensor.over(legs, charge, structure, buffer) if legs else buffer[0]


def _contracted(
    notation: Notation, a: Blocked, b: Blocked, d: Structure | None, given: dict[str, Any],
    graded: Graded | None = None,
) -> tuple[Structure, torch.Tensor]:  # fmt: skip
    """The structure and the buffer of the result."""
    check_storage("the buffer of a", a.buffer)
    check_storage("the buffer of b", b.buffer)
    if not asked_of(a.buffer, b.buffer):
        plan = _plan(notation, a, b, d, given, graded)
        return plan.products.d, plan(a.buffer, b.buffer)
    backend = {name: given.pop(name) for name in ("backend",) if name in given}
    plain = _plan(notation, a, b, d, backend, graded)
    return plain.products.d, with_gradient(plain, a.buffer, b.buffer, given)


def _plan(
    notation: Notation, a: Blocked, b: Blocked, d: Structure | None, keywords: dict[str, Any],
    graded: Graded | None,
) -> BlockPlan:  # fmt: skip
    """The plan of an earlier contraction of the same blocks, else a new one."""
    prints = fingerprints(tuple(keywords.get(hook) for hook in HOOKS))
    said = tuple([(name, value) for name, value in keywords.items() if name not in HOOKS])
    try:
        place = _PLANS.place((notation, a.structure, b.structure, d, graded, a.dtype, b.dtype, a.device, prints, said))
    except TypeError:
        raise ArgumentError("a keyword of blocks.contract has no hash") from None
    plan: BlockPlan | None = _PLANS.get(place) if prints is not None else None
    if plan is None:
        _check(notation, a, b)
        if d is not None and len(d.keys[0]) != len(notation.output):
            modes, output = counted(len(d.keys[0]), "mode"), notation.output
            raise ShapeError(f"the blocks of `like` have {modes}, '{term_text(output)}' {len(output)}")
        signs = {} if graded is None else {"sign": contraction_sign(notation, graded[0])}
        plan = BlockPlan(products(notation, a.structure, b.structure, d, **signs), a.buffer, b.buffer, keywords)
        if prints is not None and not is_capturing(a.device):  # where no group has a launch of its own
            _PLANS.put(place, plan)
    return plan


def _check(notation: Notation, a: Blocked, b: Blocked) -> None:
    for name, term, tensor in zip("ab", notation.inputs, (a, b), strict=True):
        rank = len(tensor.structure.keys[0])
        if len(term) != rank:
            given = f"'{term_text(term)}' has {counted(len(term), 'label')}"
            raise ShapeError(f"{given}, the blocks of {name} {counted(rank, 'mode')}")
        if len(set(term)) < len(term):
            raise UnsupportedError(f"'{term_text(term)}' has a label twice: diagonals are not for blocks")
    check_sectors(notation, a.structure, b.structure)
