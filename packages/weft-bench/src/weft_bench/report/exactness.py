"""Time against error: the ways of a peer that differ in what they compute with, beside weft, case by case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from matplotlib.figure import Figure

from weft_bench.records import CaseRecord, Result, Run
from weft_bench.report.drawing import legend_below, new_axes, plain_logarithm

_COLOURS = ("#c2570c", "#6a51a3", "#2d6a4f", "#a1306f", "#8c6d1f", "#3f7f3f")
_OURS = "#0b6e99"


class Point(NamedTuple):
    """The fastest way by one compute type: its time over weft's, its error over that of the peer's first type."""

    kind: str
    time: float
    error: float


def exactness(run: Run) -> Figure | None:
    """One point for each case and compute type; weft's own stand at time 1."""
    points = [point for case in run.cases for name in run.peers for point in _of_case(run, case, name)]
    if not points:
        return None
    figure, axes = new_axes(f"{run.suite} on {run.device}: time against error", width=7.5)
    kinds = list(dict.fromkeys(point.kind for point in points))
    others = [kind for kind in kinds if kind != run.ours]
    for kind in (*others, run.ours):
        chosen = [point for point in points if point.kind == kind]
        colour = _OURS if kind == run.ours else _COLOURS[others.index(kind) % len(_COLOURS)]
        axes.scatter(
            [point.error for point in chosen], [point.time for point in chosen], s=18, color=colour, alpha=0.75,
            linewidths=0, label=kind,
        )  # fmt: skip
    plain_logarithm(axes.xaxis, axes.set_xscale)
    plain_logarithm(axes.yaxis, axes.set_yscale)
    for line in (axes.axhline, axes.axvline):
        line(1, color="#999999", linewidth=0.8, zorder=0)
    axes.set_xlabel(f"largest error / that of {others[0]}")
    axes.set_ylabel("time / time of weft")
    legend_below(figure, axes, columns=len(kinds))
    return figure


def fastest_by_kind(result: Result) -> dict[str, tuple[float, float]]:
    """Seconds and error of the fastest way of each compute type, in the order of the ways."""
    found: dict[str, tuple[float, float]] = {}
    for label, error in result.errors.items():
        seconds = result.ways.get(label)
        taken = seconds if isinstance(seconds, float) else result.beyond.get(label)
        kind = label.rpartition(" ")[2]
        if taken is not None and (kind not in found or taken < found[kind][0]):
            found[kind] = taken, error
    return found


def _of_case(run: Run, case: CaseRecord, peer: str) -> Iterator[Point]:
    ours, theirs = case.measured(run.ours), case.measured(peer)
    if ours is None or theirs is None or not ours.error_over_bound:
        return
    found = fastest_by_kind(theirs)
    unit = next((error for _, error in found.values()), 0.0)
    if len(found) < 2 or not unit:
        return
    yield from (Point(kind, seconds / ours.seconds.value, error / unit) for kind, (seconds, error) in found.items())
    yield Point(run.ours, 1.0, ours.error_over_bound / unit)
