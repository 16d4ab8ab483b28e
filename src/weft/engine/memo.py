"""Plans that are kept: every such cache, and the stamp that each of its keys carries.

Plans depend on what no call says: the schedules that tuning stored, the families whose self-test failed, the number of
torch's threads, the default precision. `weft.planner.validity.call_state` has them. A `Memo` writes it into each key
itself. An entry of an earlier generation is never found again, and goes when another is kept.

What is made for the structure of kernels alone, whatever the plan, is no plan: `weft.base.caches` serves there.

Whoever keeps a call asks `keeps` before: with `WEFT_REPLAY=0` each call takes the full path, as if it were the first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple
from weakref import WeakSet

from weft.base.caches import BoundedCache
from weft.base.interpreter import turns_off
from weft.planner.validity import call_state, generation

#: The tables of plans and of known calls that are in use.
TABLES: WeakSet[Any] = WeakSet()


def keeps() -> bool:
    """Whether calls are kept, to be made again by a shorter way."""
    return not turns_off(os.environ.get("WEFT_REPLAY"))


class MemoPlace(NamedTuple):
    """A key, with the state that all plans depend on."""

    state: tuple[int, int, str]
    key: Hashable


class Memo:
    """At most `size` values by key and `call_state`, those of the present generation; the longest unused goes first."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self._size = size
        self._entries = BoundedCache(size)
        self._changes = generation()[0]
        TABLES.add(self)

    def place(self, key: Hashable) -> MemoPlace:
        """Where the value of a key belongs. Made before the value is, so that one which is outdated meanwhile is lost.

        Raises `TypeError` for a key without a hash.
        """
        found = MemoPlace(call_state(), key)
        hash(found)
        return found

    def get(self, place: MemoPlace) -> Any:
        """The value, or None."""
        return self._entries.get(place)

    def put(self, place: MemoPlace, value: Any) -> None:
        if not keeps():
            return
        changes = place.state[0]
        if changes > self._changes:
            self._entries, self._changes = BoundedCache(self._size), changes
        if changes == self._changes:
            self._entries.put(place, value)

    def made(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of a key, made where there is none."""
        place = self.place(key)
        value = self.get(place)
        if value is None:
            value = make()
            self.put(place, value)
        return value
