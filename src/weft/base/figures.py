"""Figures as people read them: three digits and an SI prefix."""

from __future__ import annotations

import math

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


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.3g}"
