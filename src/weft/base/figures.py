"""Text for people: numbers and words in messages, and what a notebook shows. Needs no torch."""

from __future__ import annotations

import difflib
import hashlib
import html
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def nearest(typed: str, words: Iterable[str]) -> str:
    """``": did you mean 'float16'?"``, or nothing where no word is near."""
    found = difflib.get_close_matches(typed.lower(), list(words), n=1, cutoff=0.6)
    return f": did you mean {found[0]!r}?" if found else ""


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


def dtype_name(dtype: torch.dtype) -> str:
    """A type's name without torch's."""
    return str(dtype).removeprefix("torch.")


# -- notebooks ---------------------------------------------------------------------------------------------------------

_LEFT = ' style="text-align:left"'


def table(rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """HTML of a table; the first cell of each row is its head. Everything is escaped."""
    top = "".join(f"<th{_LEFT}>{html.escape(head)}</th>" for head in heads)
    lines = [f"<thead><tr>{top}</tr></thead>"] if heads else []
    for first, *rest in rows:
        cells = "".join(f"<td{_LEFT}>{html.escape(str(cell))}</td>" for cell in rest)
        lines.append(f'<tr><th{_LEFT} scope="row">{html.escape(str(first))}</th>{cells}</tr>')
    return f"<table>{''.join(lines)}</table>"


def folded(title: str, text: str) -> str:
    """Text of a terminal, its spaces kept, shown by a click on its title."""
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"
