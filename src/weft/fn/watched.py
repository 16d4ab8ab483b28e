"""Functions that something kept is made of, a plan say: what they compute may change while it is kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from weft.base.bounded_cache import BoundedCache
from weft.fn.fingerprint import fingerprints

Traced = TypeVar("Traced", bound=Hashable)
_REMEMBERED = 64


class Watched(Generic[Traced]):
    """`now()` is what `trace` makes of the functions as they are, found again where they are known to be as before."""

    def __init__(self, functions: tuple[Callable[..., Any] | None, ...], trace: Callable[[], Traced]) -> None:
        self._functions, self._trace = functions, trace
        self._known = BoundedCache(_REMEMBERED)
        self._latest: tuple[Hashable, Traced] | None = None  # mostly they are as they were
        self._last: Traced | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Watched, (self._functions, self._trace)

    def changed(self) -> bool:
        """Whether that is something else than when this was last asked; True at first."""
        last, self._last = self._last, self.now()
        return self._last != last

    def now(self) -> Traced:
        prints, latest = fingerprints(self._functions), self._latest
        if latest is not None and latest[0] == prints:
            return latest[1]
        if prints is None:
            return self._trace()
        found: Traced | None = self._known.get(prints)
        if found is None:
            found = self._trace()
            self._known.put(prints, found)
        self._latest = prints, found
        return found
