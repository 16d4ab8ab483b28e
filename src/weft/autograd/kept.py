"""What is derived of an algebra, kept while the algebra's functions compute what they did."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch

from weft.algebra import Algebra
from weft.fn import fingerprint

_Others = ParamSpec("_Others")
_Made = TypeVar("_Made")


def kept_for_algebra(
    make: Callable[Concatenate[Algebra, torch.dtype, _Others], _Made],
) -> Callable[Concatenate[Algebra, torch.dtype, _Others], _Made]:
    """`make`, whose first arguments are an algebra and the type of its values, asked once for the same."""

    @lru_cache(maxsize=256)
    def known(_now: Hashable, algebra: Algebra, dtype: torch.dtype, *others: Any) -> Any:
        return make(algebra, dtype, *others)

    @wraps(make)
    def kept(algebra: Algebra, dtype: torch.dtype, *others: _Others.args, **_named: _Others.kwargs) -> _Made:
        return cast(_Made, known(_now(algebra, dtype), algebra, dtype, *others))

    return kept


def _now(algebra: Algebra, dtype: torch.dtype) -> Hashable:
    """A key of what an algebra computes as its functions are now; no two are equal where that cannot be told."""
    vjp = algebra.vjp
    return algebra.traced(dtype), None if vjp is None else fingerprint(vjp) or object()
