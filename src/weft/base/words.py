"""The nearest right word for a wrong one, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(typed: str, words: Iterable[str]) -> str:
    """``": did you mean 'float16'?"``, or nothing where no word is near."""
    found = difflib.get_close_matches(typed.lower(), list(words), n=1, cutoff=0.6)
    return f": did you mean {found[0]!r}?" if found else ""
