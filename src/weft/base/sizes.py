"""Sizes of memory as people write them."""

from __future__ import annotations

from typing import Any

from weft.errors import ArgumentError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def read_limit(limit: Any) -> int | None:
    """Bytes: a number, or text such as "8GB" or "512 MiB". `ArgumentError` for anything else."""
    if limit is None:
        return None
    if isinstance(limit, str):
        text = limit.replace(" ", "").lower().removesuffix("b")
        digits = text.rstrip("kmgti")
        try:
            return int(float(digits) * _UNITS[text[len(digits) :]])
        except (KeyError, ValueError):
            raise ArgumentError(f"memory_limit={limit!r} is no size: a number of bytes, or '8GB', '512 MiB'") from None
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit < 0:
        raise ArgumentError(f"memory_limit={limit!r} is no number of bytes")
    return int(limit)
