"""Host code that complex kernels share: factors in two parts, and functions of parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.errors import FunctionError, UnsupportedError
from weft.fn import Pointwise
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


def takes_reals(function: Pointwise | None) -> bool:
    """Whether there is a function, and the value that it takes is real."""
    return function is not None and not function.dtypes[0].is_complex


def yields_complex(function: Pointwise | None) -> bool:
    return function is not None and isinstance(function.result, torch.dtype) and function.result.is_complex


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
