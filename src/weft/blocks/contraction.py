"""`weft.blocks.contract`: two block-sparse tensors, in one launch."""

from __future__ import annotations

from typing import Any, cast

from weft.api.keywords import Equation
from weft.api.lookup import read_notation
from weft.base.describe import describe_call
from weft.base.dispatch import near_dynamo, outside
from weft.base.figures import counted
from weft.base.kept import is_capturing
from weft.blocks.gradient import with_gradient
from weft.blocks.meeting import check_sectors, products
from weft.blocks.plan import BlockPlan
from weft.blocks.tensor import BlockTensor, Structure
from weft.errors import ArgumentError, ShapeError, UnsupportedError, call_context
from weft.fn.fingerprint import fingerprints
from weft.planner.request import HOOKS
from weft.plans.derivatives import asked as asked_of
from weft.plans.keywords import refuse_unknown
from weft.plans.memo import Memo
from weft.spec import Notation
from weft.spec.notation import term_text

_PLANS = Memo("blocks: plans", 512)


def contract(
    equation: Equation, a: BlockTensor, b: BlockTensor, *, like: BlockTensor | None = None, **keywords: Any
) -> BlockTensor:
    """Contract two block-sparse tensors in one launch: blocks meet where the sectors of the modes they share agree.

    `equation` as for `weft.contract`, without ``...`` and without a label twice in one operand. `a_fn`, `b_fn` and
    `epilogue` are functions of the values of blocks; what is no block stays zero, whatever they make of zero.
    `out_dtype`, `precision`, `accumulate`, `backend` as for `weft.contract`. `like`: a tensor whose blocks the result
    has, and no others: those that no products meet in are zero, and of one with symmetries each is made once. Every
    block of the result is the sum of all its products, in an order that the blocks alone decide: its bits are the same
    in every call. The plan is kept for tensors of the same blocks.

    Gradients reach the blocks' tensors: they are contractions of blocks, too, in one launch each, and functions are
    passes over the buffers then. Under `torch.func.vmap`, with modes of one operand alone, and with `out_dtype`,
    `precision` or `accumulate` it is a contraction for each pair of blocks instead.

    Raises what `weft.contract` raises; a `ShapeError` names the sector whose extents differ. A result without a block
    is a `ShapeError`, too: no sectors meet.
    """
    if near_dynamo():
        return cast(BlockTensor, outside(contract, equation, a, b, like=like, **keywords))
    with call_context(lambda: describe_call("blocks.contract", equation)):
        refuse_unknown("blocks.contract", keywords)
        for name, value in (("a", a), ("b", b), ("like", a if like is None else like)):
            if not isinstance(value, BlockTensor):
                raise ArgumentError(f"{name} is a weft.blocks.BlockTensor, not {type(value).__name__}")
        if a.device != b.device:
            raise UnsupportedError(f"a is on {a.device}, b on {b.device}")
        notation = read_notation(equation)
        given = {name: value for name, value in keywords.items() if value is not None}
        structure = None if like is None else like.structure
        if asked_of(a.buffer, b.buffer):
            backend = {name: given.pop(name) for name in ("backend",) if name in given}
            plain = _plan(notation, a, b, structure, backend)
            buffer = with_gradient(plain, a.buffer, b.buffer, given)
            return BlockTensor.over(plain.products.d, buffer)
        plan = _plan(notation, a, b, structure, given)
        return BlockTensor.over(plan.products.d, plan(a.buffer, b.buffer))


def _plan(
    notation: Notation, a: BlockTensor, b: BlockTensor, d: Structure | None, keywords: dict[str, Any]
) -> BlockPlan:
    """The plan of an earlier contraction of the same blocks, else a new one."""
    prints = fingerprints(tuple(keywords.get(hook) for hook in HOOKS))
    said = tuple((name, value) for name, value in keywords.items() if name not in HOOKS)
    try:
        place = _PLANS.place((notation, a.structure, b.structure, d, a.dtype, b.dtype, a.device, prints, said))
    except TypeError:
        raise ArgumentError("a keyword of blocks.contract has no hash") from None
    plan: BlockPlan | None = _PLANS.get(place) if prints is not None else None
    if plan is None:
        _check(notation, a, b)
        plan = BlockPlan(products(notation, a.structure, b.structure, d), a.buffer, b.buffer, keywords)
        if prints is not None and not is_capturing(a.device):  # where no group has a launch of its own
            _PLANS.put(place, plan)
    return plan


def _check(notation: Notation, a: BlockTensor, b: BlockTensor) -> None:
    for name, term, tensor in zip("ab", notation.inputs, (a, b), strict=True):
        if len(term) != tensor.rank:
            text = term_text(term)
            raise ShapeError(
                f"'{text}' has {counted(len(term), 'label')}, the blocks of {name} {counted(tensor.rank, 'mode')}"
            )
        if len(set(term)) < len(term):
            raise UnsupportedError(f"'{term_text(term)}' has a label twice: diagonals are not for blocks")
    check_sectors(notation, a, b)
