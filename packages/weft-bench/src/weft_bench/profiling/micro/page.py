"""Microbenchmarks as tables, pictures and a page, beside the published figures of an A100."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft_bench.profiling.micro.record import Micro, Row
from weft_bench.records import write_whole
from weft_bench.report.page import Cell, Table, figure, page, section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JSON_FILE, PAGE_FILE = "micro.json", "index.html"
_INK = ("#0b6e99", "#c2570c", "#6a51a3", "#2d6a4f")


def save(found: Sequence[Micro], folder: Path) -> Path:
    """Write JSON and a page into a folder; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / JSON_FILE, json.dumps([each.to_dict() for each in found], indent=1, allow_nan=False) + "\n")
    device = found[0].device if found else ""
    parts = [_section(each) for each in found]
    write_whole(folder / PAGE_FILE, page("weft micro", f"{device}: one mechanism each", parts))
    return folder / PAGE_FILE


def table(rows: Sequence[Row]) -> Table:
    """Rows as they are, numbers with four digits."""
    heads = list(dict.fromkeys(name for row in rows for name in row))
    return Table(heads, [[_cell(row.get(head)) for head in heads] for row in rows])


def picture(found: Micro) -> Figure | None:
    """The measured values over the varied one, the published ones dashed; None where that is no number."""
    from weft_bench.report.drawing import new_axes, plain_logarithm

    numeric = [row for row in found.rows if isinstance(row.get(found.x), int | float)]
    if not numeric:
        return None
    drawn, axes = new_axes(f"{found.name} on {found.device}", width=7)
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
    axes.legend(fontsize=8, frameon=False)
    return drawn


def _section(found: Micro) -> str:
    if found.missing:
        return section(found.name, f'<p class="note">not run: {html.escape(found.missing)}</p>')
    parts = [table(found.rows).html()]
    try:
        from weft_bench.report.drawing import png

        drawn = picture(found)
        if drawn is not None:
            parts.append(figure(png(drawn), f"{found.says}, over {found.x}; dashed: an A100 as published."))
    except ImportError as error:
        parts.append(f'<p class="note">{html.escape(f"no picture: {error}")}</p>')
    if found.figures:
        parts.append(
            Table(("figure", "value"), [(Cell(name), _cell(value)) for name, value in found.figures.items()]).html()
        )
    if found.published:
        parts.append(f'<p class="note">Published: {html.escape(found.source)}</p>{table(found.published).html()}')
    return section(found.name, "\n".join(parts), f"{found.says}: {found.finding}.")


def _cell(value: float | str | None) -> Cell:
    if value is None:
        return Cell("")
    return Cell(value) if isinstance(value, str) else Cell(f"{value:.4g}", float(value))
