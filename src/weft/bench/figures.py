"""The figures that a run comes down to: geometric means, worst cases, distance from the floor, each with its interval.

Names are ``suite.group.figure``, and ``suite.figure`` over all groups:

    tccg.fp16_fp32.gm1_cutensor        the peer's time over weft's, geometric mean (GM1)
    tccg.fp16_fp32.gm2_cutensor        the same where a user takes the faster of the two (GM2)
    tccg.fp16_fp32.worst_vs_cutensor   the smallest of the ratios
    tccg.fp16_fp32.time_over_floor     weft's time over the roofline floor, geometric mean
    tccg.fp16_fp32.cutensor_over_floor the peer's
    beyond.geomean_vs_best_peer        the fastest peer's time, case by case, over weft's
    fusion.leaky_relu_vs_cutensor      with a function: the peer's time over weft's, geometric mean
    fusion.geomean_over_plain          weft's time with functions over its time without, geometric mean
    fusion.worst_over_plain            the largest of those ratios
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from weft.bench.records import CaseRecord, Result, Run
from weft.bench.statistics import Interval, mean_ratio

_PREFIX = {"tccg-fusion": "fusion"}

Samples = Sequence[float]


class Ratio(NamedTuple):
    """Two sets of samples whose medians are divided."""

    over: Samples
    under: Samples


def figures(run: Run) -> dict[str, Interval]:
    """All figures that the run's measurements allow, by name."""
    prefix = _PREFIX.get(run.suite, run.suite)
    if run.suite == "tccg-fusion":
        return _fusion(run, prefix)
    found: dict[str, Interval] = {}
    for group in scopes(run):
        name = prefix if group is None else f"{prefix}.{group}"
        found |= {f"{name}.{figure}": value for figure, value in group_figures(run, group).items()}
    return found


def scopes(run: Run) -> list[str | None]:
    """What is averaged apart: each group, or for `beyond`, whose groups are small, the whole run (None)."""
    return [None] if run.suite == "beyond" else [*run.groups]


def group_figures(run: Run, group: str | None) -> dict[str, Interval]:
    """The figures of one group, or of the whole run (None), by the last part of their names."""
    found: dict[str, Interval] = {}
    for peer in run.peers:
        ratios = relative(run, peer, group)
        if ratios:
            found[f"gm1_{peer}"] = geomean(ratios)
            found[f"gm2_{peer}"] = geomean(ratios, at_least_one=True)
            found[f"worst_vs_{peer}"] = geomean([min(ratios, key=value)])
    if best := best_peer(run, group):
        found["geomean_vs_best_peer"] = geomean(best)
    for contender in run.contenders:
        if above := over_floor(run, contender, group):
            found["time_over_floor" if contender == run.ours else f"{contender}_over_floor"] = geomean(above)
    return found


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


def over_plain(run: Run) -> dict[str, list[Ratio]]:
    """weft's samples with functions over those without, by the number types before the functions' names."""
    plain = {(_types(case), case.base): case.measured(run.ours) for case in run.cases if not case.functions}
    found: dict[str, list[Ratio]] = {}
    for case in run.cases:
        mine, bare = case.measured(run.ours), plain.get((_types(case), case.base))
        if case.functions and mine is not None and bare is not None:
            found.setdefault(_types(case), []).append(Ratio(mine.samples, bare.samples))
    return found


def geomean(ratios: Iterable[Ratio], *, at_least_one: bool = False) -> Interval:
    """Geometric mean of ratios of medians, with its bootstrap interval."""
    over, under = zip(*ratios, strict=True)
    return mean_ratio(over, under, at_least_one=at_least_one)


def value(ratio: Ratio) -> float:
    """The ratio of the medians alone."""
    return float(np.median(ratio.over) / np.median(ratio.under))


def _fusion(run: Run, prefix: str) -> dict[str, Interval]:
    found: dict[str, Interval] = {}
    for group in run.groups:
        for peer in run.peers:
            if ratios := relative(run, peer, group):
                found[f"{prefix}.{group}_vs_{peer}"] = geomean(ratios)
    for types, ratios in over_plain(run).items():
        name = f"{prefix}.{types}" if types else prefix
        found[f"{name}.geomean_over_plain"] = geomean(ratios)
        found[f"{name}.worst_over_plain"] = geomean([max(ratios, key=value)])
    return found


def _types(case: CaseRecord) -> str:
    """What stands before the function in a fusion group: ``fp16_fp16`` of ``fp16_fp16.relu``, else nothing."""
    return case.group.rpartition(".")[0]


def _of(run: Run, group: str | None) -> list[CaseRecord]:
    return [case for case in run.cases if group in (None, case.group)]


def _seconds(result: Result) -> float:
    return result.seconds.value
