"""The chart of a ladder: time and share of the roof of every rung, predictions and published shares beside."""

from __future__ import annotations

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from weft_bench.ladder.record import Climb, Step
from weft_bench.report.drawing import plain_logarithm

_MEASURED, _PREDICTED, _PUBLISHED = "#0b6e99", "#c2570c", "#6a51a3"
_ROW = 0.3  # inches of a rung


def chart(climb: Climb) -> Figure:
    """Two panels with a row for each rung, the first on top."""
    steps = climb.steps
    figure = Figure(figsize=(10, 1.6 + _ROW * len(steps)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    at = list(range(len(steps)))
    timed = [(row, step.interval) for row, step in enumerate(steps)]
    points = [(row, found) for row, found in timed if found is not None]
    if points:
        left.plot([found.value * 1e3 for _, found in points], [row for row, _ in points], "o", color=_MEASURED)
        plain_logarithm(left.xaxis, left.set_xscale)
    left.set_xlabel("time of a call, ms" if points else "time: not measured")
    left.set_yticks(at, [_label(step) for step in steps], fontsize=8)
    _shares(right, steps)
    right.set_xlabel("share of the roof")
    for axes in (left, right):
        axes.grid(visible=True, color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    left.invert_yaxis()
    figure.suptitle(f"{climb.ladder} on {climb.device}", fontsize=11)
    return figure


def _shares(axes: Any, steps: list[Step]) -> None:
    measured = [(row, step.share) for row, step in enumerate(steps) if step.share is not None]
    if measured:
        axes.barh(*zip(*measured, strict=True), height=0.6, color=_MEASURED, label="measured")
    axes.scatter([step.predicted_share for step in steps], range(len(steps)), marker="|", s=90, color=_PREDICTED,
                  zorder=3, label="predicted")  # fmt: skip
    known = [(row, each["share"]) for row, step in enumerate(steps) for each in step.published if each["share"]]
    if known:
        axes.scatter(
            [value for _, value in known], [row for row, _ in known], marker="D", s=18, facecolors="none",
            edgecolors=_PUBLISHED, zorder=3, label="published, of its own roof",
        )  # fmt: skip
    axes.axvline(1.0, color="#999999", linewidth=0.8)
    axes.legend(fontsize=8, frameon=False, loc="upper right")


def _label(step: Step) -> str:
    return f"{step.number}  {step.name} ({step.flight})"
