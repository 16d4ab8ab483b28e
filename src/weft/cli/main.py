"""The `weft` command. What it does stands in the modules that its commands import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.base.version import __version__
from weft.cli import accuracy as accuracy_command
from weft.cli import bench as bench_commands
from weft.cli import cache as cache_commands
from weft.cli import doctor as doctor_command
from weft.cli import ladder as ladder_command
from weft.cli import micro as micro_command
from weft.cli import occupancy as occupancy_command
from weft.cli import profile as profile_command
from weft.cli import tune as tune_commands
from weft.cli.arguments import (
    read_device,
    read_dtype,
    read_extents,
    read_function,
    read_indices,
    read_operands,
    read_precision,
    read_strides,
    read_work,
)
from weft.cli.terminal import INTERRUPTED, WRONG, console, device_ceilings, end, errors_in_a_line, progress
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from weft.bench.records import CaseRecord

app = typer.Typer(
    help="Tensor contractions with your own functions fused in.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Backend = Annotated[str, typer.Option(help="auto, triton, cpu or reference.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")]
FunctionName = Annotated[
    str | None, typer.Option(help="A function of torch or weft.functions, by name; several with commas.")
]


def main() -> None:
    """Entry point of the `weft` command."""
    app()


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and end.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    cases: Annotated[str | None, typer.Option(help="Which, by number or name: 1,4,20-30 or example. All.")] = None,
    backend: Backend = "auto",
    device: Device = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers there.", dir_okay=False)] = None,
    work: Annotated[str | None, typer.Option(help="Most multiply-adds a case (1e7, 10M); larger are scaled.")] = None,
    budget: Annotated[float, typer.Option(min=0, help="Seconds of samples for each timing.")] = 0.15,
    hot: Annotated[bool, typer.Option("--hot", help="Leave operands in the cache from run to run.")] = False,
) -> None:
    """Run the main job: the paper's fused example and the TCCG suite, verified and timed beside torch.einsum."""
    with errors_in_a_line():
        from weft.cli import demo as job
        from weft.cli import demo_report as report

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
                json_file.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
        if demo.run.ended == "interrupted":
            end("interrupted", INTERRUPTED)
        if wrong := [f"{case.name} ({report.failure(case)})" for case, _ in demo.run.failures()]:
            end(f"wrong results: {', '.join(wrong)}", WRONG)
        if demo.run.ended != "finished":
            end(demo.run.ended, WRONG)


@app.command()
def warm(
    file: Annotated[
        Path | None, typer.Argument(help="Equations with extents, a line each: ab,bc->ac a=3,b=4,c=5", exists=True)
    ] = None,
    dtypes: Annotated[str, typer.Option(help="Of operands, by comma.")] = "float32,float16,bfloat16,float64",
    device: Annotated[str, typer.Option(help="cuda, cuda:1, ...")] = "cuda",
    jobs: Annotated[int | None, typer.Option(min=1, help="Compilers at once; one for each core but one.")] = None,
) -> None:
    """Compile the kernels at hand ahead, and those that a file of equations needs: no first call waits for them."""
    with errors_in_a_line():
        from weft.api.warm import read_equations
        from weft.api.warm import warm as compile_ahead

        types = [read_dtype(name, "--dtypes") for name in dtypes.split(",")]
        equations = read_equations(file.read_text(), types) if file is not None else ()
        count = compile_ahead(equations, dtypes=types, device=device, jobs=jobs)
        console().print(f"{count} kernels at hand are compiled", markup=False)


@app.command()
def explain(
    equation: Annotated[str, typer.Argument(help='Two operands, e.g. "ecbfa,fd->abcde".')],
    extents: Annotated[str, typer.Option(help="Of every label: a=16,b=16,...")],
    dtype: Annotated[str, typer.Option(help="Of both operands.")] = "float32",
    out_dtype: Annotated[str | None, typer.Option(help="Of the result; the operands' by default.")] = None,
    precision: Annotated[str | None, typer.Option(help="ieee, tf32, tf32x3, or the type of products.")] = None,
    accumulate: Annotated[str | None, typer.Option(help="Type of the sums.")] = None,
    a_fn: FunctionName = None,
    b_fn: FunctionName = None,
    epilogue: FunctionName = None,
    operands: Annotated[
        str | None, typer.Option(help="Of functions: their modes and types, bias=n:float16,scale=m.")
    ] = None,
    indices: Annotated[str | None, typer.Option(help="Coordinates that functions take: i=m,j=n.")] = None,
    algebra: Annotated[str, typer.Option(help="max_plus, min_plus, log, tropical, ...: what replaces product and sum.")]
    = "plus_times",
    strides_a: Annotated[str | None, typer.Option(help="Of A in elements, m=1,k=64; contiguous by default.")] = None,
    strides_b: Annotated[str | None, typer.Option(help="Of B.")] = None,
    workspace_limit: Annotated[int | None, typer.Option(min=0, help="Most bytes besides the result.")] = None,
    backend: Backend = "auto",
    target: Annotated[
        str | None, typer.Option(help="Plan for another machine's GPU: h100, h200, a100, rtx4090, b200, sm_90, ...")
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="Force one of the candidates, by its printed form.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Print each kernel's loop as PTX, and its mix.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="The same as the GPU's machine code.")] = False,
    lines: Annotated[int, typer.Option(min=0, help="Most lines of machine code for each kernel.")] = 80,
) -> None:
    """Say what would be planned and how fast it could be, without running anything."""
    with errors_in_a_line():
        from weft.api.describe import choice_for, hypothetical
        from weft.plans.explain.data import report as data_of
        from weft.plans.explain.report import explain as text_of

        request = hypothetical(
            equation,
            read_extents(extents),
            dtype=read_dtype(dtype),
            out_dtype=read_dtype(out_dtype, "--out-dtype") if out_dtype is not None else None,
            precision=read_precision(precision),
            accumulate=read_dtype(accumulate, "--accumulate") if accumulate is not None else None,
            a_fn=read_function(a_fn),
            b_fn=read_function(b_fn),
            epilogue=read_function(epilogue),
            operands=read_operands(operands, read_dtype(dtype)),
            indices=read_indices(indices),
            algebra=algebra,
            strides=(read_strides(strides_a, "--strides-a"), read_strides(strides_b, "--strides-b")),
            workspace_limit=workspace_limit,
            backend=backend,
            target=target,
            schedule=schedule,
        )
        contraction, choice = choice_for(request)
        if ptx or sass:
            from weft.api.describe import kernels_for
            from weft.plans.kernels.text import code_text

            typer.echo(code_text(kernels_for(request, choice), "sass" if sass else "ptx", lines))
            return
        if as_json:
            typer.echo(json.dumps(data_of(request, contraction, choice).to_dict(), indent=1, allow_nan=False))
            return
        typer.echo(text_of(request, contraction, choice))


@app.command()
def info(
    device: Device = None,
    measure: Annotated[bool, typer.Option(help="Measure ceilings that are not known yet: some seconds, once.")] = True,
    refresh: Annotated[bool, typer.Option(help="Measure them anew.")] = False,
) -> None:
    """Show the device, its ceilings, versions, and the place and size of the cache."""
    with errors_in_a_line():
        from weft.cli.info import describe

        place = read_device(device)
        typer.echo(describe(place, device_ceilings(place, may_measure=measure, refresh=refresh)))


bench_commands.register(app)
accuracy_command.register(app)
tune_commands.register(app)
cache_commands.register(app)
doctor_command.register(app)
micro_command.register(app)
occupancy_command.register(app)
profile_command.register(app)
ladder_command.register(app)
