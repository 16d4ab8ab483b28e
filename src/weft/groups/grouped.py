"""`grouped`: many contractions of one equation, of any extents, in one launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, overload

import torch

from weft.api.keywords import Equation, cast_by_autocast, signed, with_autocast
from weft.api.lookup import read_notation
from weft.base.arguments import describe_call
from weft.base.arrays import Array, any_autocast, like
from weft.base.dispatch import as_operation, outside_graphs
from weft.errors import ShapeError, call_context
from weft.groups.launch import at_once, check_added
from weft.groups.operands import read_pairs
from weft.groups.plan import GroupedPlan, contract_pairs
from weft.planner.validity import default_precision
from weft.plans.keywords import read_options


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
        operands = read_pairs(pairs)
        if not keywords and accumulate_into is False and default_precision() == "ieee":
            products = at_once(equation, operands)
            if products is not None:
                return products
        options, out, notation = read_options("grouped", keywords), keywords.get("out"), read_notation(equation)
        if not operands:
            return []
        if any_autocast():
            operands = cast_by_autocast(operands, keywords.get("precision"))
        found = contract_pairs(notation, operands, options, out, check_added(accumulate_into, out))
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
        if getattr(a, "dtype", None) == getattr(b, "dtype", None):  # else they are refused
            keywords = with_autocast(keywords, a, b, keywords.get("out"))
        options, out = read_options("plan_grouped", keywords), keywords.get("out")
        return GroupedPlan(read_notation(equation), operands, options, out, accumulate_into)
