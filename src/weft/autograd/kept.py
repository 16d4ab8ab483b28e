"""Values derived of an algebra, kept while the algebra's functions compute what they did."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch

from weft.algebra import NAMED, Algebra
from weft.fn import fingerprint

_Made = TypeVar("_Made")


def kept_for_algebra(make: Callable[..., _Made]) -> Callable[..., _Made]:
    """`make`, whose first arguments are an algebra and the type of its values, called once for the same."""

    @lru_cache(maxsize=256)
    def known(_now: Hashable, *arguments: Any) -> _Made:
        return make(*arguments)

    @wraps(make)
    def kept(algebra: Algebra, dtype: torch.dtype, *others: Any) -> _Made:
        return known(_now(algebra, dtype), algebra, dtype, *others)

    return kept


def _now(algebra: Algebra, dtype: torch.dtype) -> Hashable:
    """A key of what an algebra computes as its functions are now; no two are equal where that cannot be known."""
    if algebra is NAMED.get(algebra.name):  # one of weft's own, which stays as it is
        return None
    vjp = algebra.vjp
    return algebra.traced(dtype), None if vjp is None else fingerprint(vjp) or object()
