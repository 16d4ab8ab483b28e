"""The plots of a run, drawn from its records alone.

swarm: relative performance case by case, with GM1 and GM2 (the GETT paper's Figure 1). roofline: every case under the
measured ceilings. cumulative: the share of cases up to each relative performance. fusion: the suite with functions,
relative to a peer without them (its Figures 2 to 4). throughput: bytes a second of what is only moved, under a copy's.
exactness: time against error of each of a peer's compute types. amdahl, gustafson: speed-ups over ranks with the laws
that are fitted to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from weft.machine.datasheets import datasheet
from weft_bench.records import CaseRecord, Run
from weft_bench.report.drawing import new_axes, plain_logarithm, png
from weft_bench.report.exactness import exactness
from weft_bench.report.figures import scopes
from weft_bench.report.laws import amdahl_picture, gustafson_picture
from weft_bench.report.ratios import geomean, relative, value
from weft_bench.report.scaling import fitted
from weft_bench.scaling import SCALING

COLOURS = {
    "weft": "#0b6e99",
    "cutensor": "#c2570c",
    "torch": "#6a51a3",
    "cublas": "#2d6a4f",
    "weft-model": "#7fb2c9",
    "compile": "#a1306f",
    "ttgt": "#8c6d1f",
    "numpy": "#5f6b73",
    "opt_einsum": "#3f7f3f",
}
_FUNCTION_COLOURS = ("#0b6e99", "#3f7f3f", "#6a51a3", "#c2570c", "#a1306f")
_GM1, _GM2 = "#111111", "#b3261e"
_OTHER = "#444444"


def draw(run: Run) -> dict[str, bytes]:
    """PNG images by name, of those plots that the run has measurements for."""
    drawn: dict[str, bytes] = {}
    plots = LAWS if run.suite == SCALING else PLOTS  # its contenders are numbers of ranks
    for name, plot in plots.items():
        figure = plot(run)
        if figure is not None:
            drawn[name] = png(figure)
    return drawn


def swarm(run: Run) -> Figure | None:
    """One column for each group and peer; above 1 weft is faster."""
    columns = [(group, peer, run.pairs(peer, group)) for group in scopes(run) for peer in run.peers]
    columns = [column for column in columns if column[2]]
    if not columns:
        return None
    title = f"{run.suite} on {run.device}: relative performance"
    figure, axes = new_axes(title, width=max(6.4, 1.7 * len(columns) + 2))
    for x, (group, peer, pairs) in enumerate(columns):
        ratios = relative(run, peer, group)
        values = [value(ratio) for ratio in ratios]
        offsets = beeswarm(np.log10(values))
        axes.scatter(x + offsets, values, s=20, color=_colour(peer), alpha=0.85, linewidths=0)
        for mean, colour in (
            (geomean(ratios).value, _GM1),
            (geomean(ratios, at_least_one=True).value, _GM2),
        ):
            axes.plot([x - 0.36, x + 0.36], [mean, mean], color=colour, linewidth=1.4)
            side, anchor = (0.37, "left") if colour == _GM1 else (-0.37, "right")
            axes.annotate(f"{mean:.2f}", (x + side, mean), color=colour, fontsize=8, va="center", ha=anchor)
        order = np.argsort(values)
        for at in {int(order[0]), int(order[-1])}:
            label = _brief(pairs[at][0].name)
            axes.annotate(label, (x + offsets[at], values[at]), (5, 0), textcoords="offset points", fontsize=6.5)
    axes.set_xticks(
        range(len(columns)), [f"{group or run.suite}\nagainst {peer}" for group, peer, _ in columns], fontsize=8
    )
    axes.set_xlim(-0.7, len(columns) - 0.3)
    plain_logarithm(axes.yaxis, axes.set_yscale)
    axes.set_ylabel("time of the peer / time of weft")
    axes.axhline(1, color="#999999", linewidth=0.8, zorder=0)
    axes.plot([], [], color=_GM1, label="GM1: geometric mean")
    axes.plot([], [], color=_GM2, label="GM2: of max(1, ratio)")
    axes.legend(fontsize=8, frameon=False)
    return figure


def roofline(run: Run) -> Figure | None:
    """Achieved rate over operational intensity, under the roofs of the number types in the run."""
    cases = [case for case in run.cases if case.floor and case.work["flops"] and case.work["bytes"]]
    if not any(case.measured(name) for case in cases for name in run.contenders):
        return None
    figure, axes = new_axes(f"{run.suite} on {run.device}: roofline", width=8.5)
    intensities = [case.work["flops"] / case.work["bytes"] for case in cases]
    reach = np.geomspace(min(intensities) / 3, max(intensities) * 3, 200)
    bandwidth, peaks = _roofs(cases)
    for peak, names in peaks.items():
        roof = np.minimum(peak, bandwidth * reach) / 1e12
        axes.plot(reach, roof, color="#999999", linewidth=1)
        axes.annotate(", ".join(names), (reach[-1], roof[-1]), fontsize=7, ha="right", va="bottom", color="#555555")
    for name, peak in _vector_roofs(run, cases).items():
        axes.plot(reach, np.minimum(peak, bandwidth * reach) / 1e12, color="#999999", linewidth=0.8, linestyle="--")
        words = f"{name} vector pipes"
        axes.annotate(words, (reach[-1], peak / 1e12), fontsize=7, ha="right", va="top", color="#555555")
    for name in reversed(run.contenders):
        found = [
            (x, case, result) for x, case in zip(intensities, cases, strict=True) if (result := case.measured(name))
        ]
        rates = [case.work["flops"] / result.seconds.value / 1e12 for _, case, result in found]
        ours = name == run.ours
        axes.scatter(
            [x for x, _, _ in found], rates, s=22 if ours else 16, label=name, zorder=3 if ours else 2,
            facecolors=_colour(name) if ours else "none", edgecolors=_colour(name), linewidths=0.9,
        )  # fmt: skip
    plain_logarithm(axes.xaxis, axes.set_xscale)
    plain_logarithm(axes.yaxis, axes.set_yscale)
    axes.set_xlabel("flop per compulsory byte")
    axes.set_ylabel("Tflop/s")
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def cumulative(run: Run) -> Figure | None:
    """The share of cases whose relative performance is at most x."""
    groups = scopes(run)
    lines = [(group, peer, relative(run, peer, group)) for group in groups for peer in run.peers]
    lines = [line for line in lines if line[2]]
    if not lines:
        return None
    figure, axes = new_axes(f"{run.suite} on {run.device}: cumulative distribution", width=8.5)
    styles = ("-", "--", ":", "-.")
    for group, peer, ratios in lines:
        values = sorted(value(ratio) for ratio in ratios)
        shares = np.arange(1, len(values) + 1) / len(values)
        axes.step(
            [values[0], *values], [0.0, *shares], where="post", color=_colour(peer),
            linestyle=styles[groups.index(group) % len(styles)], label=f"{group or run.suite} against {peer}",
        )  # fmt: skip
    plain_logarithm(axes.xaxis, axes.set_xscale)
    axes.set_xlabel("time of the peer / time of weft")
    axes.set_ylabel("share of cases at or below")
    axes.axvline(1, color="#999999", linewidth=0.8, zorder=0)
    axes.legend(fontsize=7, frameon=False)
    return figure


def fusion(run: Run) -> Figure | None:
    """weft (circles) and its first peer (triangles) with each function, relative to that peer without one."""
    if run.suite != "tccg-fusion":
        return None
    groups = run.groups
    plain = next((case.group for case in run.cases if not case.functions), None)
    peer = next((peer for peer in run.peers if plain is not None and run.pairs(peer, plain)), None)
    if peer is None:
        return None
    bases = {case.base: result for case in run.cases if not case.functions and (result := case.measured(peer))}
    if not any(case.functions and case.base in bases for case in run.cases):
        return None
    order = {base: at for at, base in enumerate(bases)}
    figure, axes = new_axes(f"{run.suite} on {run.device}: relative to {peer} without functions", width=11)
    for group in groups:
        colour = _FUNCTION_COLOURS[groups.index(group) % len(_FUNCTION_COLOURS)]
        for name, marker in ((run.ours, "o"), (peer, "^")):
            points = [
                (order[case.base], bases[case.base].seconds.value / result.seconds.value)
                for case in run.cases
                if case.group == group and case.base in bases and (result := case.measured(name))
            ]
            axes.scatter(
                [x for x, _ in points], [y for _, y in points], marker=marker, s=20, color=colour, linewidths=0,
                alpha=0.85, label=f"{group}, {name}",
            )  # fmt: skip
    axes.set_xticks(list(order.values()), [_brief(base) for base in order], fontsize=6.5, rotation=90)
    plain_logarithm(axes.yaxis, axes.set_yscale)
    axes.axhline(1, color="#999999", linewidth=0.8, zorder=0)
    axes.set_ylabel(f"time of {peer} without functions / time")
    axes.legend(fontsize=7, frameon=False, ncols=2)
    return figure


def throughput(run: Run) -> Figure | None:
    """Bytes read and written in a second, case by case and group by group, under the measured rate of a copy."""
    order = run.groups.index
    cases = sorted((case for case in run.cases if "copy" in case.floor), key=lambda case: order(case.group))
    if not any(case.measured(name) for case in cases for name in run.contenders):
        return None
    figure, axes = new_axes(f"{run.suite} on {run.device}: bytes moved", width=max(8.5, 0.07 * len(cases)))
    for name in reversed(run.contenders):
        points = [
            (x, case.work["bytes"] / result.seconds.value / 1e12)
            for x, case in enumerate(cases)
            if (result := case.measured(name))
        ]
        axes.scatter(
            [x for x, _ in points], [rate for _, rate in points], s=14, color=_colour(name), linewidths=0, label=name
        )
    copy = cases[0].work["bytes"] / cases[0].floor["copy"] / 1e12
    axes.axhline(copy, color="#999999", linewidth=1)
    axes.annotate("copy", (len(cases) - 1, copy), fontsize=7, ha="right", va="bottom", color="#555555")
    groups = [case.group for case in cases]
    for at in (groups.index(group) for group in dict.fromkeys(groups)):
        axes.axvline(at - 0.5, color="#cccccc", linewidth=0.7, zorder=0)
        axes.annotate(
            groups[at], (at - 0.5, -0.02), xycoords=("data", "axes fraction"), fontsize=6.5, rotation=-30, va="top"
        )
    axes.set_xticks([])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("TB/s")
    axes.legend(fontsize=8, frameon=False)
    return figure


def amdahl(run: Run) -> Figure | None:
    """Amdahl's law fitted to each case of the same work, over the measurements."""
    found = fitted(run, "strong")
    shares = {name: each.parallel for name, each in found.items()}
    return amdahl_picture(shares, list(found.values())) if found else None


def gustafson(run: Run) -> Figure | None:
    """Gustafson's law fitted to each case that grows with the ranks, over the measurements."""
    found = fitted(run, "weak")
    shares = {name: each.parallel for name, each in found.items()}
    return gustafson_picture(shares, list(found.values())) if found else None


PLOTS: dict[str, Callable[[Run], Figure | None]] = {
    "swarm": swarm,
    "roofline": roofline,
    "cumulative": cumulative,
    "fusion": fusion,
    "throughput": throughput,
    "exactness": exactness,
}
LAWS: dict[str, Callable[[Run], Figure | None]] = {"amdahl": amdahl, "gustafson": gustafson}


def beeswarm(heights: Sequence[float] | np.ndarray, *, rows: int = 45, step: float = 0.07) -> np.ndarray:
    """Sideways offsets that keep points of nearly equal height apart: a row's points stand around its middle."""
    heights = np.asarray(heights, dtype=float)
    span = float(np.ptp(heights)) or 1.0
    taken: dict[int, int] = {}
    offsets = np.zeros(len(heights))
    for at in np.argsort(heights):
        row = math.floor((heights[at] - heights.min()) / span * rows)
        before = taken.get(row, 0)
        offsets[at] = step * ((before + 1) // 2) * (1 if before % 2 else -1)
        taken[row] = before + 1
    limit = float(np.abs(offsets).max()) if len(offsets) else 0.0
    return offsets * (0.34 / limit) if limit > 0.34 else offsets


def _roofs(cases: Sequence[CaseRecord]) -> tuple[float, dict[float, list[str]]]:
    """Bytes/s and, for each peak in flop/s, the number types that have it, as the floors of the cases imply them."""
    bandwidth = float(np.median([case.work["bytes"] / case.floor["memory"] for case in cases if case.floor["memory"]]))
    peaks: dict[float, list[str]] = {}
    for case in cases:
        if case.floor["compute"]:
            names = peaks.setdefault(float(f"{case.work['flops'] / case.floor['compute']:.3g}"), [])
            if (name := case.precision or case.dtypes[0]) not in names:
                names.append(name)
    return bandwidth, peaks


def _vector_roofs(run: Run, cases: Sequence[CaseRecord]) -> dict[str, float]:
    """Flop/s outside the matrix units, by the data sheet, of the types that the run's operands have."""
    sheet = datasheet(run.device)
    types = dict.fromkeys(case.dtypes[0] for case in cases)
    return {name: sheet.vector[name] for name in types if name in sheet.vector} if sheet is not None else {}


def _colour(contender: str) -> str:
    return COLOURS.get(contender, _OTHER)


def _brief(name: str) -> str:
    return name.removeprefix("tccg-")
