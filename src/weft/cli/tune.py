"""`weft tune`.

On a GPU machine, before a benchmark that is to use what tuning finds:

    WEFT_CACHE_DIR=out/cache python -m weft tune --suite tccg --out out/tune-tccg.json
    WEFT_CACHE_DIR=out/cache python -m weft bench tccg

Ctrl-C keeps what was measured: the same command goes on from there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from weft.base.extensions import provided
from weft.base.figures import duration
from weft.cli.arguments import (
    FunctionName,
    read_contraction,
    read_device,
    read_extents,
    read_work,
    split,
    split_cases,
)
from weft.cli.terminal import INTERRUPTED, WRONG, console, end, errors_in_a_line, progress
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

    from weft.cli.tuning import Job, TuningRun
    from weft.tune.candidates import Effort

CPU_WORK = 1 << 22  # multiply-adds of a suite's case on a CPU, as in `weft bench`


def tune(
    equation: Annotated[str | None, typer.Argument(help='Two operands, e.g. "ecbfa,fd->abcde".')] = None,
    extents: Annotated[str | None, typer.Option(help="Of every label: a=16,b=16,...")] = None,
    dtype: Annotated[str, typer.Option(help="Of both operands.")] = "float32",
    out_dtype: Annotated[str | None, typer.Option(help="Of the result; the operands' by default.")] = None,
    precision: Annotated[str | None, typer.Option(help="ieee, ieee_bound, tf32, tf32x3, or a type.")] = None,
    accumulate: Annotated[str | None, typer.Option(help="Type of the sums.")] = None,
    a_fn: FunctionName = None,
    b_fn: FunctionName = None,
    epilogue: FunctionName = None,
    workspace_limit: Annotated[int | None, typer.Option(min=0, help="Most bytes besides the result.")] = None,
    suite: Annotated[str | None, typer.Option(help="Tune the cases of a suite: weft bench --list shows them.")] = None,
    cases: Annotated[str | None, typer.Option(help="Some of its cases: 1,20-30 (TCCG) or names with *.")] = None,
    pairs: Annotated[str | None, typer.Option(help="Of the suite: fp16_fp32,bf16_fp32,tf32,fp64,...")] = None,
    work: Annotated[str | None, typer.Option(help="Most multiply-adds a case (1e7, 10M); larger are scaled.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")] = None,
    backend: Annotated[str, typer.Option(help="auto, triton or cpu.")] = "auto",
    leaders: Annotated[int, typer.Option(min=1, help="Candidates by the cost model.")] = 12,
    samples: Annotated[int, typer.Option(min=0, help="Candidates drawn at random from the rest.")] = 12,
    seed: Annotated[int, typer.Option(help="Of that draw, and of the operands looked at.")] = 0,
    budget: Annotated[float, typer.Option(min=0, help="Seconds for each case; then no candidate is begun.")] = 30.0,
    jobs: Annotated[int | None, typer.Option(min=0, help="Compilers at once; one for each core but one.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what has a stored schedule, too.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the record (of --calibrate the numbers) there, as JSON.", dir_okay=False)
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure random candidates, and fit the cost model to this device.")
    ] = False,
) -> None:
    """Measure candidates, check them, and store the fastest for later plans: of one equation or of a suite."""
    with errors_in_a_line():
        from weft.cli.tuning import of_equation
        from weft.tune.candidates import Effort

        place = read_device(device)
        if equation is None and suite is None:
            raise UnsupportedError("name an equation with --extents, or a --suite")
        if equation is not None and suite is not None:
            raise UnsupportedError(f"an equation and --suite {suite} are given: name one of the two")
        skipped: dict[str, str] = {}
        if suite is not None:
            of_suite = provided("weft.tuning", "suite", "--suite")
            most = read_work(work) or (CPU_WORK if place.type == "cpu" else None)
            types, only = split(pairs), split_cases(cases)
            chosen, skipped = of_suite(suite, types, only, work=most, device=place, backend=backend)
        else:
            if extents is None:
                raise UnsupportedError("an equation needs --extents: a=16,b=16,...")
            functions = {"a_fn": a_fn, "b_fn": b_fn, "epilogue": epilogue}
            chosen = [of_equation(
                str(equation), read_extents(extents), workspace_limit=workspace_limit,
                backend=backend if backend != "auto" else "triton" if place.type == "cuda" else "cpu",
                **read_contraction(functions, precision, dtype=dtype, out_dtype=out_dtype, accumulate=accumulate),
            )]  # fmt: skip
        effort = Effort(leaders=leaders, samples=samples, seed=seed, budget=budget, jobs=jobs)
        if calibrate:
            _calibrate(chosen, effort, out)
            return
        _finish(_run(chosen, effort, place, suite or "", skipped, again, out))


def _run(
    jobs: list[Job],
    effort: Effort,
    place: torch.device,
    suite: str,
    skipped: dict[str, str],
    again: bool,
    out: Path | None,
) -> TuningRun:
    from weft.cli.tuning import TuningRun, go, load, save

    run = TuningRun.on(place, effort, suite)
    run.skipped = skipped
    if out is not None and out.is_file() and not again:
        before = load(out)
        then, now = _kind(before), _kind(run.document())
        others = [what for what in now if then[what] != now[what]]
        if others:
            raise UnsupportedError(
                f"{out} is of another {' and another '.join(others)}: name another file, or --again replaces it"
            )
        run.cases = [case for case in before["cases"] if "failed" not in case]

    def keep(run: TuningRun) -> None:
        if out is not None:
            save(run, out)
        if run.ended == "running":
            typer.echo(_line(run.cases[-1]))

    with progress("tuning", len(jobs)) as step:
        go(run, jobs, again=again, begun=lambda job: step(job.label), kept=keep)
    return run


def _kind(record: dict[str, Any]) -> dict[str, Any]:
    """The fields that records of one tuning have in common.

    A record that git tracks changes the tree as it grows, and how many compilers are at work changes nothing.
    """
    effort = {what: said for what, said in record["effort"].items() if what != "jobs"}
    commit = (record.get("commit") or "").removesuffix("+changes")
    return {"device": record["device"], "suite": record["suite"], "commit": commit, "effort": effort}


def _line(case: dict[str, Any]) -> str:
    """A case, as it is done."""
    name = f"{case['group']} {case['name']}".strip()
    if "failed" in case:
        return f"{name:<24} {case['failed']}"
    ratio = f"{case['ratio']:.3f} of the model's choice" if case["ratio"] else "the model's choice unknown"
    how = "stored" if case.get("stored") else f"{case['tried']} tried in {case['spent']:.1f} s"
    return f"{name:<24} {duration(case['winner']['seconds'])}, {ratio}, {how}"


def _calibrate(jobs: list[Job], effort: Effort, out: Path | None) -> None:
    """Measure random candidates, and fit the cost model to them."""
    from weft.base.files import hand_out

    fitting = provided("weft.tuning", "calibrate", "--calibrate")
    with progress("measuring", len(jobs)) as step:
        samples, failed = fitting.sampled(jobs, effort, lambda job: step(job.label))
    for name, reason in failed.items():
        typer.echo(f"not measured: {name}: {reason}")
    fit = fitting.calibrated(samples, jobs[0].target)
    typer.echo(fitting.report(fit))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        hand_out(out, json.dumps(fitting.shipped(fit), indent=1) + "\n")
        typer.echo(f"wrote {out}")


def _print(run: TuningRun) -> None:
    from rich.table import Table

    from weft.cli.tuning import figures

    table = Table(title=Text(f"tuned on {run.device['name']}"), title_justify="left")
    for head in ("case", "model's choice", "fastest", "ratio", "tried", "spent", "schedule"):
        table.add_column(head, justify="left" if head in ("case", "schedule") else "right", overflow="fold")
    for case in run.cases:
        name = f"{case['group']} {case['name']}".strip()
        if "failed" in case:
            table.add_row(Text(name), *[""] * 5, Text(case["failed"], style="red"))
            continue
        model, fastest = case["model"], case["winner"]
        table.add_row(
            Text(name),
            duration(model["seconds"]) if model["seconds"] else "unknown",
            duration(fastest["seconds"]),
            f"{case['ratio']:.3f}" if case["ratio"] else "",
            "stored" if case.get("stored") else f"{case['tried']} of {case['legal']}",
            f"{case['spent']:.1f} s",
            Text(fastest["schedule"]),
        )
    console().print(table)
    for name, value in figures(run.document()).items():
        typer.echo(f"{name or 'ratio'} = {value.value:.3f} ({value.low:.3f} to {value.high:.3f})")
    for name, reason in run.skipped.items():
        typer.echo(f"left out: {name}: {reason}")


def _finish(run: TuningRun) -> None:
    """Print what was found, and end the command with the exit code that fits."""
    _print(run)
    if run.ended == "interrupted":
        end("interrupted; what was measured is kept: the same command goes on", INTERRUPTED)
    if run.ended != "finished":
        end(f"{run.ended}; the same command goes on without that candidate", WRONG)
    failed = [f"{case['group']} {case['name']}".strip() for case in run.cases if "failed" in case]
    if failed:
        end(f"not tuned: {', '.join(failed)}", WRONG)
