"""A `TimelineRecord` as HTML, in the design of the bench's pages, with JSON beside it."""

from __future__ import annotations

import html
import json
from pathlib import Path

from weft.base.notebook import folded
from weft_bench.profiling.timelines.record import TimelineRecord
from weft_bench.records import write_whole
from weft_bench.report.page import Cell, Table, disclosure, figure, page, section

JSON_FILE, PAGE_FILE = "timelines.json", "index.html"

_TIMES = (
    "One row a timeline: how long it is, how long each lane works, the share of transfers in which something is "
    "contracted as well, and the time in which neither happens."
)
_CHART = "One row a lane, one bar an event; numbers are those of parts, in their order."
_EVENTS = "When each part was contracted and travelled on each rank, in microseconds since the first began."


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
        section("How it was measured", disclosure(found.environment)),
    ])  # fmt: skip


def events(found: TimelineRecord) -> Table:
    """Every event with its begin and end."""
    return Table(
        ("", "part", "begin us", "end us", "lane", "what"),
        [(Cell(name), Cell(part), _us(event.begin), _us(event.end), Cell(event.lane), Cell(event.name))
         for name, part, event in found.events()],
    )  # fmt: skip


def _chart(found: TimelineRecord) -> str:
    try:
        from weft_bench.profiling.timelines.picture import draw
        from weft_bench.report.drawing import png
    except ImportError as error:
        return f'<p class="note">{html.escape(f"no picture: {error}")}</p><pre>{html.escape(str(found))}</pre>'
    return figure(png(draw(found)), _CHART)


def _us(seconds: float) -> Cell:
    return Cell(f"{1e6 * seconds:.4g}", 1e6 * seconds)
