"""`weft bench tuning`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import read_device, read_work, split, split_cases
from weft.cli.terminal import INTERRUPTED, WRONG, end, errors_in_a_line, progress
from weft.errors import UnsupportedError, WeftError
from weft_bench.cli.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from weft_bench.entry import Entry

SUITE = "tuning"
FILE, PICTURE = "study.json", "study.png"
CPU_WORK = "4M"
PEER_BUDGET = 0.1  # seconds of samples of the peer's time


def tuning(
    suite: Annotated[str, typer.Option(help="Of the cases.")] = "tccg",
    cases: Annotated[str | None, typer.Option(help="Some of the cases; eight of TCCG by default.")] = None,
    pairs: Annotated[str, typer.Option("--dtypes", help="fp16_fp32,bf16_fp32,tf32,fp64,...")] = "",
    samples: Annotated[int, typer.Option(min=1, help="Schedules of each case, drawn at random.")] = 300,
    peer: Annotated[str | None, typer.Option(help="Whose time is to be beaten: cutensor, torch, ...")] = None,
    work: Annotated[str | None, typer.Option(help="Most multiply-adds a case (1e7, 10M); larger are scaled.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="Seconds of this command.")] = None,
    counters: Annotated[
        bool, typer.Option("--counters", help="Read L2 hits of every order of tiles with Nsight Compute.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for study.json; out/tuning by default.", file_okay=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study in the folder, if any.")] = False,
) -> None:
    """Measure random schedules of a suite's cases: how they are distributed, and what it takes to beat a peer."""
    deadline = time.monotonic() + budget if budget is not None else float("inf")
    with errors_in_a_line():
        from weft_bench.suites import entries
        from weft_bench.tuning import study as studies
        from weft_bench.tuning.jobs import of_suite

        place = read_device(device)
        on_cpu = place.type == "cpu"
        only = split_cases(cases or (studies.CASES if suite == "tccg" else None))
        types = split(pairs) or (("fp32" if on_cpu else "fp16_fp32",) if suite == "tccg" else ())
        most = read_work(work or (CPU_WORK if on_cpu else None))
        if counters and on_cpu:
            raise UnsupportedError("--counters reads hardware counters of a GPU, and there is none")
        jobs, skipped = of_suite(suite, types, only, work=most, device=place)
        if not jobs:
            raise WeftError(f"no case of {suite} can be studied: {'; '.join(skipped.values())}")
        folder = out or Path("out") / SUITE
        study = _begun(folder, place, resume)
        _time_peer(study, entries(suite, types, only, most), place, peer or ("torch" if on_cpu else "cutensor"))
        _save(study, folder)
        with progress(f"bench {SUITE}", len(jobs)) as step:
            studies.go(study, jobs, samples, deadline, step, lambda: _save(study, folder))
            if counters:
                _count(study, entries(suite, types, only, most), place, deadline, step, lambda: _save(study, folder))
        _say(study, folder)


def _begun(folder: Path, place: torch.device, resume: bool) -> dict[str, Any]:
    """A study without cases, or that in the folder. `WeftError` where that is of another device or commit."""
    from weft.machine.stamp import device_stamp
    from weft_bench.environment import disclose
    from weft_bench.records import check_continues, reading

    environment = disclose(
        place, workloads={"suite": SUITE, "inputs": "normal random values"},
        correctness="every schedule is held against the oracle before it is timed",
    )  # fmt: skip
    study: dict[str, Any] = {"device": str(device_stamp(place)["name"]), "environment": environment, "cases": {}}
    if resume and (folder / FILE).exists():
        with reading(folder / FILE, "study of weft bench tuning"):
            before: dict[str, Any] = json.loads((folder / FILE).read_text())
            origins = [
                {"device": each["device"], "commit": each["environment"]["artifacts"]["commit"]}
                for each in (before, study)
            ]
            check_continues("study", *origins)
            study["cases"] = dict(before["cases"])
    return study


def _time_peer(study: dict[str, Any], entries: list[Entry], place: torch.device, peer: str) -> None:
    """The peer's time of every case that has none, or why there is none."""
    from weft_bench.peers.registry import contender
    from weft_bench.records import Run
    from weft_bench.runner import Runner
    from weft_bench.timed_sets import Sampling

    left = [each for each in entries if "peer" not in study["cases"].get(_label(each), {})]
    run = Run(SUITE, study["device"], [peer], {})
    sampling = Sampling(mode="hot" if place.type == "cpu" else "cold", budget=PEER_BUDGET)
    Runner(run, [contender(peer, quick=True)], place, sampling=sampling).go(left)
    for each in run.cases:
        result = each.results[peer]
        known: dict[str, Any] = {"name": peer, "way": result.way, "note": result.note}
        known |= {"seconds": result.seconds.value} if result.samples else {"cannot": result.cannot or result.wrong}
        study["cases"].setdefault(_label(each), {"equation": each.equation, "trials": []})["peer"] = known


def _count(
    study: dict[str, Any], entries: list[Entry], place: torch.device, deadline: float, begun: Callable[[str], None],
    kept: Callable[[], None],
) -> None:  # fmt: skip
    """L2 hits of the orders that have none, until the deadline; `kept` may save after each case."""
    from weft_bench.profiling.hits import add_hits

    for each in entries:
        orders = study["cases"].get(_label(each), {}).get("orders")
        if orders and "hits" not in orders and time.monotonic() < deadline:
            begun(f"{_label(each)}: L2 hits")
            add_hits(orders, each.case, place)
            kept()


def _label(each: Any) -> str:
    return f"{each.group} {getattr(each, 'case', each).name}"


def _save(study: dict[str, Any], folder: Path) -> None:
    from weft_bench.records import write_whole

    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FILE, json.dumps(study, indent=1, allow_nan=False) + "\n")


def _say(study: dict[str, Any], folder: Path) -> None:
    """Tables and picture of a study, and how it ended."""
    from weft_bench.records import write_whole
    from weft_bench.tuning import study as studies

    for table, said in (
        (studies.table(study), studies.IN_WORDS), (studies.orders_table(study), studies.ORDERS_IN_WORDS),
        (studies.hits_table(study), studies.HITS_IN_WORDS),
    ):  # fmt: skip
        if table.rows:
            print_table(table, f"{SUITE} on {study['device']}", said)
    if (image := studies.drawn(study)) is not None:
        write_whole(folder / PICTURE, image)
    typer.echo(f"wrote {folder / FILE}")
    for name, case in study["cases"].items():
        if "failed" in case or "cannot" in case.get("peer", {}):
            typer.echo(f"{name}: {case.get('failed') or case['peer']['cannot']}")
    if study["ended"] != "finished":
        end(study["ended"], INTERRUPTED if study["ended"] == "interrupted" else WRONG)
