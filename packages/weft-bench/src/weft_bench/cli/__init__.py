"""The commands that weft-tensor-bench adds to the `weft` program."""

import typer

from weft_bench.cli import accuracy, bench, demo, ladder, micro, occupancy, profile


def register(app: typer.Typer) -> None:
    """Add all of them to `app`."""
    for module in (demo, bench, accuracy, micro, occupancy, profile, ladder):
        module.register(app)
