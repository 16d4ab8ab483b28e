"""Which launch a group gets, by device and types."""

from __future__ import annotations

from typing import Any

import torch

from weft.base.kept import is_capturing
from weft.errors import UnsupportedError
from weft.fn.pointwise import TritonFunction
from weft.groups.at_once import product_of
from weft.planner.registry import need_triton
from weft.planner.request import Request
from weft.spec.dtypes import FP8, dtype_name
from weft.spec.group import GroupTable

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
