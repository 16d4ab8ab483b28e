"""Host code that complex kernels share: factors in two parts, and the operation, with functions of parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from weft.errors import FunctionError, UnsupportedError
from weft.fn import Pointwise
from weft.gpu.common.aux_operands import AuxParams, kind_of, real
from weft.gpu.common.constants import TRITON_TYPES
from weft.gpu.common.launch import KernelLaunch, type_reason, words_of
from weft.planner.schedule import Scalar, Target
from weft.spec import Layout


class ComplexKernelLaunch(KernelLaunch):
    """A kernel that takes complex factors, each in two parts."""

    def _factors(self, alpha: Scalar, beta: Scalar) -> tuple[int, ...]:
        return *words_of(alpha.real, alpha.imag), *words_of(beta.real, beta.imag)


def function_reason(
    functions: Sequence[Pointwise | None], layouts: Sequence[Layout | None], target: Target
) -> str | None:
    """Why a kernel cannot apply functions to parts, or take elements of tensors; None where it can."""
    for function in functions:
        try:
            _ = function and function.split_complex.source
        except (UnsupportedError, FunctionError) as error:
            return str(error)
    return next(filter(None, (type_reason(layout.dtype, target) for layout in layouts if layout is not None)), None)


class ComplexOperation(NamedTuple):
    """Operation of a kernel on the parts of complex values; functions are None where there is none."""

    fn: Any  # of the source that moves
    c_fn: Any
    epilogue: Any
    compute: Any  # real type of products, or of what `fn` sees
    scale: Any  # of what alpha and beta are applied in; None where they are not
    result: Any
    precision: str
    aux: AuxParams
    a_kind: str  # how elements are accessed, see `aux_operands.KINDS`
    b_kind: str
    c_kind: str
    d_kind: str
    conjugate: tuple[bool, bool]  # A, B
    of_reals: tuple[bool, ...]  # whether the functions see real values
    to_complex: tuple[bool, ...]  # whether they yield complex ones
    parts: tuple[tuple[int, int], ...]  # of each result of the epilogue


def complex_operation(
    layouts: Sequence[Layout | None], functions: Sequence[Pointwise | None], conjugate: tuple[bool, bool],
    compute: torch.dtype, scale: torch.dtype | None, result: torch.dtype, aux: AuxParams, precision: str = "",
) -> ComplexOperation:  # fmt: skip
    """The operation on tensors A, B, C and D by `fn`, `c_fn` and `epilogue`."""
    fn, c_fn, epilogue = (function and function.split_complex for function in functions)
    types = (TRITON_TYPES[real(dtype)] if dtype is not None else None for dtype in (compute, scale, result))
    real_type, scale_type, result_type = types
    a_kind, b_kind, c_kind, d_kind = map(kind_of, layouts)
    of_reals = tuple(function is not None and not function.dtypes[0].is_complex for function in functions)
    parts = [parts_of(function) for function in functions]
    return ComplexOperation(
        fn, c_fn, epilogue, real_type, scale_type, result_type, precision, aux, a_kind, b_kind, c_kind, d_kind,
        conjugate, of_reals, tuple(len(each) == 1 and each[0][1] > 0 for each in parts), parts[2],
    )  # fmt: skip


def parts_of(function: Pointwise | None) -> tuple[tuple[int, int], ...]:
    """Where the parts of each result stand among all that the function of parts yields; -1: it has no second."""
    if function is None:
        return ()
    results = function.result if isinstance(function.result, tuple) else (function.result,)
    found, at = [], 0
    for result in results:
        found.append((at, at + 1 if result.is_complex else -1))
        at += 2 if result.is_complex else 1
    return tuple(found)
