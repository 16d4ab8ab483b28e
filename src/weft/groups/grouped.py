"""`grouped`: many contractions of one equation, of any extents, in one launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, overload

import torch

from weft.api.autocast import cast_by_autocast, with_autocast
from weft.api.keywords import Equation, signed
from weft.api.lookup import read_notation
from weft.base.arrays import Array, any_autocast, dispatch_modes, is_transforming, like
from weft.base.describe import describe_call
from weft.base.dispatch import as_operation, is_traced, outside_graphs
from weft.engine.memo import Memo, MemoPlace
from weft.errors import ShapeError, UnsupportedError, call_context
from weft.groups.at_once import at_once
from weft.groups.gradient import with_gradient
from weft.groups.one_by_one import check_added, one_by_one
from weft.groups.operands import as_operands, read_pairs
from weft.groups.plan import GroupedPlan
from weft.planner.options import Options
from weft.planner.promotion import begins_with_library
from weft.plans.derivatives import asked_of_many
from weft.plans.keywords import read_options
from weft.spec import Notation

_PLANS = Memo("grouped: plans", 64)  # by what a call says and its first and last pair; a call has its plan for itself
_PLAIN = read_options("grouped", {})
_PLAIN_SAID = _PLAIN.said()


@overload
def grouped(
    equation: Equation, pairs: Iterable[tuple[Array, Any]], *, accumulate_into: bool = False, **keywords: Any
) -> list[Array]: ...
@overload
def grouped(
    equation: Equation, pairs: Iterable[tuple[Any, Any]], *, reduce: Mapping[str, Any], accumulate_into: bool = False,
    **keywords: Any,
) -> tuple[list[Any], dict[str, list[Any]]]: ...
@overload
def grouped(
    equation: Equation, pairs: Iterable[tuple[Any, Any]], *, accumulate_into: bool = False, **keywords: Any
) -> list[Any]: ...
@signed("grouped", ("equation", "pairs"))
@outside_graphs
def grouped(
    equation: Equation, pairs: Iterable[tuple[Any, Any]], *, accumulate_into: bool = False, **keywords: Any
) -> Any:
    """Contract every pair of a list by one equation, in one launch: ``[contract(equation, a, b) for a, b in pairs]``.

    `equation`: as for `contract`, without ``...``. `pairs`: tensors whose extents may differ from pair to pair; their
    types and devices are one. `out`: a list of places for the results, of any strides, no two of which overlap one
    another or an operand (this is not checked); with `accumulate_into` sums are added to what is there. `a_fn`, `b_fn`,
    `epilogue`: functions of a value, fused; they take no operands here. `out_dtype`, `precision`, `accumulate` and
    `backend` as for `contract`, and so is `torch.autocast`.

    Where all pairs are alike and evenly spaced in memory they are one contraction with a batch mode. Types that no
    kernel for groups takes are contracted one by one on the CPU (half precision, integers); on a GPU they are an
    `UnsupportedError`, but all that Triton computes with is taken there.
    Gradients of plain products are groups, too; with functions, broadcast extents or modes of one operand alone they
    are found pair by pair. `torch.func.vmap` adds a batch mode to every pair.

    `reduce`: further results of every pair that keep some of D's modes, by name, as for `contract`; the call then
    returns the list and a dictionary of lists. Their functions take no operands.

    Returns a list of results of the kind that the first operand is; it is empty where `pairs` is. Raises what
    `contract` raises, with the pair named by its place, and `ArgumentError` for what is no list of pairs. The last
    groups are remembered: a call of other tensors with the same layouts sends only their addresses. To call the same
    group often see `plan_grouped`.

    >>> import torch, weft
    >>> pairs = [(torch.ones(n, n), torch.ones(n, 2)) for n in (1, 3)]
    >>> [tuple(x.shape) for x in weft.grouped("mk,kn->mn", pairs)]
    [(1, 2), (3, 2)]
    """
    with call_context(lambda: describe_call("grouped", equation)):
        if (reduce := keywords.pop("reduce", None)) is not None:
            reductions = as_operation("reductions")(reduce, read_notation(equation).output)
            results = grouped(equation, pairs, accumulate_into=accumulate_into, **keywords)
            each = [reductions.of(result) for result in results]
            return results, {name: [one[name] for one in each] for name in reductions.names}
        options, out = read_options("grouped", keywords), keywords.get("out")
        operands = read_pairs(pairs)
        if not operands:
            read_notation(equation)
            return []
        if any_autocast() and all(isinstance(one, torch.Tensor) for one in operands):
            operands = cast_by_autocast(operands, keywords.get("precision"))
        found = _results(equation, operands, check_added(accumulate_into, out), options, out)
        if out is not None:
            return list(out)
        if isinstance(operands[0], torch.Tensor):
            return list(found)
        return [like(operands[0], result) for result in found]


@signed("plan_grouped", ("equation", "pairs"))
@outside_graphs
def plan_grouped(
    equation: Equation, pairs: Iterable[tuple[Any, Any]], *, accumulate_into: bool = False, **keywords: Any
) -> GroupedPlan:
    """Plan a group once and call it often: its addresses, extents and strides stay in the device's memory.

    Arguments and errors as for `grouped`. Called without arguments the plan contracts the tensors that it holds,
    whatever their values are then; called with other pairs of the same extents and strides it holds these from then on.
    Gradients are those of `grouped`. Tensors that a call reads or writes are the caller's: they must not be changed
    while it runs.

    >>> import torch, weft
    >>> pairs = [(torch.ones(n, n), torch.ones(n, 2)) for n in (1, 3)]
    >>> plan = weft.plan_grouped("mk,kn->mn", pairs)
    >>> plan()[1][0]
    tensor([3., 3.])
    """
    with call_context(lambda: describe_call("plan_grouped", equation)):
        operands = read_pairs(pairs)
        if not operands:
            raise ShapeError("a group of no pairs has no plan; weft.grouped returns an empty list")
        a, b = operands[:2]
        if any_autocast() and getattr(a, "dtype", None) == getattr(b, "dtype", None):  # else they are refused
            keywords = with_autocast(keywords, a, b, keywords.get("out"))
        options = read_options("plan_grouped", keywords)
        return _planned(equation, operands, accumulate_into, options, keywords.get("out"))


def _planned(
    equation: Equation | Notation, operands: list[Any], add: bool, options: Options, out: Any
) -> GroupedPlan:
    derived = partial(with_gradient, grouped, read_notation(equation), options=options)
    return GroupedPlan(equation, operands, add, options, derived, out)


def _results(
    equation: Equation | Notation, operands: list[Any], add: bool, options: Options, out: Any
) -> Sequence[torch.Tensor]:
    """The results, by the plan of an earlier group with the same layouts, else by a new one.

    Which way a call goes, and with it the graph of its gradients, follows from the call alone: a checkpoint makes it
    again and pairs what either saves.
    """
    if out is None and not add and begins_with_library("cpu") and options == _PLAIN:
        products = at_once(equation, operands)
        if products is not None:
            return products
    place = _place(equation, operands, add, options) if out is None else None
    plan: GroupedPlan | None = _PLANS.take(place) if place is not None else None
    found = plan.again(operands) if plan is not None else None
    if found is None and is_traced(operands):
        return one_by_one(read_notation(equation), operands, options, out, check_added(add, out))
    if found is None:
        tensors = as_operands(operands)
        if asked_of_many(tensors):
            if out is not None:
                raise UnsupportedError("a group whose operands require gradients makes its results: leave out out")
            return with_gradient(grouped, read_notation(equation), tensors, options)
        plan = _planned(equation, operands, add, options, out)
        found = plan.run()
    if place is not None and plan is not None:
        plan.forget()
        _PLANS.put(place, plan)
    return found


def _place(equation: Equation | Notation, operands: list[Any], add: bool, options: Options) -> MemoPlace | None:
    """The key by which a plan is remembered; None where a group is planned anew.

    Only the first and the last pair are in it: `Likeness` checks the others. A plan's tables are in the memory of one
    stream's device, where a copy waits for the kernel before it; a captured graph would read them after they changed.
    """
    ends = (*operands[:2], *operands[-2:])
    if {*map(type, ends)} != {torch.Tensor} or is_transforming() or dispatch_modes():
        return None
    said = _PLAIN_SAID if options is _PLAIN else options.said()
    stream, first = None, operands[0]
    if first.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return None
        stream = torch._C._cuda_getCurrentRawStream(first.get_device())
    if said is None:
        return None
    key = (equation, add, len(operands), tuple([one.shape for one in ends]), first.dtype, said, stream)
    try:
        return _PLANS.place(key)
    except TypeError:  # an equation in lists
        return None
