"""How good randomly drawn schedules are: the tuning study of "Flexible Performant Tensor Contractions on GPUs".

For each case a uniform sample of the legal schedules, in every order of output tiles, is compiled, checked and
measured. Two cumulative distributions are drawn, as in the paper's Figure 5: performance relative to a peer's, and to
the best schedule's. F(x) is the share of schedules that reach at most x. Of V schedules the expected number that must
be tried until one is better than x is (V + 1) / (V (1 - F(x)) + 1) (its section IV-E).

The record is JSON: a case has `legal` schedules (V), the `peer` and its time, `spent` seconds of compiling and
measuring, and `trials`: the cost model's choice first, then the draws, each with the second after which it was known.
What is far slower than the best was timed by one run only. A study is measured in pieces and goes on where it ended.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from weft.base.figures import duration
from weft.cli.tuning import Job
from weft.errors import WeftError
from weft.planner.planner import Choice
from weft.planner.schedule import Ranked, in_every_order
from weft.tune.candidates import Candidate, Effort
from weft.tune.compile_pool import Compiler
from weft.tune.tuner import measured
from weft_bench.report.page import Cell, Table

CASES = "13,14,20,22,24,28,30,41"  # of TCCG: those that the paper looks at one by one
PIECE = 48  # schedules between two records
PATIENCE = 1e5  # seconds that a piece may take
GOOD = 0.95  # of the best performance
IN_WORDS = (
    "Each row is a case: legal schedules, how many were drawn, what share of these could not be run or was wrong, and "
    "how many were measured a second. Then the share of draws that beat the peer, the expected number of tries until "
    "one does, and the seconds until one did (the model's choice, timed first, is no draw); the share that is good, "
    "within 5 % of the best; the performance of the peer and of the cost model's choice relative to the best; and its "
    "time."
)
HITS_IN_WORDS = (
    "Each row is a case: of a hundred accesses to the L2 so many hit, in the same orders. Cases with more than a "
    "hundred are left out: their counters are of several passes."
)
ORDERS_IN_WORDS = (
    "Each row is a case: the time of its best schedule of one kernel where output tiles are taken in groups of so many "
    "rows (of columns: negative), over the least of these times."
)


def go(
    study: dict[str, Any],
    jobs: Sequence[Job],
    samples: int,
    deadline: float = math.inf,
    begun: Callable[[str], None] = lambda name: None,
    kept: Callable[[], None] = lambda: None,
) -> None:
    """Measure what is missing of every job until `deadline` (of `time.monotonic`); `kept` may save after each piece."""
    study["ended"] = "running"
    try:
        with Compiler(jobs[0].target, jobs[0].backend) as compiler:
            for job in jobs:
                begun(job.label)
                case = study["cases"].setdefault(job.label, {"equation": job.equation, "trials": []})
                for _ in _pieces(case, job, samples, compiler):
                    kept()
                    if time.monotonic() > deadline:
                        study["ended"] = "out of time; the same command with --resume goes on"
                        return
        study["ended"] = "finished"
    except KeyboardInterrupt:
        study["ended"] = "interrupted"
    except RuntimeError as error:
        study["ended"] = f"the device was lost: {str(error).partition(chr(10))[0]}; --resume leaves that schedule out"
    finally:
        kept()


def _pieces(case: dict[str, Any], job: Job, samples: int, compiler: Compiler) -> Iterator[None]:
    """Measure draws piece by piece, then the best schedule in every order."""
    try:
        choice = job.choice()
        alike = [in_every_order(each) for each in choice.ranked]
        every = [rank for each in alike for rank in each]
        case |= {"legal": len(every), "spent": case.get("spent", 0.0)}
        drawn = random.Random(0).sample(every, len(every))[:samples]  # those of fewer samples are among those of more
        among, known = {str(rank.schedule) for rank in drawn}, {trial["schedule"] for trial in case["trials"]}
        for trial in case["trials"]:  # the model's choice is drawn as well, perhaps, where more are
            trial["drawn"] = trial["schedule"] in among
        wanted = [rank for rank in dict.fromkeys((choice.best, *drawn)) if str(rank.schedule) not in known]
        pieces = [wanted[at : at + PIECE] for at in range(0, len(wanted), PIECE)]
        for at, piece in enumerate(pieces):
            for rank in pieces[at + 1] if at + 1 < len(pieces) else ():
                compiler.submit(choice.description, rank)
            _measure(case, choice, piece, compiler, drawn)
            yield
        ordered = {str(rank.schedule): each for each in alike if len(each) > 1 for rank in each}
        best = _best([trial for trial in case["trials"] if trial["schedule"] in ordered])
        if "orders" not in case and best is not None:
            case["orders"] = _orders(choice, ordered[best["schedule"]], compiler)
            yield
    except WeftError as error:
        case["failed"] = str(error).partition("\n")[0]


def _measure(
    case: dict[str, Any], choice: Choice, ranks: Sequence[Ranked], compiler: Compiler, drawn: Sequence[Ranked]
) -> None:
    """Add the trials of one piece. Its clock counts from the case's beginning, without pauses between commands."""
    began, before, clock = time.perf_counter(), case["spent"], {}

    def report(schedule: str, done: int, of: int) -> None:
        clock[schedule] = before + time.perf_counter() - began

    found = [Candidate(rank) for rank in ranks]
    try:
        measured(choice, found, Effort(slow=4.0, budget=PATIENCE), compiler, report)
    finally:  # where a schedule takes the device along, the others and its fault are known
        case["spent"] = before + time.perf_counter() - began
        case["trials"] += [
            each.document() | {"drawn": each.rank in drawn, "at": clock.get(str(each.schedule), before)}
            for each in found
            if each.verdict != "waiting"
        ]


def _orders(choice: Choice, alike: Sequence[Ranked], compiler: Compiler) -> dict[str, Any]:
    """The schedule, and seconds by the group of rows in which tiles are taken, each timed in full, in turns."""
    found = {getattr(each.schedule, "group", 1): Candidate(each) for each in alike}
    measured(choice, list(found.values()), Effort(slow=math.inf, budget=PATIENCE), compiler, turns=2)
    seconds = {str(group): median(each.samples) for group, each in sorted(found.items()) if each.samples}
    schedules = {group: str(found[int(group)].schedule) for group in seconds}
    return {"schedule": str(alike[0].schedule), "seconds": seconds, "schedules": schedules}


def _best(trials: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    timed = [trial for trial in trials if trial["verdict"] == "measured"]
    return min(timed, key=lambda trial: trial["seconds"], default=None)


def draws(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Trials that were drawn at random and have a time."""
    return [trial for trial in case["trials"] if trial["drawn"] and trial["verdict"] in ("measured", "slow")]


def expected_draws(relative: Sequence[float], level: float, legal: int) -> float:
    """Schedules to try, on average, until one performs better than `level`.

    The mean of the negative hypergeometric distribution with V = `legal` and F from the sample.
    """
    below = sum(value <= level for value in relative) / len(relative)
    return (legal + 1) / (legal * (1 - below) + 1)


def table(study: dict[str, Any]) -> Table:
    """Figures of each case."""
    heads = ("case", "legal", "drawn", "lost", "/s", "beat", "tries", "s", "good", "peer", "model", "best")
    return Table(heads, [_row(name, case) for name, case in study["cases"].items() if draws(case)])


def _row(name: str, case: dict[str, Any]) -> list[Cell]:
    found, peer = draws(case), case.get("peer", {}).get("seconds")
    asked = sum(trial["drawn"] for trial in case["trials"])
    best = _best(case["trials"]) or min(found, key=lambda trial: trial["seconds"])
    relative = [best["seconds"] / trial["seconds"] for trial in found]
    model = case["trials"][0]["seconds"]
    row = [
        Cell(name), _cell(case["legal"], "d"), _cell(asked, "d"), _cell(1 - len(found) / asked, ".0%"),
        _cell(len(found) / case["spent"], ".1f"),
    ]  # fmt: skip
    if peer is None:
        row += [Cell("")] * 3
    else:
        beaten = [trial for trial in found if trial["seconds"] < peer]
        at = [trial["at"] for trial in beaten if trial is not case["trials"][0]]  # the model's choice is timed first
        expected = expected_draws([peer / trial["seconds"] for trial in found], 1.0, case["legal"])
        row += [_cell(len(beaten) / len(found), ".0%"), _cell(expected, ".1f")]
        row.append(_cell(min(at), ".1f") if at else Cell("-"))
    row.append(_cell(sum(value >= GOOD for value in relative) / len(relative), ".0%"))
    row += [_cell(best["seconds"] / other, ".2f") if other else Cell("") for other in (peer, model)]
    return [*row, Cell(duration(best["seconds"]), best["seconds"])]


def orders_table(study: dict[str, Any]) -> Table:
    """The time of each case's best schedule in every order, over the least."""
    seconds = {name: case["orders"]["seconds"] for name, case in study["cases"].items() if "orders" in case}
    return _by_order({name: {group: value / min(each.values()) for group, value in each.items()}
                      for name, each in seconds.items()}, ".2f")  # fmt: skip


def hits_table(study: dict[str, Any]) -> Table:
    """The L2 hits of each case's best schedule in every order, per cent."""
    orders = {name: case.get("orders", {}) for name, case in study["cases"].items()}
    hits = {name: each["hits"] for name, each in orders.items() if each.get("hits")}
    return _by_order({name: each for name, each in hits.items() if max(each.values()) <= 100}, ".0f")


def _by_order(cases: dict[str, dict[str, float]], how: str) -> Table:
    groups = sorted({group for each in cases.values() for group in each}, key=int)
    return Table(
        ("case", *groups),
        [[Cell(name), *(_cell(each[group], how) if group in each else Cell("") for group in groups)]
         for name, each in cases.items()],
    )  # fmt: skip


def _cell(value: float, how: str) -> Cell:
    return Cell(format(value, how), value)


def drawn(study: dict[str, Any]) -> bytes | None:
    """Both distributions as a PNG, a line for each case, the model's choice as a dot; None without draws."""
    from matplotlib.figure import Figure

    from weft_bench.report.drawing import png

    cases = {name: case for name, case in study["cases"].items() if draws(case)}
    if not cases:
        return None
    figure = Figure(figsize=(8.0, 8.0), layout="constrained")
    for axes, words in zip(figure.subplots(2), ("the peer's", "the best schedule's"), strict=True):
        for at, (name, case) in enumerate(cases.items()):
            held = case.get("peer") if words == "the peer's" else _best(case["trials"])
            base = (held or {}).get("seconds")
            if base is not None:
                _curve(axes, f"{name} ({case['legal']})", case, base, f"C{at}")
        axes.set_xlabel(f"performance relative to {words} (%)")
        axes.set_ylabel("share of drawn schedules (%)")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=6)
    figure.suptitle(f"random schedules on {study['device']}; dots: the cost model's choice; in brackets: V", fontsize=9)
    return png(figure)


def _curve(axes: Any, label: str, case: dict[str, Any], base: float, colour: str) -> None:
    relative = sorted(100 * base / trial["seconds"] for trial in draws(case))
    share = [100 * (at + 1) / len(relative) for at in range(len(relative))]
    axes.step([0, *relative], [0, *share], where="post", color=colour, linewidth=1.2, label=label)
    if seconds := case["trials"][0]["seconds"]:
        model = 100 * base / seconds
        axes.plot([model], [100 * sum(x <= model for x in relative) / len(relative)], "o", color=colour, markersize=5)
