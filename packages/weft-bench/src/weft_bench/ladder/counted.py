"""Counters of a rung beside those that a source printed of the same kernel, in the source's metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weft_bench.ladder.record import Step
from weft_bench.profiling.counters import SCHEDULERS, CounterSet


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of the dense thesis, and how it follows from the counters of a profile; None where none says it."""

    name: str
    unit: str
    key: str  # in `weft_bench.dense_thesis.published_counters`
    ours: Callable[[CounterSet], float | None] = lambda counters: None
    factor: float = 1.0  # from the thesis's unit to this one

    def of(self, counters: CounterSet | None) -> str:
        """The value that a profile counted, with its unit; empty where there is none."""
        return self._text(None if counters is None else self.ours(counters))

    def published(self, known: Mapping[str, float]) -> str:
        """The value that the source printed, with its unit; empty where there is none."""
        return self._text(self.factor * known[self.key] if self.key in known else None)

    def _text(self, value: float | None) -> str:
        return "" if value is None else f"{value:.4g} {self.unit}".strip()


def _rate(key: str) -> Callable[[CounterSet], float | None]:
    def rate(counters: CounterSet) -> float | None:
        moved, seconds = counters.get(key), counters.get("seconds")
        return moved / seconds / 1e9 if moved is not None and seconds else None

    return rate


def _issued(counters: CounterSet) -> float | None:
    busy = counters.get("K9")
    return None if busy is None else SCHEDULERS * busy / 100


def _turns(key: str) -> Callable[[CounterSet], float | None]:
    def turns(counters: CounterSet) -> float | None:
        taken, asked = counters.get(f"{key}_turns"), counters.get(key)
        return taken / asked if taken is not None and asked else None

    return turns


def _tenths(key: str) -> Callable[[CounterSet], float | None]:
    def tenths(counters: CounterSet) -> float | None:
        share = counters.get(key)
        return None if share is None else share / 10

    return tenths


#: Those that a record of today has.
SHARED = (
    Metric("lanes active", "%", "lanes active %", lambda counters: counters.get("K10")),
    Metric("warps active", "%", "warps active of 1", lambda counters: counters.get("K6"), 100.0),
    Metric("issued a cycle", "", "issued instructions a cycle", _issued),
    Metric("DRAM reads", "GB/s", "DRAM reads GB/s", _rate("dram_read")),
    Metric("DRAM writes", "GB/s", "DRAM writes GB/s", _rate("dram_write")),
)
METRICS = (
    *SHARED,
    Metric("instructions a warp", "", "instructions a warp", lambda counters: counters.get("inst_warp")),
    Metric("global loads", "GB/s", "global loads GB/s", _rate("global_ld")),
    Metric("global stores", "GB/s", "global stores GB/s", _rate("global_st")),
    Metric("SM loads: transactions a request", "", "SM loads: transactions a request", _turns("shared_ld")),
    Metric("SM stores: transactions a request", "", "SM stores: transactions a request", _turns("shared_st")),
    Metric("SM utilization, of 10", "", "SM utilization of 10", _tenths("shared_busy")),
)


def counted_bytes(step: Step) -> float | None:
    """Bytes that all launches of a rung moved between memory and the chip; None where they were not counted."""
    moved = [CounterSet.from_dict(each).dram_bytes for each in step.profile.get("counters", ())]
    known = [each for each in moved if each is not None]
    return sum(known) if known and len(known) == len(moved) else None


def longest(step: Step) -> CounterSet | None:
    """The counters of the launch of a rung that took longest; None where none were read."""
    read = [CounterSet.from_dict(each) for each in step.profile.get("counters", ())]
    return max(read, key=lambda each: each.get("seconds") or 0.0, default=None)
