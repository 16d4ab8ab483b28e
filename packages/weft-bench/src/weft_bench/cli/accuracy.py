"""`weft accuracy`: how far each precision is from float64, for sums of growing length.

    weft accuracy --out results/h200/accuracy        # on the H200: a minute
    weft accuracy --device cpu --out out/accuracy    # the precisions that a CPU has
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.arguments import read_device
from weft.cli.terminal import WRONG, end, errors_in_a_line, progress

DEPTHS = tuple(2**power for power in range(6, 17))  # K from 64 to 65536
SIDE = 256  # M and N


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(accuracy)


def accuracy(
    out: Annotated[Path, typer.Option(help="Folder for accuracy.json and README.md.", file_okay=False)] = Path(
        "out/accuracy"
    ),
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")] = None,
    most: Annotated[int, typer.Option(min=64, help="Longest sum.")] = DEPTHS[-1],
    side: Annotated[int, typer.Option(min=16, help="Rows of both matrices.")] = SIDE,
) -> None:
    """Measure each precision's error against float64 for growing sums, and write a table."""
    with errors_in_a_line():
        from weft_bench.accuracy import measured, write

        place = read_device(device)
        depths = [k for k in DEPTHS if k <= most]
        with progress("accuracy", 2 * len(depths)) as step:
            rows = measured(place, depths, side, step)
        write(rows, out, place, side)
        typer.echo(f"{len(rows)} rows in {out}")
        over = [row for row in rows if row.over_bound is not None and not row.over_bound <= 1]
        if over:
            end(f"past its bound: {', '.join(f'{row.precision} K={row.k}' for row in over)}", WRONG)
