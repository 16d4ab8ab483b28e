"""Tables and remarks of a run on the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from weft.cli.terminal import console


def print_table(content: Any, title: str, said: str) -> None:
    """A `weft_bench.report.page.Table` with a sentence in words above it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for column, head in enumerate(content.heads):
        numeric = any(row[column].key is not None for row in content.rows)
        table.add_column(
            Text(head), justify="right" if numeric else "left", overflow="fold", no_wrap=numeric or not column
        )
    tones = {"better": "green", "worse": "red", "": ""}
    for row in content.rows:
        table.add_row(*(Text(cell.text, style=tones[cell.tone]) for cell in row))
    console().print(Text(said, style="dim"))
    console().print(table)


def print_skipped(skipped: Mapping[str, str]) -> None:
    """Cases that were left out, by the reason."""
    for why in dict.fromkeys(skipped.values()):
        names = [name for name, said in skipped.items() if said == why]
        typer.echo(f"left out, as {why}: {'; '.join(names)}")
