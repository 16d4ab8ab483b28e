"""The candidates of a tuning and what came of them: plain values that print and become JSON."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from weft.errors import WeftError
from weft.machine.shortage import says_shortage
from weft.machine.store import Store, number
from weft.planner import tuned as tuned_schedules
from weft.planner.keys import NotSerializable, digest, of_schedule, serialize_schedule
from weft.planner.planner import Choice, choose_among
from weft.planner.registry import beside, imported
from weft.planner.schedule import Ranked, Schedule

Verdict = Literal["waiting", "measured", "slow", "wrong", "refused"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a tuning tries.

    `leaders` of the cost model's best, `each` of every family's best, and `samples` of the rest, drawn at random by
    `seed`. `budget`: seconds from the first compiled candidate on, after which no further one is begun. `jobs`:
    compilers at once, by default one for each core but one. `finals`: candidates that are measured in full alongside
    the model's choice, `last` seconds of calls in each turn. `slow`: a candidate whose first run takes so many times as
    long as the best one's is not measured.
    """

    leaders: int = 12
    each: int = 1
    samples: int = 12
    seed: int = 0
    budget: float = 30.0
    jobs: int | None = None
    finals: int = 3
    last: float = 0.06
    slow: float = 3.0


#: For one of many contractions that share a budget: few candidates, and short last rounds.
FEW = Effort(leaders=3, samples=0, finals=2, last=0.02)


def with_others(choice: Choice, workspace_limit: int | None, also: Sequence[Ranked] = ()) -> Choice:
    """The choice with schedules behind its own that planning does not compare: a GPU's library tier, and `also`."""
    description, target = choice.description, choice.target
    found: dict[Ranked, None] = dict.fromkeys(choice.ranked)
    for name in beside(description, target):
        with suppress(WeftError):
            found[choose_among([imported(name)], description, choice.backend, target, workspace_limit).best] = None
    return replace(choice, ranked=tuple(dict.fromkeys((*found, *also))))


@dataclass(slots=True)
class Candidate:
    """One candidate. `seconds` is the median of a quick measurement, `samples` are those of the last round."""

    rank: Ranked
    verdict: Verdict = "waiting"
    reason: str = ""
    seconds: float | None = None
    samples: list[float] = field(default_factory=list)

    @property
    def schedule(self) -> Schedule:
        return self.rank.schedule

    @property
    def best_known(self) -> float:
        """Seconds as well as they are known; infinite where nothing is."""
        if self.samples:
            return median(self.samples)
        return self.seconds if self.seconds is not None else float("inf")

    def document(self) -> dict[str, Any]:
        """The candidate as JSON values."""
        return {
            "schedule": str(self.schedule),
            "family": self.schedule.family,
            "workspace_bytes": self.schedule.workspace_bytes,
            "predicted": self.rank.seconds,
            "verdict": self.verdict,
            "reason": self.reason,
            "seconds": self.best_known if self.best_known != float("inf") else None,
            "samples": [float(f"{sample:.6g}") for sample in self.samples],
        }


@dataclass(slots=True)
class Outcome:
    """A tuning that has ended. The first of `candidates` is the model's choice."""

    choice: Choice  # with the fastest first
    candidates: list[Candidate]
    fastest: Candidate
    seconds: float  # spent on it
    legal: int  # candidates there were to choose from

    @property
    def model(self) -> Candidate:
        return next(each for each in self.candidates if each.verdict == "measured")

    @property
    def ratio(self) -> float:
        """The fastest one's time over that of the model's choice: 1 where the model was right."""
        return self.fastest.best_known / self.model.best_known

    def document(self) -> dict[str, Any]:
        """The tuning as JSON values: the model's choice, the fastest, why rules excluded others, every candidate."""
        return {
            "model": self.model.document(),
            "winner": self.fastest.document(),
            "ratio": self.ratio,
            "legal": self.legal,
            "tried": sum(each.verdict in ("measured", "slow") for each in self.candidates),
            "spent": self.seconds,
            "excluded": list(self.choice.excluded),
            "trials": [each.document() for each in self.candidates],
        }


def pick_candidates(ranked: Sequence[Ranked], effort: Effort, also: Sequence[Ranked] = ()) -> list[Candidate]:
    """The model's choice, those that come `also`, the model's best and each family's in its order, and a sample of the
    rest, which is the same for the same seed."""
    seen: Counter[str] = Counter()
    leaders: list[Ranked] = []
    rest: list[Ranked] = []
    for at, rank in enumerate(ranked):
        name = rank.family.__name__
        seen[name] += 1
        first = at < max(1, effort.leaders) or seen[name] <= effort.each
        (leaders if first else rest).append(rank)
    drawn = random.Random(effort.seed).sample(rest, min(effort.samples, len(rest)))
    return [Candidate(rank) for rank in dict.fromkeys((*leaders[:1], *also, *leaders, *drawn))]


ROOM = "tuning"  # of the store
_KEPT = ("measured", "slow", "wrong", "refused")


class Journal:
    """The results of an unfinished tuning, on disk: after Ctrl-C or a crash the next one goes on from there.

    A candidate is named in the journal before it is first run. If the process does not come back from that (an illegal
    access takes the device along), the next tuning leaves the candidate out. Without a key (see
    `weft.planner.tuned.key`) it keeps nothing.
    """

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
