"""Numbers and words in messages: counts, sizes in bytes, durations, the nearest of several names."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Iterable
from typing import Any

from weft.errors import ArgumentError


def nearest(typed: str, words: Iterable[str]) -> str:
    """``": did you mean 'float16'?"``, or nothing where no word is near."""
    found = difflib.get_close_matches(typed.lower(), list(words), n=1, cutoff=0.6)
    return f": did you mean {found[0]!r}?" if found else ""


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


_LARGE = ("", "k", "M", "G", "T", "P", "E")
_SMALL = ("s", "ms", "us", "ns")


def si(value: float, unit: str) -> str:
    """``si(6.71e7, "B")`` is ``"67.1 MB"``; powers of 1000."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.3g} {unit}".rstrip()
    step = 0
    # 999.5 would round to 1000: it belongs to the next prefix.
    while abs(value) >= 999.5 and step < len(_LARGE) - 1:
        value, step = value / 1000, step + 1
    return f"{_digits(value)} {_LARGE[step]}{unit}".rstrip()


def duration(seconds: float) -> str:
    """``duration(2.34e-5)`` is ``"23.4 us"``: s, ms, us or ns."""
    if seconds == 0 or not math.isfinite(seconds):
        return f"{seconds:.3g} s"
    step = 0
    while abs(seconds) < 0.9995 and step < len(_SMALL) - 1:
        seconds, step = seconds * 1000, step + 1
    return f"{_digits(seconds)} {_SMALL[step]}"


def counted(number: int, what: str, several: str | None = None) -> str:
    """``counted(1, "slice")`` is ``"1 slice"``, of three ``"3 slices"``; `several` where an s is not all."""
    return f"{number} {what if number == 1 else several or f'{what}s'}"


def given(number: int) -> str:
    """``"1 is given"``, ``"2 are given"``."""
    return f"{number} {'is' if number == 1 else 'are'} given"


def share(part: float) -> str:
    """A ratio in per cent: ``share(0.892)`` is ``"89%"``."""
    return f"{100 * part:.0f}%" if math.isfinite(part) else "-"


def digest(value: Any, size: int = 8) -> str:
    """A digest of so many bytes of a value as text."""
    return hashlib.blake2b(repr(value).encode(), digest_size=size).hexdigest()


def shortened(text: str, most: int = 120, kept: int = 80) -> str:
    """Text that people can read where it is short; where it is not, its beginning, with a digest of all of it."""
    return text if len(text) <= most else f"{text[:kept]}... ({digest(text)})"


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.3g}"
