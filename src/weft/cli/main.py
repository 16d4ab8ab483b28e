"""The `weft` command. What it does stands in the modules that its commands import."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.base.extensions import COMMANDS, found, hint, reader
from weft.base.figures import counted
from weft.base.version import __version__
from weft.cli import cache as cache_commands
from weft.cli.arguments import (
    FunctionName,
    read_contraction,
    read_device,
    read_dtype,
    read_extents,
    read_indices,
    read_operands,
    read_strides,
)
from weft.cli.doctor import doctor
from weft.cli.terminal import MISUSED, console, device_ceilings, end, errors_in_a_line, progress
from weft.cli.tune import tune
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from weft.planner.planner import Choice
    from weft.planner.request import Request
    from weft.spec import Contraction

app = typer.Typer(
    help="Tensor contractions with your own functions fused in.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Backend = Annotated[str, typer.Option(help="auto, triton, cpu or reference.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")]


def main() -> None:
    """Entry point of the `weft` command."""
    app()


def _add_commands() -> None:
    """The commands of weft-tensor-bench, or in their place commands that say what to install."""
    register = found("weft.commands", "bench")
    if register is not None:
        register(app)
        return
    takes_all = {"allow_extra_args": True, "ignore_unknown_options": True}
    for name in COMMANDS:
        app.command(name, context_settings=takes_all, add_help_option=False)(_absent(name))


def _absent(name: str) -> Callable[[], None]:
    def absent() -> None:
        end(hint(f"weft {name}"), MISUSED)

    absent.__doc__ = "Not installed: pip install weft-tensor-bench."
    return absent


def _version(wanted: bool) -> None:
    if wanted:
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
def warm(
    file: Annotated[
        Path | None, typer.Argument(help="Equations with extents, a line each: ab,bc->ac a=3,b=4,c=5", exists=True)
    ] = None,
    dtypes: Annotated[str, typer.Option(help="Of operands, by comma.")] = "float32,float16,bfloat16,float64",
    device: Annotated[str, typer.Option(help="cuda, cuda:1, ...")] = "cuda",
    jobs: Annotated[int | None, typer.Option(min=1, help="Compilers at once; one for each core but one.")] = None,
) -> None:
    """Compile the kernels of a file of equations ahead, and fit the cost model to a GPU that it has no numbers of."""
    with errors_in_a_line():
        from weft.api.describe import read_equations
        from weft.api.describe import warm as compile_ahead

        types = [read_dtype(name, "--dtypes") for name in dtypes.split(",")]
        equations = read_equations(_text(file)) if file is not None else ()
        count = compile_ahead(equations, dtypes=types, device=device, jobs=jobs)
        console().print(f"{counted(count, 'kernel')} compiled", markup=False)
        _fit_cost_model(device)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except UnicodeDecodeError:
        raise UnsupportedError(f"{file} is no text") from None


def _fit_cost_model(device: str) -> None:
    """Fit the cost model to a GPU that it has no numbers of, or say what that needs."""
    import torch

    from weft.planner.coefficients import is_fitted
    from weft.planner.target import target_of

    place = torch.device(device)
    target = target_of("triton", place)
    if is_fitted(target):
        return
    if (fitting := found("weft.tuning", "calibrate")) is None:
        needed = hint("fitting it in some seconds")
        console().print(f"times are predicted as on an H200, not fitted to {target.name}: {needed}", markup=False)
        return
    with progress("fitting the cost model", None) as step:
        fit = fitting.on_device(place, lambda job: step(job.label))
    console().print(fitting.report(fit), markup=False)


@app.command()
def explain(
    equation: Annotated[str, typer.Argument(help='Two operands, e.g. "ecbfa,fd->abcde".')],
    extents: Annotated[str, typer.Option(help="Of every label: a=16,b=16,...")],
    dtype: Annotated[str, typer.Option(help="Of both operands.")] = "float32",
    out_dtype: Annotated[str | None, typer.Option(help="Of the result; the operands' by default.")] = None,
    precision: Annotated[str | None, typer.Option(help="ieee, ieee_bound, tf32, tf32x3, or a type.")] = None,
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
    export: Annotated[
        Path | None, typer.Option(help="Write the kernel as a cubin, with a C header, there.", file_okay=False)
    ] = None,
) -> None:
    """Say what would be planned and how fast it could be, without running anything."""
    with errors_in_a_line():
        from weft.api.describe import choice_for, hypothetical, kernels_for
        from weft.plans.explain.report import explain as text_of
        from weft.plans.explain.report import report as data_of

        functions = {"a_fn": a_fn, "b_fn": b_fn, "epilogue": epilogue}
        request = hypothetical(
            equation,
            read_extents(extents),
            **read_contraction(functions, precision, dtype=dtype, out_dtype=out_dtype, accumulate=accumulate),
            operands=read_operands(operands, read_dtype(dtype)),
            indices=read_indices(indices),
            algebra=algebra,
            strides=(read_strides(strides_a, "--strides-a"), read_strides(strides_b, "--strides-b")),
            workspace_limit=workspace_limit,
            backend=backend,
            target=target,
            schedule=schedule,
        )
        with progress("explain", None) as step:
            step("plan")
            contraction, choice = choice_for(request)
            if ptx or sass:
                step("compile")
                kernels = kernels_for(request, choice)
            if export is not None:
                step("compile")
                files = _exported(request, contraction, choice, export)
        if export is not None:
            typer.echo("\n".join(f"wrote {file}" for file in files))
            return
        if ptx or sass:
            text = reader("kernels.text", "weft explain --ptx")
            typer.echo(text.code_text(kernels, "sass" if sass else "ptx", lines))
            return
        if as_json:
            typer.echo(json.dumps(data_of(request, contraction, choice).to_dict(), indent=1, allow_nan=False))
            return
        typer.echo(text_of(request, contraction, choice))


def _exported(request: Request, contraction: Contraction, choice: Choice | None, folder: Path) -> list[Path]:
    from weft.planner.registry import need_triton

    if choice is None or request.target.kind != "cuda":
        raise UnsupportedError("kernels are exported for NVIDIA GPUs: --target names one")
    need_triton("kernels are compiled")
    found: list[Path] = reader("kernels.export", "weft explain --export").export(request, contraction, choice, folder)
    return found


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


app.command()(tune)
cache_commands.register(app)
app.command()(doctor)
_add_commands()
