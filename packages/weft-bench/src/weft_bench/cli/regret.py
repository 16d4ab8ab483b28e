"""`weft bench regret`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import read_device, split
from weft.cli.terminal import INTERRUPTED, WRONG, end, errors_in_a_line, progress
from weft.errors import WeftError
from weft_bench.cli.tables import print_skipped, print_table

if TYPE_CHECKING:
    import torch

    from weft_bench.regret.measuring import Regret
    from weft_bench.regret.record import RegretRun, Row
    from weft_bench.regret.workloads import Workload

SUITE = "regret"


def regret(
    only: Annotated[str | None, typer.Option(help="Workloads with one of these in their name: MPS,shapes.")] = None,
    caches: Annotated[
        str, typer.Option(help="empty: a process without caches; kept: the next, with those.")
    ] = "empty,kept",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="Of a workload's calls, after the first.")] = 6.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch on a CPU.")] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Seconds of the whole run; what does not fit is left out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for regret.json; out/regret by default.", file_okay=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder, if any.")] = False,
) -> None:
    """Measure the time that calls take from the first of a fresh process on, over torch's for as many calls."""
    begun = time.monotonic()
    with errors_in_a_line():
        from weft_bench.regret.measuring import Asked, Regret
        from weft_bench.regret.record import CACHES, FILE, continued, load
        from weft_bench.regret.workloads import chosen

        states, words = split(caches), split(only)
        if not states or not set(states) <= set(CACHES):
            raise WeftError(f"--caches is empty, kept, or both with a comma between them, not '{caches}'")
        workloads = chosen(words)
        if not workloads:
            raise WeftError(f"no workload of {SUITE} has {' or '.join(words)} in its name")
        place, folder = read_device(device), out or Path("out") / SUITE
        run = _new_run(place, seconds)
        if resume and (folder / FILE).exists():
            run = continued(run, load(folder))
        deadline = begun + budget if budget is not None else float("inf")
        suite = Regret(run, Asked(str(place), seconds, threads), states, deadline)
        _measure(suite, workloads, folder)
        _say(run, folder)


def _new_run(place: torch.device, seconds: float) -> RegretRun:
    from weft.machine.stamp import device_stamp
    from weft_bench.environment import disclose
    from weft_bench.regret.record import RegretRun

    about = {
        "suite": SUITE,
        "clock": "runs from before the first call on; imports of torch and weft, the device's context and torch's own "
        "calls come before it, what weft imports in its calls does not",
        "seconds": seconds,
        "sizes, types and functions": "those of the everyday cases of these names",
    }
    correctness = "elements of each result within the rounding bound of the oracle in float64, after the times"
    environment = disclose(place, workloads=about, correctness=correctness)
    return RegretRun(str(device_stamp(place)["name"]), environment)


def _measure(suite: Regret, workloads: list[Workload], folder: Path) -> None:
    """Measure, printing and keeping every row."""
    from weft_bench.regret import tables
    from weft_bench.regret.record import save

    def kept(row: Row) -> None:
        save(suite.run, folder)
        typer.echo(tables.line(row))

    with progress(f"bench {SUITE}", len(workloads)) as step:
        suite.begun, suite.kept = step, kept
        suite.go(workloads)
    save(suite.run, folder)


def _say(run: RegretRun, folder: Path) -> None:
    """The tables of a run, and how it ended."""
    from weft_bench.regret import tables
    from weft_bench.regret.record import FILE

    found: list[tuple[Any, str]] = [
        (tables.calls(run), tables.CALLS_IN_WORDS),
        (tables.once(run), tables.ONCE_IN_WORDS),
    ]
    for table, said in found:
        if table.rows:
            print_table(table, f"{SUITE} on {run.device}", said)
    print_skipped(run.skipped)
    typer.echo(f"wrote {folder / FILE}")
    if run.ended == "interrupted":
        end("interrupted; what was measured is kept", INTERRUPTED)
    if failed := run.failures():
        end(f"failed: {'; '.join(failed)}", WRONG)
