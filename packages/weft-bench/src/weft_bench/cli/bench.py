"""`weft bench` and `weft report`.

On a GPU machine, with cuTENSOR's library on LD_LIBRARY_PATH or named by WEFT_CUTENSOR:

    python -m weft bench tccg --peers cutensor,torch --out results/h200/tccg
    python -m weft bench tccg-fusion --peers cutensor,torch --out results/h200/tccg-fusion
    python -m weft bench beyond --peers cutensor,torch --out results/h200/beyond
    python -m weft bench permute --peers cutensor,torch --out results/h200/permute
    python -m weft bench transpose --out results/h200/transpose
    python -m weft bench dense --out results/h200/dense
    python -m weft bench everyday --quick --budget 290 --out results/h200/everyday
    python -m weft bench regret --seconds 4 --budget 590 --out results/h200/regret
    python -m weft report --summary results/h200/tccg results/h200/tccg-fusion results/h200/beyond ...

``--peers weft-model`` puts the cost model's plans beside those that tuning has stored, ``--tune model`` measures them
alone. Before the first of these, a trial of everything: ``bench tccg --cases 1,20,31 --out /tmp/trial``. Options that
save time where it is short: ``--quick`` (the cuTENSOR modes that have been seen to win, instead of all of them, and
fewer sets of small inputs), ``--budget 0.3``, and ``--resume``, which goes on with a run that was cut off. A copy of
the sources without their history is told its commit by WEFT_COMMIT. Where matplotlib is missing the plots are left out;
``weft report DIR`` draws them later, on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import read_device, read_work, split, split_cases
from weft.cli.terminal import INTERRUPTED, WRONG, device_ceilings, end, errors_in_a_line, progress
from weft.errors import UnsupportedError, WeftError
from weft_bench.cli.listing import list_cases
from weft_bench.cli.own_suites import OWN_SUITES, SuiteCommand
from weft_bench.cli.tables import print_table

if TYPE_CHECKING:
    import torch

    from weft_bench.entry import Entry
    from weft_bench.peers.registry import Contender
    from weft_bench.records import CaseRecord, Run

CPU_WORK = 1 << 22  # multiply-adds of a case on a CPU
QUICK_SETS = 1024  # of inputs with --quick: still twice an H200's L2 for products of 100 x 100
CPU_BUDGET = 0.2  # seconds of samples for one timing there
_MOST_ROWS = 40  # of a comparison on the console; the page has all


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(cls=SuiteCommand)(bench)
    app.command()(report)


def bench(
    suite: Annotated[str | None, typer.Argument(help="One of those that --list shows.", show_default=False)] = None,
    peers: Annotated[
        str | None, typer.Option(help="cutensor,torch,cublas,compile,ttgt,numpy,opt_einsum,...: some of them.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results; out/SUITE by default.", file_okay=False)] = None,
    pairs: Annotated[
        str | None, typer.Option("--dtypes", help="fp16_fp32,bf16_fp32,tf32,fp64,...; of what moves: fp16,fp32,...")
    ] = None,
    cases: Annotated[str | None, typer.Option(help="Some of the cases: 1,20-30 (TCCG) or names with *.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")] = None,
    mode: Annotated[str | None, typer.Option(help="Operands cold (on a GPU) or hot (on a CPU).")] = None,
    work: Annotated[
        str | None, typer.Option(help="Most multiply-adds, or elements, a case (1e7, 10M); larger are scaled.")
    ] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="Seconds of samples for each timing.")] = None,
    rrs: Annotated[float | None, typer.Option(min=0, help="Relative robust spread that ends a timing.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch on a CPU.")] = None,
    tune: Annotated[str | None, typer.Option(help="Plans by the cost model alone: model; tuned now: measure.")] = None,
    energy: Annotated[bool, typer.Option("--energy", help="On a GPU: joules of each contender, too.")] = False,
    ranks: Annotated[str | None, typer.Option(help="Of the suite scaling: 1,2,4; all GPUs or processors.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cuTENSOR modes and input sets.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder, if any.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the suites, or the cases of SUITE, and end.")] = False,
) -> None:
    """Measure a suite: weft beside its peers, checked, timed, written to a folder with plots and a page."""
    with errors_in_a_line():
        if listed:
            list_cases(suite, split(pairs), split_cases(cases))
            return
        if suite is None:
            raise UnsupportedError("which suite? weft bench --list shows them")
        if suite in OWN_SUITES:
            raise UnsupportedError(f"{suite} has options of its own, which come after it: weft bench {suite} --help")
        if mode not in (None, "cold", "hot"):
            raise UnsupportedError(f"mode '{mode}' is neither cold nor hot")
        from weft.planner.options import read_tune
        from weft_bench.peers import registry as contenders
        from weft_bench.scaling import SCALING
        from weft_bench.suites import entries
        from weft_bench.suites import suite as find

        read_tune("tune", tune)

        place = read_device(device)
        on_cpu = place.type == "cpu"
        found = find(suite)
        most = read_work(work) or ((found.work or CPU_WORK) if on_cpu else None)
        chosen = entries(suite, split(pairs), split_cases(cases), most)
        if found.kind == SCALING:
            options = {"types": split(pairs), "work": most} | _given(budget=budget, rrs=rrs, threads=threads)
            _check_plain(peers=peers, mode=mode, tune=tune, energy=energy)
            _scale(chosen, place, out or Path("out") / suite, ranks, bool(cases), resume, options)
            return
        if ranks is not None:
            raise UnsupportedError("--ranks is for the suite scaling")
        names = split(peers) or found.peers or contenders.default_peers(place, found.kind)
        sides = [
            contenders.contender(name, found.kind, tune=tune, quick=quick) for name in dict.fromkeys(("weft", *names))
        ]
        usual: dict[str, Any] = {"mode": "hot", "budget": CPU_BUDGET} if on_cpu else {}
        usual |= {"most_sets": QUICK_SETS} if quick else {}
        sampling = usual | dict(found.sampling) | _given(mode=mode, budget=budget, rrs=rrs, threads=threads)
        folder = out or Path("out") / suite
        run = _measure(suite, sides, chosen, place, folder, bool(cases), resume, sampling, tune, energy)
        if run.ended == "interrupted":
            end("interrupted; what was measured is kept", INTERRUPTED)
        wrong = [f"{case.group} {case.name} ({said})" for case, said in run.failures()]
        if wrong:
            end(f"wrong results: {', '.join(wrong)}", WRONG)
        if run.ended != "finished":
            end(run.ended, WRONG)


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders that weft bench wrote.", exists=True)],
    out: Annotated[Path | None, typer.Option(help="Where page, summary or reasons go.", dir_okay=False)] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Write results/DEVICE/summary.json instead.")] = False,
    groups: Annotated[
        str | None, typer.Option(help="Only these groups of one run, whole in it: bf16_fp32,tf32; --out is a folder.")
    ] = None,
    why: Annotated[
        str | None, typer.Option(help="Correlate weft's lead over this peer with shapes and counters.")
    ] = None,
) -> None:
    """Hold runs against one another, or write the summary of figures.

    One folder: its plots and page are made anew, those of weft profile and weft micro, too. Several: each is held
    against the first, case by case, and a difference is called only where the intervals part. `--groups` makes a run
    of its own of what a run measured to the end before it was cut off. `--why cutensor` takes one run; further folders
    are of its cases' profiles.
    """
    with errors_in_a_line():
        from weft_bench.records import load, write_whole
        from weft_bench.report import summary as reports

        if summary:
            typer.echo(f"wrote {reports.write_summary(folders, out)}")
            return
        if why is not None:
            said = _print_why(load(folders[0]), why, folders[1:])
            if out is not None:
                write_whole(out, said)
                typer.echo(f"wrote {out}")
            return
        if len(folders) == 1 and (page := _page_anew(folders[0])) is not None:
            typer.echo(f"wrote {page}")
            return
        runs = [load(folder) for folder in folders]
        if groups is not None:
            if len(runs) != 1 or out is None:
                raise UnsupportedError("--groups takes one folder and --out, the folder of the new run")
            runs, folders = [_part(runs[0], split(groups))], [out]
        if len(runs) == 1:
            reports.write(runs[0], folders[0])
            _print_figures(runs[0])
            typer.echo(f"wrote {folders[0] / reports.PAGE_FILE}")
            return
        comparison = reports.compare(runs, _distinct(folders))
        means = reports.comparison_table(comparison.means, comparison.names)
        print_table(means, "geometric means", reports.MEANS_IN_WORDS)
        changed = [line for line in comparison.cases if any(said not in ("", reports.SAME) for said in line.verdicts())]
        if changed:
            title = f"cases that differ: {len(changed)} of {len(comparison.cases)}"
            print_table(reports.comparison_table(changed[:_MOST_ROWS], comparison.names), title, reports.CASES_IN_WORDS)
        else:
            typer.echo("no case differs by more than its intervals")
        if out is not None:
            write_whole(out, reports.comparison_page(comparison))
            typer.echo(f"wrote {out}")


def _page_anew(folder: Path) -> Path | None:
    """The page of a profile or of microbenchmarks, written anew; None for a folder that has neither."""
    from weft_bench.micro import page, record
    from weft_bench.profiling.profile import JSON_FILE, page_anew

    if (folder / record.JSON_FILE).exists():
        return page.write_page(record.load(folder), folder)
    return page_anew(folder) if (folder / JSON_FILE).exists() else None


def _print_why(run: Run, peer: str, folders: Sequence[Path]) -> str:
    """Print the correlations of every group of a run that has enough cases; the same in Markdown."""
    from weft_bench.profiling.why import LEAST, WHY_IN_WORDS, profiles_below, why

    if peer not in run.contenders[1:]:
        raise UnsupportedError(f"the run has no times of {peer}, but of {', '.join(run.contenders[1:])}")
    profiles = profiles_below(folders)
    groups = [group for group in run.groups if len(run.pairs(peer, group)) >= LEAST]
    if not groups:
        raise UnsupportedError(f"no group has {LEAST} cases with times of weft and {peer}")
    parts = [f"# {run.suite} on {run.device}, commit {run.commit}", WHY_IN_WORDS]
    for group in groups:
        table, title = why(run, peer, group, profiles), f"{run.suite} {group}: {peer}'s time over weft's"
        print_table(table, title, WHY_IN_WORDS)
        parts += [f"## {title}", table.markdown()]
    return "\n\n".join(parts) + "\n"


def _part(run: Run, groups: tuple[str, ...]) -> Run:
    """Whole groups of a run, by the names of their number types."""
    from weft_bench.records import whole_groups
    from weft_bench.suites import entries
    from weft_bench.suites import suite as find

    types = groups if find(run.suite).types else ()
    return whole_groups(run, groups, entries(run.suite, types))


def _measure(
    suite: str,
    sides: list[Contender],
    chosen: list[Entry],
    place: torch.device,
    folder: Path,
    selected: bool,
    resume: bool,
    sampling: dict[str, Any],
    tune: str | None,
    energy: bool = False,
) -> Run:
    """Run the suite and write what came of it."""
    from weft.machine.stamp import device_stamp
    from weft_bench.checking import tolerance_text
    from weft_bench.compile_ahead import compiling_ahead
    from weft_bench.environment import disclose
    from weft_bench.machine.energy import sensor_of
    from weft_bench.peers.cutensor_ahead import compile_kernels
    from weft_bench.records import INVARIANT, RUN_FILE, Run, continued, load, save
    from weft_bench.report import summary as reports
    from weft_bench.runner import Runner, Sampling
    from weft_bench.suites import suite as find

    sensor = sensor_of(place) if energy else None
    known = device_ceilings(place)
    how = Sampling(**sampling)
    environment = disclose(
        place, workloads=_workloads(suite, chosen, how.mode, tune), correctness=tolerance_text(), ceilings=known,
        rrs=how.rrs, budget=how.budget,
    )  # fmt: skip
    name = str(device_stamp(place)["name"])
    names = [side.name for side in sides]
    run = Run(suite, name, names, environment, mode=how.mode, host=not how.capture, selected=selected)
    if resume and (folder / RUN_FILE).exists():
        run = continued(run, load(folder))
    left = run.missing(chosen)
    ahead = compiling_ahead([] if run.host else left, place, tune, INVARIANT in names)
    with ahead, progress(f"bench {suite}", len(left)) as step:
        compile_kernels(sides, [entry.case for entry in left], place)
        keep = partial(_keep, folder=folder)
        Runner(run, sides, place, known, how, find(suite).kind, begun=step, kept=keep, sensor=sensor).go(chosen)
    if run.cases:
        reports.write(run, folder)
        _print_figures(run)
    else:
        save(run, folder)
    typer.echo(f"wrote {folder / reports.PAGE_FILE if run.cases else folder}")
    return run


def _check_plain(**options: Any) -> None:
    """Refuse options that the suite of ranks does not take."""
    if named := [name for name, value in options.items() if value]:
        raise UnsupportedError(f"the suite scaling takes no --{named[0]}")


def _scale(
    chosen: list[Entry],
    place: torch.device,
    folder: Path,
    ranks: str | None,
    selected: bool,
    resume: bool,
    options: dict[str, Any],
) -> None:
    """Run the suite of ranks and write what came of it."""
    from weft.machine.stamp import device_stamp
    from weft_bench.checking import tolerance_text
    from weft_bench.environment import disclose
    from weft_bench.records import RUN_FILE, Run, continued, load, save
    from weft_bench.report import summary as reports
    from weft_bench.report.page import SCALING_IN_WORDS, scaling_table
    from weft_bench.scaling import SCALING, Job, contender, measure_scaling, read_ranks

    numbers = read_ranks(ranks, place)
    job = Job(place, **options)
    about = _workloads(SCALING, chosen, "hot", None) | {"ranks": list(numbers)}
    environment = disclose(
        place, workloads=about, correctness=tolerance_text(), ceilings=device_ceilings(place), rrs=job.rrs,
        budget=job.budget,
    )  # fmt: skip
    names = [contender(number) for number in reversed(numbers)]
    run = Run(SCALING, str(device_stamp(place)["name"]), names, environment, mode="hot", host=True, selected=selected)
    if resume and (folder / RUN_FILE).exists():
        run = continued(run, load(folder), whole=False)

    def keep(case: CaseRecord, name: str) -> None:
        save(run, folder)
        typer.echo(_line_of(case, [name]))

    with progress(f"bench {SCALING}", len(numbers)) as step:
        measure_scaling(run, chosen, numbers, job, step, keep)
    save(run, folder)
    if run.ended == "interrupted":
        end("interrupted; what was measured is kept", INTERRUPTED)
    reports.write(run, folder)
    print_table(scaling_table(run), f"{SCALING} on {run.device}", SCALING_IN_WORDS)
    typer.echo(f"wrote {folder / reports.PAGE_FILE}")
    wrong = [f"{case.name} on {name} ({case.results[name].wrong})" for case in run.cases for name in names
             if case.results[name].wrong]  # fmt: skip
    if wrong:
        end(f"wrong results: {', '.join(wrong)}", WRONG)


def _keep(run: Run, folder: Path) -> None:
    from weft_bench.records import save

    save(run, folder)
    if run.cases and run.ended == "running":
        typer.echo(_line_of(run.cases[-1], run.contenders))


def _line_of(case: CaseRecord, contenders: Sequence[str]) -> str:
    """A case's times, as they come."""
    times = []
    for name in contenders:
        result = case.results.get(name)
        if result is None or not result.samples:
            times.append(f"{name} {'WRONG' if result is not None and result.wrong else '-'}")
        else:
            way = f" ({result.way})" if result.way else ""
            times.append(f"{name} {1e6 * result.seconds.value:.4g} us{way}")
    return f"{case.group:>10} {case.name:<24} {', '.join(times)}"


def _workloads(suite: str, chosen: list[Entry], mode: str, tune: str | None) -> dict[str, Any]:
    plans = {
        None: "the stored schedule of an earlier tuning, else the cost model's choice",
        "model": "the cost model's choice",
        "measure": "tuned in this run where no schedule was stored",
    }
    return {
        "suite": suite,
        "cases": len(chosen),
        "plans of weft": plans.get(tune, tune),
        "scaled": any(entry.scaled for entry in chosen),
        "extents, types, functions and layouts": "with each case",
        "inputs": f"normal random values, seed 0; further sets copy them to other addresses; {mode}; results lie in "
        "memory filled with NaN",
    }


def _print_figures(run: Run) -> None:
    from weft_bench.report.page import FIGURES_IN_WORDS, figure_table, remarks

    title = f"{run.suite} on {run.device}" + (f" ({run.caveat})" if run.caveat else "")
    print_table(figure_table(run), title, FIGURES_IN_WORDS)
    if (found := remarks(run)).rows:
        print_table(found, "remarks", "What could not be done or came out wrong, and samples that do not agree.")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _distinct(folders: list[Path]) -> list[str]:
    """Names that tell the folders apart: their last parts, or as many as it takes."""
    for parts in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    raise WeftError("the same folder is named twice")
