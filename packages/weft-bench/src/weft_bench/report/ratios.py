"""Ratios of times between contenders, over cases, and their geometric means with intervals."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.machine.statistics import Interval, mean_ratio
from weft_bench.records import CaseRecord, Result, Run

Samples = Sequence[float]
SLOW = 4  # times the median distance from the floor


class Ratio(NamedTuple):
    """Two sets of samples whose medians are divided."""

    over: Samples
    under: Samples


def part(run: Run, groups: Collection[str]) -> Run:
    """The run with the cases of those groups alone."""
    return replace(run, cases=[case for case in run.cases if case.group in groups])


def relative(run: Run, peer: str, group: str | None = None) -> list[Ratio]:
    """The peer's samples over weft's for each case both measured."""
    return [Ratio(theirs.samples, mine.samples) for _, theirs, mine in run.pairs(peer, group)]


def best_peer(run: Run, group: str | None = None) -> list[Ratio]:
    """The fastest peer's samples over weft's, for each case that weft and any peer measured."""
    found = []
    for case in _of(run, group):
        mine = case.measured(run.ours)
        peers = [result for peer in run.peers if (result := case.measured(peer)) is not None]
        if mine is not None and peers:
            found.append(Ratio(min(peers, key=_seconds).samples, mine.samples))
    return found


def over_floor(run: Run, contender: str, group: str | None = None) -> list[Ratio]:
    """A contender's samples over the floor, for each case that has one."""
    return [
        Ratio(result.samples, (case.floor["seconds"],))
        for case in _of(run, group)
        if case.floor and (result := case.measured(contender)) is not None
    ]


def without_slow(run: Run, peer: str, group: str | None = None) -> list[Ratio]:
    """`relative` without the peer's slow cases: over `SLOW` times as far from the floor as its median case."""
    pairs = run.pairs(peer, group)
    if not all(case.floor for case, *_ in pairs):
        return []
    above = [theirs.seconds.value / case.floor["seconds"] for case, theirs, _ in pairs]
    most = SLOW * np.median(above) if above else 0.0
    kept = zip(above, pairs, strict=True)
    return [Ratio(theirs.samples, mine.samples) for far, (_, theirs, mine) in kept if far < most]


def against_copy(run: Run) -> list[Ratio]:
    """The time of a copy of as many bytes, at the rate measured, over weft's, for each case that only moves data."""
    return [
        Ratio((case.floor["copy"],), result.samples)
        for case in run.cases
        if "copy" in case.floor and (result := case.measured(run.ours)) is not None
    ]


def per_byte(run: Run, plain_group: str) -> list[Ratio]:
    """weft's time for each byte in cases outside `plain_group` over that in the case of the same base within it."""
    plain = {case.base: case for case in run.cases if case.group == plain_group}
    found = []
    for case in run.cases:
        bare = plain.get(case.base)
        if case.group == plain_group or bare is None:
            continue
        mine, theirs = case.measured(run.ours), bare.measured(run.ours)
        if mine is not None and theirs is not None:
            scale = bare.work["bytes"] / case.work["bytes"]
            found.append(Ratio(tuple(scale * sample for sample in mine.samples), theirs.samples))
    return found


def over_plain(run: Run, contender: str = "") -> dict[str, list[Ratio]]:
    """weft's samples with functions (another contender's) over weft's without, by the types before functions' names."""
    plain = {(_types(case), case.base): case.measured(run.ours) for case in run.cases if not case.functions}
    found: dict[str, list[Ratio]] = {}
    for case in run.cases:
        mine, bare = case.measured(contender or run.ours), plain.get((_types(case), case.base))
        if case.functions and mine is not None and bare is not None:
            found.setdefault(_types(case), []).append(Ratio(mine.samples, bare.samples))
    return found


def geomean(ratios: Iterable[Ratio], *, at_least_one: bool = False) -> Interval:
    """Geometric mean of ratios of medians, with its bootstrap interval."""
    over, under = zip(*ratios, strict=True)
    return mean_ratio(over, under, at_least_one=at_least_one)


def of_minima(ratios: Iterable[Ratio], *, at_least_one: bool = False) -> Interval:
    """Geometric mean of ratios of minima, as the paper has it; resampling says nothing of a minimum's interval."""
    return geomean([Ratio((min(r.over),), (min(r.under),)) for r in ratios], at_least_one=at_least_one)


def smallest(ratios: Iterable[Ratio]) -> Interval:
    """The smallest of the ratios."""
    return geomean([min(ratios, key=value)])


def largest(ratios: Iterable[Ratio]) -> Interval:
    """The largest of the ratios."""
    return geomean([max(ratios, key=value)])


def value(ratio: Ratio) -> float:
    """The ratio of the medians alone."""
    return float(np.median(ratio.over) / np.median(ratio.under))


def _types(case: CaseRecord) -> str:
    """The types before the function in a fusion group: ``fp16_fp16`` of ``fp16_fp16.relu``, else nothing."""
    return case.group.rpartition(".")[0]


def _of(run: Run, group: str | None) -> list[CaseRecord]:
    return [case for case in run.cases if group in (None, case.group)]


def _seconds(result: Result) -> float:
    return result.seconds.value
