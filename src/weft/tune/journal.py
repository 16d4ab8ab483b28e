"""The results of an unfinished tuning, on disk: after Ctrl-C or a crash the next one goes on from there.

A candidate is named in the journal before it is first run. If the process does not come back from that (an illegal
access takes the device along), the next tuning leaves the candidate out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from weft.machine.shortage import says_shortage
from weft.machine.store import Store, number
from weft.planner import tuned as tuned_schedules
from weft.planner.code_digest import of_schedule
from weft.planner.planner import Choice
from weft.planner.serialization import NotSerializable, digest, serialize_schedule
from weft.tune.candidates import Candidate

ROOM = "tuning"  # of the store
_KEPT = ("measured", "slow", "wrong", "refused")


class Journal:
    """The journal of one description's tuning. Without a key (see `weft.planner.tuned.key`) it keeps nothing."""

    def __init__(self, choice: Choice, workspace_limit: int | None, again: bool = False) -> None:
        self._description = choice.description
        key = tuned_schedules.key(choice.description, choice.backend, choice.target, workspace_limit)
        self._key = key | {"what": "tuning"} if key is not None else None
        self._store = Store(ROOM)
        if again:
            self.forget()

    def restore(self, candidates: Sequence[Candidate]) -> None:
        """Fill in what is known of these candidates."""
        entry = self._store.load(self._key) if self._key is not None else None
        if not isinstance(entry, dict):
            return
        known, running = entry.get("candidates"), entry.get("running")
        if _is_alive(entry.get("process")):
            running = None  # another tuning is at it
        for candidate in candidates:
            self._fill(candidate, known.get(self._digest(candidate)) if isinstance(known, dict) else None, running)

    def begin(self, candidates: Sequence[Candidate], candidate: Candidate) -> None:
        """Note all that is known, and that this candidate is about to be run for the first time."""
        self._write(candidates, self._digest(candidate))

    def save(self, candidates: Sequence[Candidate]) -> None:
        self._write(candidates, None)

    def forget(self) -> None:
        if self._key is not None:
            self._store.forget(self._key)

    def _fill(self, candidate: Candidate, known: Any, running: Any) -> None:
        digest = self._digest(candidate)
        if digest is not None and digest == running:
            candidate.verdict, candidate.reason = "refused", "an earlier tuning did not survive its first run"
        elif isinstance(known, dict) and known.get("verdict") in _KEPT:
            seconds = known.get("seconds")
            with suppress(ValueError):  # what is no time is measured anew
                candidate.seconds = None if known["verdict"] in ("wrong", "refused") else number(seconds)
                candidate.verdict, candidate.reason = known["verdict"], str(known.get("reason", ""))

    def _write(self, candidates: Sequence[Candidate], running: str | None) -> None:
        if self._key is None:
            return
        known = {
            digest: {"schedule": str(candidate.schedule), "verdict": candidate.verdict, "reason": candidate.reason,
                     "seconds": candidate.seconds}
            for candidate in candidates
            if _lasts(candidate) and (digest := self._digest(candidate)) is not None
        }  # fmt: skip
        self._store.save(self._key, {"candidates": known, "running": running, "process": os.getpid()})

    def _digest(self, candidate: Candidate) -> str | None:
        try:
            return digest([serialize_schedule(candidate.schedule, self._description), of_schedule(candidate.rank)])
        except NotSerializable:
            return None


def _lasts(candidate: Candidate) -> bool:
    """Whether another process would find the same: not where memory was short, or a disk full."""
    return candidate.verdict in _KEPT and not says_shortage(candidate.reason)


def _is_alive(process: Any) -> bool:
    """Whether another process of that number runs on this machine."""
    if not isinstance(process, int) or process <= 0 or process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
