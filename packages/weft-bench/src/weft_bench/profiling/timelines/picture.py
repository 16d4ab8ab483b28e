"""Timelines as a Gantt chart: a row for each lane of each rank, a bar for each event, numbered by its part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.distributed.planned.timeline import COMPUTE, HOST, Timeline
from weft_bench.report.drawing import new_axes
from weft_bench.report.laws import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from weft_bench.profiling.timelines.record import TimelineRecord

_HEIGHT = 0.26  # inches of a row
_NUMBERED = 0.02  # of the axis that a bar must have to bear a number
_OF_HOST = "#9a9a9a"


def draw(found: TimelineRecord, file: Any = None) -> Figure:
    """A matplotlib figure; saved where `file` is a path or a stream."""
    rows = [(name, lane, each) for name, each in found.timelines.items() for lane in each.lanes]
    inks = _inks(found)
    figure, axes = new_axes(found.about, width=9, height=1.2 + _HEIGHT * len(rows))
    longest = max(each.end for _, _, each in rows) or 1.0
    for row, (_, lane, each) in enumerate(rows):
        _bars(axes, row, lane, each, inks[lane], longest)
    axes.set_yticks(range(len(rows)), [f"{name}  {lane}" for name, lane, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1e3 * longest)
    axes.set_xlabel("ms since the first rank began" if len(found.measured) > 1 else "ms since the call began")
    axes.grid(visible=False, axis="y")
    if file is not None:
        figure.savefig(file)
    return figure


def _bars(axes: Any, row: int, lane: str, each: Timeline, ink: str, longest: float) -> None:
    own = [event for event in each.events if event.lane == lane]
    spans = [(1e3 * event.begin, 1e3 * (event.end - event.begin)) for event in own]
    axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=ink, edgecolors="white", linewidth=0.4)
    for event, (begin, length) in zip(own, spans, strict=True):
        if event.step >= 0 and length > 1e3 * _NUMBERED * longest:
            axes.text(
                begin + length / 2, row, str(event.step), color="white", fontsize=6, ha="center", va="center"
            )


def _inks(found: TimelineRecord) -> dict[str, str]:
    """A colour for each lane, the same on every rank."""
    lanes = dict.fromkeys(lane for each in found.timelines.values() for lane in each.lanes)
    moving = [lane for lane in lanes if lane not in (COMPUTE, HOST)]
    return {COMPUTE: INK[0], HOST: _OF_HOST, **dict(zip(moving, INK[1:], strict=False))}
