"""`weft demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.arguments import read_work
from weft.cli.terminal import INTERRUPTED, WRONG, console, device_ceilings, end, errors_in_a_line, progress
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from weft_bench.records import CaseRecord


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(demo)


def demo(
    cases: Annotated[str | None, typer.Option(help="Which, by number or name: 1,4,20-30 or example. All.")] = None,
    backend: Annotated[str, typer.Option(help="auto, triton, cpu or reference.")] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers there.", dir_okay=False)] = None,
    work: Annotated[str | None, typer.Option(help="Most multiply-adds a case (1e7, 10M); larger are scaled.")] = None,
    budget: Annotated[float, typer.Option(min=0, help="Seconds of samples for each timing.")] = 0.15,
    hot: Annotated[bool, typer.Option("--hot", help="Leave operands in the cache from run to run.")] = False,
) -> None:
    """Run the main job: the paper's fused example and the TCCG suite, verified and timed beside torch.einsum."""
    with errors_in_a_line():
        from weft_bench.cli import demo_job as job
        from weft_bench.cli import demo_report as report
        from weft_bench.records import write_whole

        if json_file is not None and not json_file.parent.is_dir():
            raise UnsupportedError(f"{json_file.parent} is no directory")
        settings = job.settings_for(device, backend, read_work(work), budget, "hot" if hot else "cold")
        chosen = job.select(cases, settings)
        screen = console()
        interpreted = settings.backend == "triton" and settings.device.type != "cuda"
        known = None if interpreted else device_ceilings(settings.device)

        def measured(record: CaseRecord, explained: str) -> None:
            if record.name == job.EXAMPLE.name:
                screen.print(explained, markup=False, highlight=False, soft_wrap=True)
                screen.print(f"measured    {report.sentence(record)}\n", markup=False, soft_wrap=True)

        demo = job.Demo(chosen, settings, known)
        try:
            with progress("contractions", len(chosen)) as step:
                demo.go(step, measured)
        finally:
            rows = report.suite(demo.run)
            if rows:
                screen.print(report.table(rows, settings, demo.run.device, screen.width))
            if json_file is not None:
                document = report.as_json(demo.run, settings, complete=demo.complete)
                write_whole(json_file, json.dumps(document, indent=1, allow_nan=False) + "\n")
        if demo.run.ended == "interrupted":
            end("interrupted", INTERRUPTED)
        if wrong := [f"{case.name} ({report.failure(case)})" for case, _ in demo.run.failures()]:
            end(f"wrong results: {', '.join(wrong)}", WRONG)
        if demo.run.ended != "finished":
            end(demo.run.ended, WRONG)
