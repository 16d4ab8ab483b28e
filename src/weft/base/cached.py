"""`functools.cached_property` without its lock, as of Python 3.12: before, all objects of a class shared one.

A process that was forked while another thread held it waited for ever. Two threads may compute one value; the last is
kept.
"""

from __future__ import annotations

import sys
from functools import cached_property

__all__ = ["cached_property"]

if sys.version_info < (3, 12):
    from collections.abc import Callable
    from contextlib import nullcontext
    from typing import Any, TypeVar

    T = TypeVar("T")
    _locked = cached_property

    class cached_property(_locked[T]):  # type: ignore[no-redef]
        """A property that is computed once for each object."""

        def __init__(self, func: Callable[[Any], T]) -> None:
            super().__init__(func)
            self.lock = nullcontext()
