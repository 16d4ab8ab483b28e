"""One self-contained HTML page for a run, or for several side by side: sortable tables and plots, nothing fetched."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from weft.base.figures import counted
from weft.machine.statistics import Interval
from weft_bench.records import CaseRecord, Run
from weft_bench.report.figures import figures, group_figures, in_words, scopes
from weft_bench.report.published import IN_WORDS as PUBLISHED_IN_WORDS
from weft_bench.report.published import PUBLISHED, published
from weft_bench.report.scaling import scaling_rows
from weft_bench.report.threats import TITLE, paragraphs, threats
from weft_bench.scaling import SCALING, contender
from weft_bench.two_groups import two_groups

FIGURES_IN_WORDS = (
    "Each row is one figure over all cases of a group, in brackets the interval that holds it with 95 % confidence. "
    "Ratios against a peer say how many times as fast weft is; times over a floor how far from the best possible."
)
_CASES_IN_WORDS = (
    "Each row is one case: microseconds a call of every contender, then how many times as long the peers take. A "
    "click on a column's head sorts by it."
)
SCALING_IN_WORDS = (
    "Each row is a case on a number of ranks: the time of one call, the speed-up over one rank (of work that grows "
    "with the ranks: the scaled one), the speed-up over the ranks, and what Amdahl's law (of growing work: Gustafson's)"
    " says with the parallel share that fits the case best."
)
_REMARKS_IN_WORDS = "What could not be done or came out wrong, and whose samples do not agree on one time."

_CAPTIONS = {
    "swarm": "Time of each peer over weft's, one point a case: above 1 weft is faster. Black: geometric mean (GM1); "
    "red: of the same where the faster of the two is taken case by case (GM2).",
    "roofline": "Every case under the device's ceilings; filled points are weft.",
    "cumulative": "Share of cases whose ratio is at or below x.",
    "exactness": "Each point is a case by one compute type of a peer: its time over weft's, its largest error over "
    "that of the peer's IEEE sums.",
    "throughput": "Bytes read and written in a second, case by case; the line is the measured rate of a copy.",
    "amdahl": "The same work on more ranks: speed-ups, and Amdahl's law fitted to those of each case.",
    "gustafson": "Work that grows with the ranks: scaled speed-ups, and Gustafson's law fitted to those of each case.",
    "fusion": "With each function, relative to the peer without functions; higher is faster.",
}


@dataclass(frozen=True)
class Cell:
    """A table's cell: what it shows, what it sorts by if not its text, and how it looks.

    `tone` is "better" or "worse" for good or bad news, "words" for a text that takes as many lines as it needs.
    """

    text: str
    key: float | None = None
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """Heads and rows; a column of cells with keys is one of numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def dense(self) -> Table:
        """The table without columns that are empty throughout."""
        kept = [at for at in range(len(self.heads)) if any(row[at].text for row in self.rows)]
        return Table([self.heads[at] for at in kept], [[row[at] for at in kept] for row in self.rows])

    def markdown(self) -> str:
        """The table as the project's pages have it."""
        rows = ["| " + " | ".join(cell.text.replace("|", " ") for cell in row) + " |" for row in self.rows]
        return "\n".join([f"| {' | '.join(self.heads)} |", "|-" * len(self.heads) + "|", *rows])

    def html(self) -> str:
        numeric = [any(row[column].key is not None for row in self.rows) for column in range(len(self.heads))]
        heads = "".join(_head(head, number) for head, number in zip(self.heads, numeric, strict=True))
        rows = "\n".join(
            "<tr>" + "".join(_cell(cell, number) for cell, number in zip(row, numeric, strict=True)) + "</tr>"
            for row in self.rows
        )
        return (
            f'<div class="scroll"><table class="sortable"><thead><tr>{heads}</tr></thead>\n'
            f"<tbody>\n{rows}\n</tbody></table></div>"
        )


@dataclass(frozen=True)
class Column:
    """A column of cases that only some runs have: of weft's energy, or of its kernel that has most programs."""

    head: str
    key: str  # in what the result says about itself
    place: str  # "energy" or "kernels"
    how: str = ".3g"

    def of(self, run: Run, case: CaseRecord) -> Any:
        """The value; None where there is none."""
        mine = case.measured(run.ours)
        said: Any = mine.about.get(self.place) if mine is not None else None
        if self.place == "kernels":
            said = max(said, key=lambda kernel: kernel["programs"] * kernel["warps"]) if said else None
        return said.get(self.key) if said else None

    def cell(self, run: Run, case: CaseRecord) -> Cell:
        value = self.of(run, case)
        if isinstance(value, list):
            return Cell(" and ".join(value))
        return _number(value, self.how)


_COLUMNS = (
    Column("weft waves", "waves", "kernels", ".2f"),
    Column("slots used", "slots_used", "kernels", ".0%"),
    Column("blocks an SM", "blocks_per_sm", "kernels", "d"),
    Column("occupancy", "occupancy", "kernels", ".0%"),
    Column("limited by", "limited_by", "kernels"),
    Column("weft J", "joules", "energy"),
    Column("weft W", "watts", "energy", ".0f"),
    Column("weft FLOP/J", "flops_per_joule", "energy"),
    Column("weft EDP J s", "edp", "energy"),
)


def run_page(run: Run, plots: Mapping[str, bytes]) -> str:
    """The page of one run; `plots` holds PNG images by name."""
    lead = f"{run.device}, {run.date}, commit {run.commit or 'unknown'}, {counted(len(run.cases), 'case')}, {run.ended}"
    if run.caveat:
        lead += f" ({run.caveat})"
    parts = [
        section("Figures", figure_table(run, groups=True).html(), FIGURES_IN_WORDS),
        section("Plots", "\n".join(figure(png, _CAPTIONS.get(name, name)) for name, png in plots.items()))
        if plots
        else "",
        section("Scaling", scaling_table(run).html(), SCALING_IN_WORDS) if run.suite == SCALING else "",
        section("Cases", case_table(run).html(), _cases_in_words(run)),
        section("Remarks", remarks(run).html(), _REMARKS_IN_WORDS) if remarks(run).rows else "",
        section(TITLE, paragraphs(threats(run))),
        section("How it was measured", disclosure(run.environment)),
    ]
    return page(f"weft bench {run.suite}", lead, parts)


def _cases_in_words(run: Run) -> str:
    told = any(published(case) for case in run.cases)
    return f"{_CASES_IN_WORDS} {PUBLISHED_IN_WORDS}" if told else _CASES_IN_WORDS


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """A whole page around sections of HTML."""
    return Template(_file("page.html")).substitute(
        title=html.escape(title),
        lead=html.escape(lead),
        style=_file("page.css"),
        script=_file("page.js"),
        body="\n".join(part for part in sections if part),
    )


def section(title: str, content: str, note: str = "", *, place: str = "") -> str:
    """A headed part of a page; `place` is what links name it by."""
    said = f'<p class="note">{html.escape(note)}</p>\n' if note else ""
    named = f' id="{html.escape(place)}"' if place else ""
    return f"<section{named}>\n<h2>{html.escape(title)}</h2>\n{said}{content}\n</section>"


def figure_table(run: Run, *, groups: bool = False) -> Table:
    """The figures that a summary has of the run; with `groups` those of small groups besides."""
    found = dict(figures(run))
    if groups and scopes(run) == [None]:
        for group in run.groups:
            found |= {f"{run.suite}.{group}.{name}": value for name, value in group_figures(run, group).items()}
    return Table(
        ("figure", "value", "interval", "in words"),
        [(Cell(name), Cell(f"{value.value:.3g}", value.value), Cell(interval_text(value)), Cell(in_words(name)))
         for name, value in found.items()],
    )  # fmt: skip


def case_table(run: Run) -> Table:
    """One row a case: each contender's time and how it stands to weft's, the floor, and what the case is."""
    heads = ["case", "group", "equation"]
    heads += [f"{name} us" for name in run.contenders]
    others = [head for head, told in PUBLISHED.items() if any(told(case) for case in run.cases)]
    heads += others
    heads += [f"{peer} / weft" for peer in run.peers]
    heads += ["weft / floor", "floor us", "binds", "weft Tflop/s", "weft TB/s"]
    more = [column for column in _COLUMNS if any(column.of(run, case) is not None for case in run.cases)]
    heads += [column.head for column in more]
    heads += ["extents", "types", "functions", "weft's schedule"]
    return Table(heads, [_case_row(run, case, others, more) for case in run.cases])


def scaling_table(run: Run) -> Table:
    """One row for each case and number of ranks, with what the fitted law says of it."""
    rows = []
    for case, ranks, speedup, law in scaling_rows(run):
        result = case.results[contender(ranks)]
        said = law.predicted(ranks)
        slices = int(result.about.get("slices", 0))
        rows.append(
            [
                Cell(case.name), Cell(str(ranks), ranks), Cell(str(slices or "-"), slices),
                Cell(f"{1e3 * result.seconds.value:.4g}", result.seconds.value),
                Cell(f"{speedup.value:.3g} {interval_text(speedup)}", speedup.value),
                Cell(f"{speedup.value / ranks:.3f}", speedup.value / ranks), Cell(f"{said:.3g}", said),
                Cell(f"{law.parallel:.4f}", law.parallel),
            ]
        )  # fmt: skip
    heads = ("case", "ranks", "slices", "ms", "speed-up", "efficiency", "law", "parallel")
    return Table(heads, rows)


def interval_text(value: Interval) -> str:
    return f"[{value.low:.3g}, {value.high:.3g}]"


def microseconds(value: Interval) -> Cell:
    """Four digits, or all before the point: no exponent."""
    number = 1e6 * value.value
    return Cell(f"{number:.4g}" if number < 1e4 else f"{number:.0f}", number)


def _case_row(run: Run, case: CaseRecord, others: Sequence[str], more: Sequence[Column]) -> list[Cell]:
    mine = case.measured(run.ours)
    row = [Cell(case.name), Cell(case.group), Cell(case.equation)]
    for name in run.contenders:
        result = case.measured(name)
        row.append(microseconds(result.seconds) if result is not None else Cell(""))
    row += [Cell(*(PUBLISHED[head](case) or ("",))) for head in others]
    for peer in run.peers:
        theirs = case.measured(peer)
        row.append(_ratio(theirs.seconds.value / mine.seconds.value) if theirs and mine else Cell(""))
    floor = case.floor.get("seconds")
    rate, moved = (
        case.work[what] / mine.seconds.value / 1e12 if mine and case.work.get(what) else None
        for what in ("flops", "bytes")
    )
    return [
        *row,
        _number(mine.seconds.value / floor if mine and floor else None, ".3g"),
        _number(1e6 * floor if floor else None, ".4g"),
        Cell(str(case.floor.get("binds", ""))),
        _number(rate, ".4g"),
        _number(moved, ".4g"),
        *(column.cell(run, case) for column in more),
        Cell(" ".join(f"{label}={extent}" for label, extent in case.extents)),
        Cell(" ".join((*case.dtypes, case.precision)).strip()),
        Cell(" ".join(f"{hook}={name}" for hook, name in case.functions.items())),
        Cell(str(mine.about.get("schedule") or "") if mine else ""),
    ]


def remarks(run: Run) -> Table:
    """The cases that could not be done or are wrong, and the samples that fall into two groups."""
    rows = [
        (Cell(f"{case.group} {case.name}"), Cell(name), Cell("wrong" if result.wrong else "cannot"),
         Cell(result.wrong or result.cannot))
        for case in run.cases
        for name, result in case.results.items()
        if result.wrong or result.cannot
    ]  # fmt: skip
    rows += [
        (Cell(f"{case.group} {case.name}"), Cell(name), Cell("two groups"), Cell(two.sentence()))
        for case in run.cases
        for name, result in case.results.items()
        if result.samples and (two := two_groups(result.samples)) is not None
    ]
    rows += [(Cell(name), Cell(""), Cell("skipped"), Cell(reason)) for name, reason in run.skipped.items()]
    return Table(("case", "contender", "what", "why"), rows)


def _number(value: float | None, how: str) -> Cell:
    return Cell("") if value is None else Cell(format(value, how), value)


def _ratio(value: float) -> Cell:
    return Cell(f"{value:.3g}", value, "better" if value > 1 else "worse" if value < 1 else "")


def _head(text: str, number: bool) -> str:
    return f'<th scope="col"{_class(number)}><button type="button">{html.escape(text)}</button></th>'


def _cell(cell: Cell, number: bool) -> str:
    key = "" if cell.key is None else f' data-key="{cell.key!r}"'
    return f"<td{_class(number, cell.tone)}{key}>{html.escape(cell.text)}</td>"


def _class(number: bool, tone: str = "") -> str:
    names = " ".join(filter(None, ("number" if number else "", tone)))
    return f' class="{names}"' if names else ""


def figure(png: bytes, caption: str, *, narrow: bool = False) -> str:
    """A picture within the page, with words under it; a `narrow` one can be read where a phone shrinks it."""
    caption = html.escape(caption)
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    kind = ' class="narrow"' if narrow else ""
    image = f'<div class="scroll"><img{kind} src="{source}" alt="{caption}"></div>'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def disclosure(environment: Mapping[str, Any]) -> str:
    """Each item of the environment, to unfold."""
    return "\n".join(
        f"<details><summary>{html.escape(item)}</summary><pre>"
        f"{html.escape(content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False))}"
        "</pre></details>"
        for item, content in environment.items()
    )


@cache
def _file(name: str) -> str:
    return resources.files("weft_bench.report").joinpath("templates", name).read_text(encoding="utf-8")
