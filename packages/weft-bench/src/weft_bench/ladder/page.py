"""All ladders that a folder holds as one page: a flight is a chart, a table, and its rungs to unfold."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from weft.base.figures import duration
from weft_bench.dense_thesis import counted_how
from weft_bench.ladder import text
from weft_bench.ladder.chart import anchor, chart
from weft_bench.ladder.counted import METRICS, longest
from weft_bench.ladder.ladders import known_rung
from weft_bench.ladder.published import counters_of
from weft_bench.ladder.record import PREFIX, Climb, Step, read
from weft_bench.ladder.recorded import Recording, recordings
from weft_bench.ladder.rung import published_gain
from weft_bench.ladder.threats import of_climb
from weft_bench.records import write_whole
from weft_bench.report.page import Cell, Table, disclosure, page, section
from weft_bench.report.threats import TITLE, paragraphs

PAGE_FILE = "index.html"
_CHART = "Bars are shares of the roof, with the time of a call behind; published shares are of a source's own roof."
_NO_ROOF = "No roof is known here: bars are shares of the fastest rung's speed, with the time of a call behind."
_TABLE = (
    "Shares are of the roofline floor, which is made of the device's own ceilings. A gain says how many times as fast "
    "a rung is as the one that it is held against."
)
_RECORDED = "Columns with the name of a GPU are times that the project recorded there, at the sizes of the sources."


def save(found: Sequence[Climb], folder: Path) -> Path:
    """Write each climb as JSON, and the page of all that the folder then holds; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in found:
        write_whole(folder / f"{PREFIX}{each.ladder}.json", json.dumps(each.to_dict(), indent=1) + "\n")
    return write_page(folder)


def write_page(folder: Path) -> Path:
    """The page anew, from the JSON files of a folder alone. `WeftError` where there are none."""
    found = [retold(each) for each in read(folder)]
    lead = ", ".join(dict.fromkeys(f"{each.device}, {each.date[:10]}" for each in found))
    parts = [_contents(found), *(part for each in found for part in _sections(each))]
    write_whole(folder / PAGE_FILE, page("weft ladder", lead, parts))
    return folder / PAGE_FILE


def retold(climb: Climb) -> Climb:
    """The climb with the published figures of today's rungs: a source in one type is not held against another."""
    return replace(climb, steps=[_retold(climb, step) for step in climb.steps])


def _retold(climb: Climb, step: Step) -> Step:
    rung = known_rung(climb.ladder, step.flight, step.name)
    if rung is None:
        return step
    return replace(step, published=[asdict(each) for each in rung.published], published_gain=published_gain(rung))


def _contents(found: Sequence[Climb]) -> str:
    """Links to each ladder and its flights."""
    lines = []
    for each in found:
        flights = ", ".join(
            f'<a href="#{_place(each, flight)}">{html.escape(flight)}</a>' for flight in text.flights(each)
        )
        lines.append(f'<li><a href="#{each.ladder}">{html.escape(each.ladder)}</a>: {flights}</li>')
    return f'<nav aria-label="Contents"><ul>{"".join(lines)}</ul></nav>'


def _place(climb: Climb, flight: str) -> str:
    return f"{climb.ladder}-{flight.replace(' ', '-')}"


def _sections(climb: Climb) -> list[str]:
    others = [
        each for each in recordings() if each.has(climb.ladder) and not (climb.measured and each.device == climb.device)
    ]
    flights = "\n".join(_flight(climb, each, others) for each in text.flights(climb))
    unmeasured = "" if climb.measured else f'<p class="note">{text.NOT_MEASURED}</p>'
    threats = f"<h3>{TITLE}</h3>{paragraphs(of_climb(climb))}"
    about = f"{climb.says} {_TABLE} {_RECORDED if others else ''}"
    environment = "<h3>How it was measured</h3>" + disclosure(climb.environment) if climb.environment else ""
    return [section(climb.ladder, f"{unmeasured}\n{flights}\n{threats}\n{environment}", about, place=climb.ladder)]


def _flight(climb: Climb, flight: str, others: Sequence[Recording]) -> str:
    """Chart, table, remarks, and every rung to unfold."""
    steps = text.steps(climb, flight)
    said = [each for step in steps for each in text.remarks_of(step)]
    unknown = climb.measured and not any(step.share for step in steps)
    caption = _NO_ROOF if unknown else _CHART
    parts = [
        f"<h3>{html.escape(climb.ladder)}, {html.escape(flight)}</h3>",
        f"<figure>{chart(climb, steps, others)}<figcaption>{caption}</figcaption></figure>",
        _table(climb, flight, others).html(),
        _remarks(said),
        *(_rung(climb, step) for step in steps),
    ]
    return f'<section class="flight" id="{_place(climb, flight)}">\n' + "\n".join(filter(None, parts)) + "\n</section>"


def _remarks(said: Sequence[str]) -> str:
    """Sentences, folded where they are many."""
    lines = "".join(f"<li>{html.escape(each)}</li>" for each in said)
    if len(said) <= 2:
        return f'<ul class="note">{lines}</ul>' if said else ""
    return f'<details><summary>{len(said)} remarks</summary><ul class="note">{lines}</ul></details>'


def _table(climb: Climb, flight: str, others: Sequence[Recording]) -> Table:
    """The rows of the terminal, with a column for each recording, and without columns that are empty throughout."""
    at = text.HEADS.index("rate")
    heads = [*text.HEADS[:at], *(each.brief for each in others), *text.HEADS[at:]]
    rows = []
    for step, row in zip(text.steps(climb, flight), text.rows(climb, flight), strict=True):
        found = [each.of(climb.ladder, flight, step.name) for each in others]
        rows.append([*row[:at], *(duration(each[0]) if each else "" for each in found), *row[at:]])
    return Table(heads, [[Cell(cell) for cell in row] for row in rows]).dense()


def _rung(climb: Climb, step: Step) -> str:
    """Idea, picture, kernel, sources and counters of a rung, to unfold."""
    sources = (f"{each['figure']}: {each['source']}" for each in step.published)
    published = "".join(f"<li>{html.escape(each)}</li>" for each in sources)
    parts = [
        f'<p id="{anchor(climb, step)}">{html.escape(step.problem)}</p>',
        _written(climb.ladder, step),
        f"<p>Predicted: {text.share(step.predicted_share)} of the roof; {html.escape(step.because)}.</p>",
        f"<ul>{published}</ul>" if published else "",
        _counters(climb, step),
    ]
    head = f"<b>{step.number} {html.escape(step.name)}</b>: {html.escape(step.title)}"
    return f"<details><summary>{head}</summary>\n" + "\n".join(part for part in parts if part) + "</details>"


def _written(name: str, step: Step) -> str:
    """The rung's file as it is today; nothing where this version of weft has no such rung."""
    found = known_rung(name, step.flight, step.name)
    if found is None:
        return ""
    ideas = "".join(f"<p>{html.escape(idea)}</p>" for idea in found.idea.split("\n\n"))
    summary = f"<summary>kernel, in {html.escape(step.tool)}</summary>"
    source = f"<details>{summary}<pre>{html.escape(found.source)}</pre></details>"
    return f"{ideas}<pre>{html.escape(found.picture)}</pre>{source}"


def _counters(climb: Climb, step: Step) -> str:
    """Counters of this climb, and those of a source of the same kernel."""
    return _counted(step) + _beside(climb, step)


def _beside(climb: Climb, step: Step) -> str:
    """A source's counters, and those of this climb that say the same; nothing for kernels that no source counted."""
    rung = known_rung(climb.ladder, step.flight, step.name)
    known = counters_of(rung) if rung is not None else {}
    if not known:
        return ""
    own = longest(step)
    rows = [[Cell(each.name), Cell(each.of(own)), Cell(each.published(known))] for each in METRICS]
    table = Table(("counter", climb.device, "published, double precision"), rows).dense()
    return f"<p>Published counters: {html.escape(counted_how())}.</p>{table.html()}"


def _counted(step: Step) -> str:
    """The verdict of the counters in a sentence, and each counter; or why there are none."""
    if not step.profile:
        return ""
    from weft_bench.profiling.page import counters
    from weft_bench.profiling.profile import Profile

    found = Profile.from_dict(step.profile)
    if not found.counters:
        return f'<p class="note">no counters: {html.escape(found.missing.get("counters", "none were read"))}</p>'
    return f"<p>{html.escape(found.sentence)}</p>{counters(found).html()}"
