"""Objects in a notebook: a table of the main facts, and the full text behind a line to click on."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_LEFT = ' style="text-align:left"'


def table(rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """HTML of a table; the first cell of each row is its head. Everything is escaped."""
    top = "".join(f"<th{_LEFT}>{html.escape(head)}</th>" for head in heads)
    lines = [f"<thead><tr>{top}</tr></thead>"] if heads else []
    for first, *rest in rows:
        cells = "".join(f"<td{_LEFT}>{html.escape(str(cell))}</td>" for cell in rest)
        lines.append(f'<tr><th{_LEFT} scope="row">{html.escape(str(first))}</th>{cells}</tr>')
    return f"<table>{''.join(lines)}</table>"


def folded(title: str, text: str) -> str:
    """Text of a terminal, its spaces kept, shown by a click on its title."""
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"
