"""A sign for ranks that compute for long without a word: one of them has stopped, or ended."""

from __future__ import annotations

import time

from weft.distributed.group.ranks import Ranks
from weft.errors import RankError

LOOK = 0.5  # seconds between looks at the sign: each asks the store
_counts: dict[str, int] = {}  # of signs by group: every rank of a group counts alike


class StopSign:
    """One sign for one call on all ranks; every rank makes it at the same place."""

    def __init__(self, ranks: Ranks) -> None:
        ranks.hosts()  # who they are is known from here on: to look whether they run asks nobody
        name = str(ranks.group.group_name)
        _counts[name] = _counts.get(name, -1) + 1
        self._ranks, self._key = ranks, f"stop/{_counts[name]}"
        self._looked = time.monotonic()

    def put_up(self) -> None:
        """Let the other ranks stop at their next look."""
        self._ranks._store.set(self._key, str(self._ranks.rank))

    def seen(self) -> bool:
        """Whether a rank has put it up, looked at now and then; `RankError` where one has ended."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return False
        self._looked = now
        if ended := self._ranks._ended(range(self._ranks.size)):
            ranks = "rank " + ", ".join(map(str, ended)) if len(ended) == 1 else "ranks " + ", ".join(map(str, ended))
            raise RankError(f"{ranks} of {self._ranks.size} ended amid the slices")
        return bool(self._ranks._store.check([self._key]))
