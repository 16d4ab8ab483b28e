"""Functions that compiled code alone calls: numba leaves out what Python and C would call, a fifth of its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.extending import overload


def inner_with(**options: Any) -> Any:
    """The decorator of such functions, with more options of numba's."""
    return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", **options)


inner = inner_with()
#: Of functions that are called at one place: as part of their caller they are optimised and assembled once, not twice.
inline = inner_with(inline="always")


def by_type(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose code depends on the types of its arguments: for these `implementation` returns one to inline."""

    def of_compiled_code(*arguments: Any) -> Any:
        raise NotImplementedError("compiled code alone")

    overload(of_compiled_code, strict=False)(implementation)
    return of_compiled_code
