"""The `weft` command. What it does stands in the modules that its commands import."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from weft.errors import DTypeError, NotationError, UnsupportedError, WeftError

if TYPE_CHECKING:
    import torch

    from weft.perf.device import Ceilings

WRONG, MISUSED, INTERRUPTED = 1, 2, 130  # exit codes
_PLAIN_WIDTH = 100  # columns of output that no terminal shows

app = typer.Typer(
    help="Tensor contractions with your own functions fused in.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Backend = Annotated[str, typer.Option(help="auto, triton, cpu or reference.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")]
FunctionName = Annotated[str | None, typer.Option(help="A function of torch or torch.nn.functional, by name.")]


def main() -> None:
    """Entry point of the `weft` command."""
    app()


def _version(asked: bool) -> None:
    if asked:
        import weft

        typer.echo(weft.__version__)
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
    work: Annotated[int | None, typer.Option(min=1, help="Most multiply-adds a case; larger ones are scaled.")] = None,
    budget: Annotated[float, typer.Option(min=0, help="Seconds of samples for each timing.")] = 0.15,
    hot: Annotated[bool, typer.Option("--hot", help="Leave operands in the cache from run to run.")] = False,
) -> None:
    """Run the main job: the paper's fused example and the TCCG suite, verified and timed beside torch.einsum."""
    with _errors_in_a_line():
        from weft import demo as job
        from weft import demo_report as report

        if json_file is not None and not json_file.parent.is_dir():
            raise UnsupportedError(f"{json_file.parent} is no directory")
        chosen = job.select(cases)
        settings = job.settings_for(device, backend, work, budget, "hot" if hot else "cold")
        console = _console()
        known = _ceilings(settings.device) if settings.backend != "triton" or settings.device.type == "cuda" else None
        outcomes: list[job.Outcome] = []
        try:
            with _progress("contractions", len(chosen)) as step:
                for outcome in job.run(chosen, settings, known, before=lambda case: step(case.name)):
                    outcomes.append(outcome)
                    if outcome.case.name == job.EXAMPLE.name:
                        console.print(outcome.plan.explain(), markup=False, highlight=False, soft_wrap=True)
                        console.print(f"measured    {report.sentence(outcome)}\n", markup=False, soft_wrap=True)
        finally:
            rows = report.suite(outcomes)
            if rows:
                console.print(report.table(rows, settings, console.width))
            if json_file is not None:
                complete = len(outcomes) == len(chosen)
                document = report.as_json(outcomes, settings, known, complete=complete)
                json_file.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
        wrong = [f"{outcome.case.name} ({outcome.failure})" for outcome in outcomes if outcome.failure]
        if wrong:
            typer.echo(f"weft: wrong results: {', '.join(wrong)}", err=True)
            raise typer.Exit(WRONG)


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
    workspace_limit: Annotated[int | None, typer.Option(min=0, help="Most bytes besides the result.")] = None,
    backend: Backend = "auto",
    target: Annotated[str | None, typer.Option(help="Plan for another machine's GPU: sm_80 or sm_90.")] = None,
) -> None:
    """Say what would be planned for contiguous operands and how fast it could be, without running anything."""
    with _errors_in_a_line():
        from weft.hypothetical import choice_for, hypothetical
        from weft.plan.explain import explain as text_of

        request = hypothetical(
            equation,
            _extents(extents),
            dtype=_dtype(dtype),
            out_dtype=_dtype(out_dtype) if out_dtype is not None else None,
            precision=precision if precision in (None, "ieee", "tf32", "tf32x3") else _dtype(precision),
            accumulate=_dtype(accumulate) if accumulate is not None else None,
            a_fn=_function(a_fn),
            b_fn=_function(b_fn),
            epilogue=_function(epilogue),
            workspace_limit=workspace_limit,
            backend=backend,
            target=target,
        )
        typer.echo(text_of(request, *choice_for(request)))


@app.command()
def info(
    device: Device = None,
    measure: Annotated[bool, typer.Option(help="Measure ceilings that are not known yet: some seconds, once.")] = True,
    refresh: Annotated[bool, typer.Option(help="Measure them anew.")] = False,
) -> None:
    """Show the device, its ceilings, versions, and the place and size of the cache."""
    with _errors_in_a_line():
        from weft.demo import settings_for
        from weft.info import describe

        place = settings_for(device).device
        typer.echo(describe(place, _ceilings(place, may_measure=measure, refresh=refresh)))


def _ceilings(device: torch.device, *, may_measure: bool = True, refresh: bool = False) -> Ceilings | None:
    """The device's ceilings, measured with a progress line where they must be; None where none are to be had."""
    from weft.perf.device import ceilings

    with _progress(f"ceilings of {device}", None) as step:
        try:
            return ceilings(device, refresh=refresh, may_measure=may_measure, progress=step)
        except UnsupportedError:
            return None


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


@contextmanager
def _progress(title: str, total: int | None) -> Iterator[Callable[[str], None]]:
    """A progress bar on standard error; call what it yields with the name of each step as that begins."""
    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *([BarColumn(), MofNCompleteColumn()] if total is not None else []),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(title, total=total)
        begun = 0

        def step(name: str) -> None:
            nonlocal begun
            bar.update(task, description=f"{title}: {name}", completed=begun)
            begun += 1

        yield step


@contextmanager
def _errors_in_a_line() -> Iterator[None]:
    """What weft raises on purpose becomes one line and exit code 2; Ctrl-C ends without a traceback."""
    try:
        yield
    except WeftError as error:
        _end(" ".join(str(error).split()), MISUSED)
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED)


def _end(message: str, code: int) -> NoReturn:
    typer.echo(f"weft: {message}", err=True)
    raise typer.Exit(code)


def _extents(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        label, _, extent = (piece.strip() for piece in part.partition("="))
        if not label or not extent.isdigit():
            raise NotationError(f"'{part.strip()}' in --extents is not of the form a=16")
        found[label] = int(extent)
    return found


def _dtype(name: str) -> torch.dtype:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise DTypeError(f"'{name}' is no dtype of torch: float16, bfloat16, float32, float64, complex64, int8, ...")
    return found


def _function(name: str | None) -> Callable[..., Any] | None:
    if name is None:
        return None
    import torch

    found = getattr(torch.nn.functional, name, None) or getattr(torch, name, None)
    if not callable(found):
        raise NotationError(f"neither torch.nn.functional nor torch has a function '{name}'")
    return found
