"""One case of a suite, and the group that it is averaged in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A case within a suite. `group` is averaged apart; cases with one `base` differ in functions alone."""

    case: Any  # Case; PermuteCase or NetworkCase as the suite's kind says
    group: str
    base: str
    scaled: bool = False
