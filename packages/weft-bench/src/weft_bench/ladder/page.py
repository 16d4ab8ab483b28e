"""All ladders that a folder holds as one page: a chart and a table each, then every rung with idea and kernel."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

from weft.errors import UnsupportedError
from weft_bench.ladder import text
from weft_bench.ladder.chart import chart
from weft_bench.ladder.ladders import ladder
from weft_bench.ladder.record import PREFIX, Climb, Step, read
from weft_bench.ladder.rung import Rung
from weft_bench.records import write_whole
from weft_bench.report.drawing import png
from weft_bench.report.page import Cell, Table, disclosure, figure, page, section

PAGE_FILE = "index.html"
_CHART = (
    "Bars: measured. Strokes: predicted from the work of a rung and the machine's limits. Diamonds: published, of the "
    "best that the source names, on its own machine."
)
_TABLE = (
    "Shares are of the roofline floor, which is made of the device's own ceilings. A gain says how many times as fast "
    "a rung is as the one that it is held against."
)


def save(found: Sequence[Climb], folder: Path) -> Path:
    """Write each climb as JSON, and the page of all that the folder then holds; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in found:
        write_whole(folder / f"{PREFIX}{each.ladder}.json", json.dumps(each.to_dict(), indent=1) + "\n")
    return write_page(folder)


def write_page(folder: Path) -> Path:
    """The page anew, from the JSON files of a folder alone. `WeftError` where there are none."""
    found = read(folder)
    lead = ", ".join(dict.fromkeys(f"{each.device}, {each.date[:10]}" for each in found))
    parts = [part for each in found for part in _sections(each)]
    write_whole(folder / PAGE_FILE, page("weft ladder", lead, parts))
    return folder / PAGE_FILE


def _sections(climb: Climb) -> list[str]:
    flights = text.flights(climb)
    tables = "\n".join(f"<h3>{html.escape(each)}</h3>\n{_table(climb, each).html()}" for each in flights)
    said = "".join(f'<p class="note">{html.escape(each)}</p>' for each in text.remarks(climb))
    unmeasured = "" if climb.measured else f'<p class="note">{text.NOT_MEASURED}</p>'
    drawn = figure(png(chart(climb)), _CHART)
    rungs = "\n".join(_rung(climb, step) for step in climb.steps)
    return [
        section(f"{climb.ladder}", f"{unmeasured}{drawn}\n{tables}\n{said}", f"{climb.says} {_TABLE}"),
        section(f"{climb.ladder}, rung by rung", rungs),
        section(f"{climb.ladder}: how it was measured", disclosure(climb.environment)),
    ]


def _table(climb: Climb, flight: str) -> Table:
    return Table(text.HEADS, [[Cell(cell) for cell in row] for row in text.rows(climb, flight)])


def _rung(climb: Climb, step: Step) -> str:
    """Idea, picture, kernel, sources and counters of a rung."""
    sources = (f"{each['figure']}: {each['source']}" for each in step.published)
    published = "".join(f"<li>{html.escape(each)}</li>" for each in sources)
    parts = [
        f"<h3>{step.number} {html.escape(step.name)} ({html.escape(step.flight)})</h3>",
        f"<p><b>{html.escape(step.title)}.</b> {html.escape(step.problem)}</p>",
        _written(climb.ladder, step),
        f"<p>Predicted: {text.share(step.predicted_share)} of the roof; {html.escape(step.because)}.</p>",
        f"<ul>{published}</ul>" if published else "",
        _counters(step),
    ]
    return "\n".join(part for part in parts if part)


def _written(name: str, step: Step) -> str:
    """The rung's file as it is today; nothing where this version of weft has no such rung."""
    found = _known(name, step)
    if found is None:
        return ""
    ideas = "".join(f"<p>{html.escape(idea)}</p>" for idea in found.idea.split("\n\n"))
    summary = f"<summary>kernel, in {html.escape(step.tool)}</summary>"
    source = f"<details>{summary}<pre>{html.escape(found.source)}</pre></details>"
    return f"{ideas}<pre>{html.escape(found.picture)}</pre>{source}"


def _known(name: str, step: Step) -> Rung | None:
    try:
        rungs = ladder(name).rungs
    except UnsupportedError:
        return None
    return next((rung for flight, rung in rungs if (flight.name, rung.name) == (step.flight, step.name)), None)


def _counters(step: Step) -> str:
    """The verdict of the counters in a sentence, and each counter; or why there are none."""
    if not step.profile:
        return ""
    from weft_bench.profiling.page import counters
    from weft_bench.profiling.profile import Profile

    found = Profile.from_dict(step.profile)
    if not found.counters:
        return f'<p class="note">no counters: {html.escape(found.missing.get("counters", "none were read"))}</p>'
    return f"<p>{html.escape(found.sentence)}</p>{counters(found).html()}"
