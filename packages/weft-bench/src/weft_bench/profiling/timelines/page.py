"""Timelines over ranks as a picture and a page."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.base.figures import duration, folded
from weft.distributed.lanes import COMPUTE, HOST, Timeline
from weft_bench.profiling.threats import of_timelines
from weft_bench.profiling.timelines.record import TimelineRecord
from weft_bench.records import write_whole
from weft_bench.report.drawing import new_axes
from weft_bench.report.laws import INK
from weft_bench.report.page import Cell, Table, disclosure, figure, page, section
from weft_bench.report.threats import TITLE, paragraphs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


JSON_FILE, PAGE_FILE = "timelines.json", "index.html"

_TIMES = (
    "One row a timeline: how long it is, how long each lane works, the share of transfers in which something is "
    "contracted as well, and the time in which neither happens."
)
_CHART = "One row a lane, one bar an event; numbers are those of parts, in their order."
_EVENTS = "When each part was contracted and travelled on each rank, since the first began."


def save(found: TimelineRecord, folder: Path) -> Path:
    """Write JSON and the page into a folder; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / JSON_FILE, json.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n")
    lead = f"{found.device}. {found.sentence}"
    write_whole(folder / PAGE_FILE, page(f"weft profile {found.about}", lead, [body(found)]))
    return folder / PAGE_FILE


def body(found: TimelineRecord) -> str:
    """The sections of the page, which a notebook shows, too."""
    heads, *rows = found.rows()
    return "\n".join([
        section("Time", Table(heads, [[Cell(text) for text in row] for row in rows]).html(), _TIMES),
        section("Timeline", _chart(found)),
        section("Parts", events(found).html(), _EVENTS),
        section("Plan", folded("explain()", found.plan)),
        section(TITLE, paragraphs(of_timelines(found))),
        section("How it was measured", disclosure(found.environment)),
    ])  # fmt: skip


def events(found: TimelineRecord) -> Table:
    """Every event with its begin and end."""
    return Table(
        ("", "part", "begin", "end", "lane", "what"),
        [(Cell(name), Cell(part), _time(event.begin), _time(event.end), Cell(event.lane), Cell(event.name))
         for name, part, event in found.events()],
    )  # fmt: skip


def _chart(found: TimelineRecord) -> str:
    try:
        from weft_bench.profiling.timelines.page import draw
        from weft_bench.report.drawing import png
    except ImportError as error:
        return f'<p class="note">{html.escape(f"no picture: {error}")}</p><pre>{html.escape(str(found))}</pre>'
    return figure(png(draw(found)), _CHART)


def _time(seconds: float) -> Cell:
    return Cell(duration(seconds), seconds)
