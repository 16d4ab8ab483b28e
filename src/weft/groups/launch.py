"""The ways to compute a group: a launch by device and types; a loop of torch's own products; each pair by itself.

The loop is for plain products of a few matrices on a CPU, where it takes less than a plan's call does: floating types
whose sums are made as weft makes them, and no keywords. Whatever torch refuses goes to the plan, whose errors name the
pair. What any call of `contract` takes, torch's modes included, is contracted one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from weft.api.entry import contraction
from weft.base.arrays import any_autocast, as_result, dispatch_modes, is_transforming
from weft.base.kept import is_capturing
from weft.errors import ArgumentError, ShapeError, UnsupportedError, WeftError
from weft.fn.pointwise import TritonFunction
from weft.groups.operands import as_operands
from weft.machine.exactness import shortened
from weft.planner.options import Options
from weft.planner.registry import need_triton
from weft.planner.request import Request
from weft.spec import Notation
from weft.spec.arguments import read_flag
from weft.spec.dtypes import FP8, dtype_name
from weft.spec.group import GroupTable
from weft.spec.notation import parse

#: Products of a pair, for each thread, from which on a CPU's library, called for each pair, is done sooner than the
#: kernel for groups, which shares out pairs.
LARGE = 5e5


def check_single(request: Request) -> None:
    """`UnsupportedError` for an epilogue that makes several results, for which groups have no places."""
    if request.outputs is not None:
        raise UnsupportedError("the epilogue of a group, of blocks or of lists returns one value, no tuple")


def launch_of(table: GroupTable, request: Request, b_dtype: torch.dtype, add: bool) -> Any | None:
    """A launch of the whole group; None where no kernel takes it and the pairs are contracted one by one.

    So they are within the capture of a CUDA graph, whose tables would be there when it is replayed. Raises
    `UnsupportedError` on a GPU for what no kernel takes, as that would be a launch each.
    """
    arithmetic, functions = request.arithmetic, request.functions
    types, hooks = (request.a.dtype, b_dtype, request.d_dtype), (functions.a, functions.b, functions.epilogue)
    if request.backend == "triton":
        need_triton("a group runs on a GPU")
        from weft.gpu.common.launch import type_reason
        from weft.gpu.grouped.launch import GroupLaunch

        for dtype in (*types, arithmetic.product, arithmetic.accumulate):
            reason = type_reason(dtype, request.target)
            if reason is None and arithmetic.product in FP8:
                reason = f"products in {dtype_name(arithmetic.product)} have no kernel for groups: leave precision out"
            if reason is not None:
                raise UnsupportedError(f"{reason}; else contract the pairs one by one")
        if is_capturing(request.device):
            return None
        return GroupLaunch(_kernel(table, request, b_dtype, add), table, request.target)
    if request.backend == "cpu" and not any(isinstance(function, TritonFunction) for function in hooks):
        from weft.cpu.grouped.launch import CpuGroupLaunch, serves

        results = [function.result for function in hooks if function is not None]
        if serves((*types, arithmetic.product, arithmetic.accumulate, *results)):  # type: ignore[arg-type]
            return CpuGroupLaunch(types[0], hooks, add, table)
    return None


def is_for_library(table: GroupTable, request: Request, b_dtype: torch.dtype, add: bool) -> bool:
    """Whether pairs are contracted one by one, as libraries of products are done with them sooner."""
    if request.backend == "cpu":
        types = {request.a.dtype, b_dtype, request.d_dtype, request.arithmetic.product, request.arithmetic.accumulate}
        plain = len(types) == 1 and not any(request.raw) and product_of(table.form.notation) is not None
        return plain and bool(table.sizes.astype(float).prod(1).mean() >= LARGE * request.target.processors)
    if request.backend != "triton" or request.target.kind != "cuda":
        return False
    from weft.gpu.grouped.launch import loop_is_faster

    return loop_is_faster(_kernel(table, request, b_dtype, add), table, request.target)


def _kernel(table: GroupTable, request: Request, b_dtype: torch.dtype, add: bool) -> Any:
    """The kernel for a group, but for what its strides have in common."""
    from weft.gpu.grouped.launch import GroupKernel

    functions, types = request.functions, (request.a.dtype, b_dtype, request.d_dtype)
    hooks = (functions.a, functions.b, functions.epilogue)
    return GroupKernel(table.form.counts, request.arithmetic, types, hooks, add, table.has_factors)


MOST = 64  # pairs of a group that a loop takes
_ROUNDED = frozenset((torch.float32, torch.complex64))  # factors that torch may round; those of a plan never are
_TYPES = _ROUNDED | {torch.float64, torch.complex128}
_KINDS = frozenset((Tensor, torch.nn.Parameter))
_DTYPE, _LAYOUT, _ON_CPU = attrgetter("dtype"), attrgetter("layout"), attrgetter("is_cpu")
_EQUATIONS = frozenset((str, Notation))
_STRIDED = {torch.strided}


def at_once(equation: Any, operands: Sequence[Any], most: int = MOST) -> list[Tensor] | None:
    """The results of a group, a loop; None for what is for a plan."""
    known = type(equation) in _EQUATIONS and 0 < len(operands) <= 2 * most
    if not known or (product := product_of(equation)) is None:
        return None
    dtype = operands[0].dtype if set(map(type, operands)) <= _KINDS else None
    if dtype not in _TYPES or set(map(_LAYOUT, operands)) != _STRIDED or not all(map(_ON_CPU, operands)):
        return None  # torch.mm of a tensor that holds numbers and one of meta returns memory as it is
    if dispatch_modes() or is_transforming() or any_autocast() or (dtype in _ROUNDED and shortened()):
        return None
    try:
        products = [*map(product, operands[::2], operands[1::2])]
    except (RuntimeError, IndexError, TypeError):
        return None
    return products if set(map(_DTYPE, products)) == {dtype} else None


@lru_cache(maxsize=256)
def product_of(equation: str | Notation) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The function that contracts a pair of matrices; None for another equation."""
    try:
        notation = parse(equation) if isinstance(equation, str) else equation
    except WeftError:
        return None
    terms = (*notation.inputs, notation.output)
    if len(terms) != 3 or any(len(term) != 2 or Ellipsis in term for term in terms):
        return None
    a, b, output = terms
    shared = set(a) & set(b)
    if len({*a, *b, *output}) != 3 or len(shared) != 1 or shared & set(output):
        return None
    k = next(iter(shared))
    turn_a, turn_b = a.index(k) == 0, b.index(k) == 1  # to [m, k] and [k, n]
    turned = output[0] in b
    if not (turn_a or turn_b or turned):
        return torch.mm

    def product(x: Tensor, y: Tensor) -> Tensor:
        left, right = x.t() if turn_a else x, y.t() if turn_b else y
        return torch.mm(right.t(), left.t()) if turned else torch.mm(left, right)

    return product


def one_by_one(
    notation: Notation, operands: Sequence[Any], options: Options, out: Sequence[Any] | None = None,
    add: bool = False,
) -> list[Any]:  # fmt: skip
    """The results for operands a, b of each pair in turn; with `add` each is added to its place of `out`."""
    tensors = as_operands(operands)
    a, b = tensors[::2], tensors[1::2]
    places = [None] * len(a) if out is None else [as_result(each) for each in check_places(out, len(a))]
    terms = (*notation.inputs, notation.output)
    return [
        contraction(terms, x, y, options, place if add else None, out=place)
        for x, y, place in zip(a, b, places, strict=True)
    ]


def check_places(out: Any, count: int) -> Sequence[Any]:
    """`out` of a group, which has a place for each pair."""
    if not isinstance(out, (list, tuple)) or len(out) != count:
        given = len(out) if isinstance(out, (list, tuple)) else type(out).__name__
        raise ShapeError(f"out is a list of a place for each pair: {count}, not {given}")
    return out


def check_added(accumulate_into: bool, out: Any) -> bool:
    """Whether results are added to what `out` holds."""
    if read_flag("accumulate_into", accumulate_into) and out is None:
        raise ArgumentError("accumulate_into adds to what `out` holds: pass out")
    return accumulate_into
