"""Pictures of Amdahl's law and Gustafson's, with what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft_bench.machine.laws import Scaling, amdahl, amdahl_limit, gustafson
from weft_bench.report.drawing import NARROW, legend_below, new_axes, plain_logarithm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = ("#0b6e99", "#c2570c", "#6a51a3", "#2d6a4f", "#a1306f", "#8c6d1f", "#5f6b73", "#3f7f3f")
_ROOF = "#777777"


def amdahl_picture(shares: Mapping[str, float], measured: Sequence[Scaling]) -> Figure:
    """Speed-up over as many workers as were measured, for parallel shares by name."""
    figure, axes = new_axes("Amdahl: what a serial share leaves", width=NARROW)
    most = max(max(each.workers) for each in measured)
    reach = np.geomspace(1, most, 100)
    axes.plot(reach, reach, color=_ROOF, linewidth=0.8, linestyle=":")
    for (name, share), ink in zip(shares.items(), INK, strict=False):
        limit = amdahl_limit(share)
        told = f"{name}: f = {share:.3f}, at most {limit:.3g}" if math.isfinite(limit) else f"{name}: f = 1"
        axes.plot(reach, [amdahl(share, p) for p in reach], color=ink, label=told)
        if math.isfinite(limit) and limit < most:
            axes.axhline(limit, color=ink, linewidth=0.6, linestyle="--")
    for at, (each, ink) in enumerate(zip(measured, INK, strict=False)):
        label = "" if at else f"measured, {each.kind}"  # once in the legend
        axes.scatter(each.workers, each.speedups, color=ink, s=24, zorder=3, label=label)
    both_logarithmic(axes)
    axes.set_xlabel("workers")
    axes.set_ylabel("speed-up")
    legend_below(figure, axes, columns=1)
    return figure


def gustafson_picture(shares: Mapping[str, float], measured: Sequence[Scaling]) -> Figure:
    """Scaled speed-up over as many workers as were measured."""
    figure, axes = new_axes("Gustafson: work that grows with the workers", width=NARROW)
    most = max(max(each.workers) for each in measured)
    reach = np.geomspace(1, most, 100)
    axes.plot(reach, reach, color=_ROOF, linewidth=0.8, linestyle=":")
    for (name, share), ink in zip(shares.items(), INK, strict=False):
        axes.plot(reach, [gustafson(share, p) for p in reach], color=ink, label=f"{name}: f = {share:.3f}")
    for at, (each, ink) in enumerate(zip(measured, INK, strict=False)):
        label = "" if at else f"measured, {each.kind}"  # once in the legend
        axes.scatter(each.workers, each.speedups, color=ink, s=24, zorder=3, label=label)
    both_logarithmic(axes)
    axes.set_xlabel("workers")
    axes.set_ylabel("scaled speed-up")
    legend_below(figure, axes, columns=1)
    return figure


def measured_picture(measured: Sequence[Scaling], workers: str) -> Figure:
    """Speed-ups as they were measured, a line for each scaling with its law's parallel share, and the ideal one."""
    figure, axes = new_axes(f"speed-up over {workers}", width=NARROW)
    most = max(max(each.workers) for each in measured)
    axes.plot([1, most], [1, most], color=_ROOF, linewidth=0.8, linestyle=":", label="ideal")
    for each, ink in zip(measured, INK, strict=False):
        label = f"{each.kind}: parallel share {each.parallel:.3f}"
        axes.plot(each.workers, each.speedups, "o-", color=ink, markersize=5, label=label)
    ticks = sorted({count for each in measured for count in each.workers})
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(workers)
    axes.set_ylabel("speed-up")
    legend_below(figure, axes, columns=1)
    return figure


def both_logarithmic(axes: Any) -> None:
    """Plain numbers on two logarithmic axes."""
    plain_logarithm(axes.xaxis, axes.set_xscale)
    plain_logarithm(axes.yaxis, axes.set_yscale)
