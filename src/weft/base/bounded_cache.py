"""A bounded mapping in memory, safe to use from several threads, that forgets what was longest unused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any

from weft.base.forks import free_in_child


class BoundedCache:
    """Holds at most `size` entries."""

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

    def put(self, key: Hashable, value: Any) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
