"""`weft micro`: small benchmarks of one mechanism each, on a GPU.

python -m weft micro all --out out/micro
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.arguments import read_device
from weft.cli.terminal import console, errors_in_a_line, progress


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(micro)


def micro(
    names: Annotated[
        list[str],
        typer.Argument(help="launch, coalescing, registers, held, divergence, transfer, shared, l2, pairs, or all."),
    ],
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1, ...; on a CPU launch alone.")] = None,
    budget: Annotated[float, typer.Option(min=0, help="Seconds of samples for each timing.")] = 0.1,
    out: Annotated[Path | None, typer.Option(help="Folder for index.html and micro.json.", file_okay=False)] = None,
) -> None:
    """Measure launches, coalescing, registers, divergence, transfers, bank conflicts, the L2, or counters of pairs."""
    with errors_in_a_line():
        from rich.table import Table
        from rich.text import Text

        from weft_bench.micro.page import save, table
        from weft_bench.micro.suite import run

        place = read_device(device)
        with progress("micro", None) as step:
            micros = run(names, place, budget, step)
        for each in micros.found:
            if each.missing:
                console().print(f"{each.name}: not run: {each.missing}", markup=False)
                continue
            shown = table(each.rows)
            drawn = Table(title=Text(f"{each.name}: {each.says}"), title_justify="left")
            for head in shown.heads:
                drawn.add_column(Text(head), justify="right")
            for row in shown.rows:
                drawn.add_row(*(Text(cell.text) for cell in row))
            console().print(drawn)
            for name, value in each.figures.items():
                console().print(f"  {name}: {value:.4g}", markup=False)
            console().print(f"  {each.finding}\n", markup=False)
            if each.doubt:
                console().print(f"  {each.doubt}\n", markup=False)
        if out is not None:
            typer.echo(f"wrote {save(micros, out)}")
