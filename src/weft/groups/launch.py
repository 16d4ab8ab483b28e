"""Which launch a group gets, by device and types."""

from __future__ import annotations

from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.fn.pointwise import TritonFunction
from weft.planner.request import Request
from weft.spec.dtypes import dtype_name
from weft.spec.group import GroupTable


def launch_of(table: GroupTable, request: Request, b_dtype: torch.dtype, add: bool) -> Any | None:
    """A launch of the whole group; None where no kernel takes it and the pairs are contracted one by one.

    Raises `UnsupportedError` on a GPU, where that would take a launch each.
    """
    arithmetic, functions = request.arithmetic, request.functions
    types, hooks = (request.a.dtype, b_dtype, request.d_dtype), (functions.a, functions.b, functions.epilogue)
    if request.backend == "triton":
        from weft.gpu.common.launch import type_reason
        from weft.gpu.grouped.launch import GroupKernel, GroupLaunch

        for dtype in (*types, arithmetic.accumulate):
            reason = type_reason(dtype, request.target)
            if reason is not None or not (dtype.is_floating_point and dtype.itemsize > 1):
                raise UnsupportedError(f"no kernel for groups takes {dtype_name(dtype)}: contract the pairs one by one")
        if any(function is not None and function.is_complex for function in hooks):
            raise UnsupportedError("no kernel for groups takes functions with complex values in them")
        return GroupLaunch(GroupKernel(table.form.counts, arithmetic, types, hooks, add), table, request.target)
    if request.backend == "cpu" and not any(isinstance(function, TritonFunction) for function in hooks):
        from weft.cpu.grouped.launch import GroupLaunch as HostLaunch
        from weft.cpu.grouped.launch import serves

        results = [function.result for function in hooks if function is not None]
        if serves((*types, arithmetic.product, arithmetic.accumulate, *results)):  # type: ignore[arg-type]
            return HostLaunch(types[0], hooks, add, table)
    return None


