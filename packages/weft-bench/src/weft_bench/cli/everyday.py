"""`weft bench everyday`."""

from __future__ import annotations

import time
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import read_device, split
from weft.cli.terminal import INTERRUPTED, WRONG, end, errors_in_a_line, progress
from weft.errors import WeftError
from weft_bench.cli.tables import print_skipped, print_table

if TYPE_CHECKING:
    import torch

    from weft_bench.entry import Entry
    from weft_bench.everyday.measuring import Rounds
    from weft_bench.records import Run

SUITE = "everyday"
AHEAD = 120.0  # seconds that kernels are waited for before anything is timed, while other processes compile them


def everyday(
    only: Annotated[
        str | None, typer.Option(help="Cases with one of these in their name or domain: MPS,linear.")
    ] = None,
    peers: Annotated[str, typer.Option(help="torch,compile: torch's plain way, and that compiled.")] = "torch",
    tiers: Annotated[
        bool, typer.Option("--tiers", help="Also plans of the library tier.")
    ] = False,
    calls: Annotated[int, typer.Option(min=0, help="Plain calls before weft's default is timed.")] = 100,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch on a CPU.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two short turns for each contender.")] = False,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Seconds of the whole run; later cases are left out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results; out/everyday by default.", file_okay=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder, if any.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the cases, and end.")] = False,
) -> None:
    """Measure everyday calls: weft's default, plans and tiers beside torch, and what the cost model predicted."""
    begun = time.monotonic()
    with errors_in_a_line():
        import torch

        from weft_bench.everyday.measuring import Everyday, Rounds, contenders
        from weft_bench.everyday.ways import check_peers
        from weft_bench.records import RUN_FILE, continued, load

        names = split(peers)
        check_peers(names)
        place = read_device(device)
        entries = _entries(place, split(only))
        if listed:
            _list(entries)
            return
        if threads is not None:
            torch.set_num_threads(threads)
        folder, how = out or Path("out") / SUITE, Rounds.short() if quick else Rounds()
        run = _new_run(place, contenders(names, tiers), entries, how, calls, bool(only))
        if resume and (folder / RUN_FILE).exists():
            run = continued(run, load(folder))
        deadline = begun + budget if budget is not None else float("inf")
        _measure(Everyday(run, place, calls, how, deadline), entries, folder)
        _say(run, folder)


def _entries(place: torch.device, words: tuple[str, ...]) -> list[Entry]:
    """The cases as entries, at the sizes of the device."""
    from weft_bench.cases import everyday as cases
    from weft_bench.entry import Entry

    chosen = cases.chosen(cases.everyday(), words)
    if not chosen:
        raise WeftError(f"no case of {SUITE} has {' or '.join(words)} in its name or domain")
    on_cpu = place.type == "cpu"
    sized = [(each, each.on_cpu() if on_cpu else each) for each in chosen]
    return [Entry(case, case.domain, case.name, scaled=case != given) for given, case in sized]


def _new_run(
    place: torch.device, names: list[str], entries: list[Entry], how: Rounds, calls: int, selected: bool
) -> Run:
    from weft.machine.stamp import device_stamp
    from weft_bench.environment import disclose
    from weft_bench.records import Run

    about = {
        "suite": SUITE, "cases": len(entries), "plain calls before the default is timed": calls,
        "rounds": how.rounds, "extents, types, functions and layouts": "with each case",
        "inputs": "normal random values, one set; contenders are timed in turns; results in memory that calls allocate",
    }  # fmt: skip
    correctness = "weft: elements within the rounding bound of the oracle in float64; torch: its result near weft's"
    environment = disclose(place, workloads=about, correctness=correctness, budget=how.budget)
    return Run(SUITE, str(device_stamp(place)["name"]), names, environment, mode="hot", host=True, selected=selected)


def _measure(suite: Any, entries: list[Entry], folder: Path) -> None:
    """Measure, keeping the run after every case."""
    from weft_bench.compile_ahead import compiling_ahead
    from weft_bench.everyday import tables
    from weft_bench.records import save

    def kept(run: Run) -> None:
        save(run, folder)
        if run.cases and run.ended == "running":
            typer.echo(tables.line(run.cases[-1], run))

    left = suite.run.missing(entries)
    with progress(f"bench {SUITE}", len(left)) as step, compiling_ahead(left, suite.device) as compiled:
        wait(compiled, timeout=min(AHEAD, max(0.0, suite.deadline - time.monotonic())))
        suite.begun, suite.kept = step, kept
        suite.go(entries)


def _say(run: Run, folder: Path) -> None:
    """The tables of a run, and how it ended."""
    from weft_bench.everyday import tables
    from weft_bench.report import summary

    if run.cases:
        summary.write(run, folder)
        print_table(tables.domains(run), f"{SUITE} on {run.device}", tables.DOMAINS_IN_WORDS)
        if tables.misses(run):
            print_table(tables.predictions(run), "predictions", tables.PREDICTIONS_IN_WORDS)
            if (found := tables.far(run)).rows:
                print_table(found, "far from their prediction", tables.FAR_IN_WORDS)
    print_skipped(run.skipped)
    typer.echo(f"wrote {folder}")
    if run.ended == "interrupted":
        end("interrupted; what was measured is kept", INTERRUPTED)
    if run.ended != "finished":
        end(run.ended, WRONG)
    if wrong := tables.failures(run):
        end(f"wrong results: {'; '.join(wrong)}", WRONG)


def _list(entries: list[Entry]) -> None:
    from weft_bench.report.page import Cell, Table

    rows = [
        [
            Cell(entry.group), Cell(entry.case.name), Cell(entry.case.equation),
            Cell(" ".join(f"{label}={extent}" for label, extent in entry.case.extents.items())),
            Cell(str(entry.case.dtype).removeprefix("torch.")),
        ]
        for entry in entries
    ]  # fmt: skip
    said = "Each row is one case: what is computed, at which extents, in which number type."
    print_table(Table(("domain", "case", "equation", "extents", "type"), rows), SUITE, said)
