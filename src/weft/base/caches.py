"""Values that are kept in memory: of an object, computed once, and of many keys, as long as there is room.

`cached_property` is that of `functools` without its lock, as of Python 3.12: before, all objects of a class shared one.
A process that was forked while another thread held it waited for ever. Two threads may compute one value; the last is
kept.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

from weft.base.forks import free_in_child

__all__ = ["BoundedCache", "cached_property"]


if sys.version_info < (3, 12):
    from contextlib import nullcontext

    T = TypeVar("T")
    _locked = cached_property

    class cached_property(_locked[T]):  # type: ignore[no-redef]
        """A property that is computed once for each object."""

        def __init__(self, func: Callable[[Any], T]) -> None:
            super().__init__(func)
            self.lock = nullcontext()


class BoundedCache:
    """At most `size` entries, safe to use from several threads; what was longest unused is forgotten."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = free_in_child(Lock())

    def get(self, key: Hashable) -> Any:
        """The value, or None."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def take(self, key: Hashable) -> Any:
        """The value, which is no longer here, or None: for values that one caller at a time may use."""
        with self._lock:
            return self._entries.pop(key, None)

    def keys(self) -> list[Any]:
        """All keys, the longest unused first."""
        with self._lock:
            return list(self._entries)

    def values(self) -> list[Any]:
        """All values, the longest unused first."""
        with self._lock:
            return list(self._entries.values())

    def made(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of a key, made where there is none."""
        value = self.get(key)
        if value is None:
            self.put(key, value := make())
        return value

    def put(self, key: Hashable, value: Any) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
