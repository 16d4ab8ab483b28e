"""Sizes of memory as people write them."""

from __future__ import annotations

import math
import re
from typing import Any

from weft.errors import ArgumentError

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)([kmgt]i?|)(?:b|bytes?|)")


def read_limit(limit: Any) -> int | None:
    """Bytes: a number, or text such as "8GB", "1.5 GiB" or "64 bytes"; None where there is no limit.

    k, M, G and T are powers of 1000, Ki, Mi, Gi and Ti of 1024; upper and lower case are alike. `ArgumentError` for
    anything else.
    """
    if limit is None:
        return None
    if isinstance(limit, str):
        return _read_text(limit)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit < math.inf:
        raise ArgumentError(f"memory_limit={limit!r} is no number of bytes")
    return int(limit)


def _read_text(limit: str) -> int:
    found = _SIZE.fullmatch(limit.replace(" ", "").lower())
    size = float(found[1]) * _PREFIXES[found[2]] if found is not None else math.inf
    if size == math.inf:
        raise ArgumentError(
            f"memory_limit={limit!r} is no size: a number of bytes, or text such as '8GB', '1.5 GiB', '500 KiB', "
            "'64 bytes', '1e9' (kB, MB, GB, TB by 1000; KiB, MiB, GiB, TiB by 1024)"
        )
    return int(size)
