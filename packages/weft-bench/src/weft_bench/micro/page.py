"""Microbenchmarks as tables, pictures and a page, beside the published figures of an A100."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.base.figures import duration
from weft_bench.micro.record import JSON_FILE, Micro, Micros, Row
from weft_bench.micro.threats import of_micros
from weft_bench.records import write_whole
from weft_bench.report.page import Cell, Table, disclosure, figure, page, section
from weft_bench.report.threats import TITLE, paragraphs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_FILE = "index.html"
_INK = ("#0b6e99", "#c2570c", "#6a51a3", "#2d6a4f")


def save(micros: Micros, folder: Path) -> Path:
    """Write JSON and a page into a folder; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / JSON_FILE, json.dumps(micros.to_dict(), indent=1, allow_nan=False) + "\n")
    return write_page(micros, folder)


def write_page(micros: Micros, folder: Path) -> Path:
    """The page alone; returns it."""
    known = [micros.device, micros.date, micros.commit and f"commit {micros.commit}"]
    parts = [_section(each) for each in micros.found]
    parts.append(section(TITLE, paragraphs(of_micros(micros))))
    if micros.environment:
        parts.append(section("How it was measured", disclosure(micros.environment)))
    write_whole(folder / PAGE_FILE, page("weft micro", f"{', '.join(filter(None, known))}: one mechanism each", parts))
    return folder / PAGE_FILE


def table(rows: Sequence[Row]) -> Table:
    """Rows with times as durations and other numbers with four digits; heads lose the unit that cells have."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Table([_head(name) for name in names], [[_cell(name, row.get(name)) for name in names] for row in rows])


def picture(found: Micro) -> Figure | None:
    """The measured values over the varied one, the published ones dashed; None where that is no number."""
    from weft_bench.report.drawing import NARROW, legend_below, new_axes, plain_logarithm

    numeric = [row for row in found.rows if isinstance(row.get(found.x), int | float)]
    if not numeric:
        return None
    drawn, axes = new_axes(f"{found.name} on {found.device}", width=NARROW)
    for name, ink in zip(found.y, _INK, strict=False):
        for rows, style, whose in ((numeric, "o-", found.device), (found.published, "s--", "A100, published")):
            points = [
                (float(x), float(y))
                for row in rows
                if isinstance(x := row.get(found.x), int | float) and isinstance(y := row.get(name), int | float)
            ]
            if points:
                xs, ys = zip(*points, strict=True)
                axes.plot(
                    xs, ys, style, color=ink, markersize=4, alpha=1 if style == "o-" else 0.5, label=f"{name}, {whose}"
                )
    plain_logarithm(axes.xaxis, axes.set_xscale)
    plain_logarithm(axes.yaxis, axes.set_yscale)
    axes.set_xlabel(found.x)
    legend_below(drawn, axes, columns=1)
    return drawn


def _section(found: Micro) -> str:
    if found.missing:
        return section(found.name, f'<p class="note">not run: {html.escape(found.missing)}</p>')
    parts = [table(found.rows).html()]
    if found.doubt:
        parts.append(f'<p class="note">{html.escape(found.doubt)}</p>')
    try:
        from weft_bench.report.drawing import png

        drawn = picture(found)
        if drawn is not None:
            words = f"{found.says}, over {found.x}; dashed: an A100 as published."
            parts.append(figure(png(drawn), words, narrow=True))
    except ImportError as error:
        parts.append(f'<p class="note">{html.escape(f"no picture: {error}")}</p>')
    if found.figures:
        parts.append(
            Table(("figure", "value"), [(Cell(name), _cell("", value)) for name, value in found.figures.items()]).html()
        )
    if found.published:
        parts.append(f'<p class="note">Published: {html.escape(found.source)}</p>{table(found.published).html()}')
    return section(found.name, "\n".join(parts), f"{found.says}: {found.finding}.")


_SECONDS = {" us": 1e-6, " ms": 1e-3}  # of the unit that a column's name ends with


def _head(name: str) -> str:
    return name[:-3] if name[-3:] in _SECONDS else name


def _cell(name: str, value: float | str | None) -> Cell:
    if value is None:
        return Cell("")
    if isinstance(value, str):
        return Cell(value)
    unit = _SECONDS.get(name[-3:])
    return Cell(f"{value:.4g}" if unit is None else duration(unit * value), float(value))
