"""The figures that a run comes down to: geometric means, worst cases, distance from the floor, each with its interval.

Names are ``suite.group.figure``, and ``suite.figure`` over all groups. In what is called ``vs`` a peer's time stands
over weft's, so that more is better; ``x_over_y`` is time x over time y, so that less is better.

    tccg.fp16_fp32.gm1_cutensor        the peer's time over weft's, geometric mean (GM1)
    tccg.fp16_fp32.gm2_cutensor        the same where a user takes the faster of the two (GM2)
    tccg.fp16_fp32.gm1_of_minima_cutensor  GM1 on minima, as the paper has it; gm2 likewise
    tccg.fp16_fp32.gm1_without_slow_cutensor  GM1 without cases in which the peer is over four times as far from the
                                       floor as in its median case
    tccg.fp16_fp32.worst_vs_cutensor   the smallest of the ratios
    tccg.fp16_fp32.time_over_floor     weft's time over the roofline floor, geometric mean
    tccg.fp16_fp32.cutensor_over_floor the peer's
    tccg.fp16_fp32.untuned_vs_tuned    weft's time over its time with the model's choice alone (weft-model)
    tccg.fp16_fp32.invariant_over_plain  weft's time with bits that depend on no extent of A's modes (weft-invariant)
                                       over its time, geometric mean; worst_invariant_over_plain the largest
    beyond.geomean_vs_best_peer        the fastest peer's time, case by case, over weft's
    fusion.leaky_relu_vs_cutensor      with a function: the peer's time over weft's, geometric mean
    fusion.leaky_relu_without_slow_vs_cutensor  the same without the peer's slow cases
    fusion.geomean_over_plain          weft's time with functions over its time without, geometric mean
    fusion.same_schedule_over_plain    the same of weft-same, whose schedule is that of the case without functions
    fusion.worst_over_plain            the largest of those ratios

The figures of the other suites stand in `weft_bench.report.suite_figures`.
"""

from __future__ import annotations

import re

from weft.machine.statistics import Interval
from weft_bench.records import INVARIANT, MODEL, SAME, Run
from weft_bench.report.ratios import (
    Ratio,
    best_peer,
    geomean,
    largest,
    of_minima,
    over_floor,
    over_plain,
    relative,
    smallest,
    without_slow,
)
from weft_bench.report.suite_figures import SUITE_FIGURES

# What figures are in words, by the last part of their names.
_IN_WORDS = (
    (r"gm([12])_of_minima_(.+)", "GM{0} against {1} on the least time of each, as published; without an interval"),
    (r"gm1_without_slow_(.+)", "the same without cases over four times as far from the floor as {0}'s median case"),
    (r"gm1_(.+)", "times as fast as {0}, geometric mean of all cases"),
    (r"gm2_(.+)", "the same where whoever is faster than weft is taken instead of it"),
    (r"worst_vs_(.+)", "times as fast as {0} in the worst case"),
    (r"geomean_vs_best_peer", "times as fast as the fastest peer of each case, geometric mean"),
    (r"untuned_vs_tuned", "time with the model's choice over the time with the tuned one"),
    (r"time_over_floor", "time over the least that the device allows, geometric mean: 1 is the best there can be"),
    (r"(.+)_over_floor", "the same of {0}"),
    (r"geomean_over_plain", "time with functions over the time without, geometric mean"),
    (r"same_schedule_over_plain", "the mean of the same where the schedule is the one without functions"),
    (r"invariant_over_plain", "time with bits that depend on no extent of A's own modes over the time without"),
    (r"worst_(?:invariant_)?over_plain", "the same in the worst case"),
    (r"fast_0_vs_(.+)", "share of tasks that are right, beside a time of {0}"),
    (r"fast_(\d)_vs_(.+)", "share of tasks that are right and more than {0} times as fast as {1}"),
    (r"vs_(.+)", "times as fast as {0}"),
    (r"bytes_over_(.+)", "memory that a call takes over that of {0}"),
    (r"(.+)_without_slow_vs_(.+)", "the same without cases over four times as far from the floor as {1}'s median case"),
    (r"(.+)_vs_(.+)", "{0}: times as fast as {1}, geometric mean"),
    (r"(.+)_over_(.+)", "time of {0} over that of {1}"),
    (r"(.+)_us", "{0}, in microseconds"),
    (r"speedup_on_(\d+)", "time of one rank over that of {0} ranks, of the same work"),
    (r"scaled_speedup_on_(\d+)", "the same times {0}, of {0} times the work"),
    (r"parallel_share", "share of the work that runs in parallel, by the law that is fitted"),
    (r"(.+)_tops", "{0}, in 10^12 operations a second"),
)
_UNITS = {"_us": "us", "_tops": "T op/s"}  # by how a figure's name ends; all others are ratios


def figures(run: Run) -> dict[str, Interval]:
    """All figures that the run's measurements allow, by name."""
    if run.suite == "tccg-fusion":
        return _fusion(run)
    if run.suite in SUITE_FIGURES:
        return SUITE_FIGURES[run.suite](run)
    found: dict[str, Interval] = {}
    for group in scopes(run):
        name = run.suite if group is None else f"{run.suite}.{group}"
        found |= {f"{name}.{figure}": value for figure, value in group_figures(run, group).items()}
    return found


def in_words(name: str) -> str:
    """The meaning of the figure of that name, in words."""
    last = name.rpartition(".")[2]
    for pattern, sentence in _IN_WORDS:
        if found := re.fullmatch(pattern, last):
            return sentence.format(*found.groups())
    return ""


def unit(name: str) -> str:
    """The unit of the figure of that name."""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "ratio")


def scopes(run: Run) -> list[str | None]:
    """Scopes that are averaged separately: each group; for `beyond`, whose groups are small, the whole run (None)."""
    return [None] if run.suite == "beyond" else [*run.groups]


def group_figures(run: Run, group: str | None) -> dict[str, Interval]:
    """The figures of one group, or of the whole run (None), by the last part of their names."""
    found: dict[str, Interval] = {}
    for peer in run.peers:
        if ratios := relative(run, peer, group):
            found[f"gm1_{peer}"] = geomean(ratios)
            found[f"gm2_{peer}"] = geomean(ratios, at_least_one=True)
            found[f"gm1_of_minima_{peer}"] = of_minima(ratios)
            found[f"gm2_of_minima_{peer}"] = of_minima(ratios, at_least_one=True)
            found[f"worst_vs_{peer}"] = smallest(ratios)
        if usual := without_slow(run, peer, group):
            found[f"gm1_without_slow_{peer}"] = geomean(usual)
    if best := best_peer(run, group):
        found["geomean_vs_best_peer"] = geomean(best)
    if untuned := relative(run, MODEL, group):
        found["untuned_vs_tuned"] = geomean([Ratio(mine, model) for model, mine in untuned])
    if invariant := relative(run, INVARIANT, group):
        found["invariant_over_plain"] = geomean(invariant)
        found["worst_invariant_over_plain"] = largest(invariant)
    for contender in (run.ours, *run.peers):
        if above := over_floor(run, contender, group):
            found["time_over_floor" if contender == run.ours else f"{contender}_over_floor"] = geomean(above)
    return found


def _fusion(run: Run) -> dict[str, Interval]:
    found: dict[str, Interval] = {}
    for group in run.groups:
        for peer in run.peers:
            if ratios := relative(run, peer, group):
                found[f"fusion.{group}_vs_{peer}"] = geomean(ratios)
            if usual := without_slow(run, peer, group):
                found[f"fusion.{group}_without_slow_vs_{peer}"] = geomean(usual)
    for types, ratios in over_plain(run).items():
        name = f"fusion.{types}" if types else "fusion"
        found[f"{name}.geomean_over_plain"] = geomean(ratios)
        found[f"{name}.worst_over_plain"] = largest(ratios)
    for types, ratios in over_plain(run, SAME).items():
        name = f"fusion.{types}" if types else "fusion"
        found[f"{name}.same_schedule_over_plain"] = geomean(ratios)
    return found
