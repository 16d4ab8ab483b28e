"""How good randomly drawn schedules are: the sampling study of "Flexible Performant Tensor Contractions on GPUs".

For each case a uniform sample of the legal schedules is measured, and the cumulative distribution of their performance
relative to the best one found is drawn (the paper's Figure 5, lower half): F(x) is the share of schedules that reach at
most x of the best. Of V schedules, the expected number that must be tried until one is better than x is (V + 1) / (V (1
- F(x)) + 1) (its section IV-E).

The record is that of `weft.cli.tuning.run`, with `what` "weft tune --study"; each case has `legal` schedules, the
`best` time, the `model`'s relative performance, `relative` (sorted, of the sample) and `expected` (x -> expected
number). The model's choice is in the sample only where the sample is all there is. Schedules that were refused, wrong,
or not begun in time are counted in `refused` and have no part in it. What is far slower than the best was timed by one
run only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from weft.cli.tuning.run import AHEAD, CompileAhead, Job, TuningRun
from weft.errors import WeftError
from weft.planner.planner import Choice
from weft.tune.candidates import Candidate, Effort
from weft.tune.compile_pool import Compiler
from weft.tune.tuner import measured as measure_candidates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (0.8, 0.9, 0.95, 0.97, 0.99)  # of the best performance, for which expectations are given


@dataclass(frozen=True, slots=True)
class Sample:
    """One job's measured candidates; the first is the model's choice, the others were drawn at random."""

    job: Job
    choice: Choice
    candidates: list[Candidate]


def measured(
    jobs: Sequence[Job], effort: Effort, begun: Callable[[Job], None] = lambda job: None
) -> tuple[list[Sample], dict[str, str], str]:
    """Samples of all jobs, why others have none, and how it ended. The model's choice and `effort.samples` others."""
    effort = _random(effort)
    found: list[Sample] = []
    failed: dict[str, str] = {}
    if not jobs:
        return found, failed, "finished"
    with Compiler(jobs[0].target, jobs[0].backend, effort.jobs) as compiler:
        ahead = CompileAhead(jobs, effort, compiler, again=True)
        try:
            for at, job in enumerate(jobs):
                begun(job)
                ahead.up_to(at + AHEAD)
                try:
                    choice = ahead.choice(at)
                    found.append(Sample(job, choice, measure_candidates(choice, effort, compiler)))
                except WeftError as error:
                    failed[job.label] = str(error).partition("\n")[0]
        except KeyboardInterrupt:
            return found, failed, "interrupted"
    return found, failed, "finished"


def record(
    samples: Sequence[Sample], failed: dict[str, str], ended: str, effort: Effort, device: torch.device, suite: str
) -> dict[str, Any]:
    """The measurements as JSON values."""
    run = TuningRun.on(device, _random(effort), suite)
    run.skipped, run.ended = failed, ended
    cases = [case for sample in samples if (case := _case(sample)) is not None]
    return run.document() | {"what": "weft tune --study", "cases": cases}


def write(document: dict[str, Any], folder: Path) -> list[Path]:
    """Write ``study.json`` and, with matplotlib, ``study.png``; the files written."""
    from weft_bench.records import write_whole

    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "study.json"]
    write_whole(files[0], json.dumps(document, indent=1, allow_nan=False) + "\n")
    try:
        image = drawn(document)
    except ImportError:
        return files
    if image is not None:
        files.append(folder / "study.png")
        write_whole(files[1], image)
    return files


def drawn(document: dict[str, Any]) -> bytes | None:
    """The distributions as a PNG, one line for each case, its model's choice marked; None without cases."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not document["cases"]:
        return None
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure, document)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150)
    return stream.getvalue()


def _draw(figure: Figure, document: dict[str, Any]) -> None:
    import matplotlib

    axes = figure.subplots()
    colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    for at, case in enumerate(document["cases"]):
        share = [100 * (place + 1) / len(case["relative"]) for place in range(len(case["relative"]))]
        relative = [100 * value for value in case["relative"]]
        label = f"{case['group']} {case['name']} ({case['legal']})".strip()
        colour = colours[at % len(colours)]
        axes.step([0, *relative], [0, *share], where="post", color=colour, linewidth=1.2, label=label)
        if case["model"] is not None:
            below = sum(value <= 100 * case["model"] for value in relative)
            axes.plot([100 * case["model"]], [100 * below / len(relative)], "o", color=colour, markersize=5)
    axes.set_xlabel("performance relative to the best schedule found (%)")
    axes.set_ylabel("share of sampled schedules (%)")
    axes.set_title(
        f"randomly drawn schedules on {document['device']['name']}; dots: the cost model's choice; "
        "in brackets: legal schedules",
        fontsize=9,
    )
    axes.set_xlim(0, 102)
    axes.set_ylim(0, 102)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, ncols=2 if len(document["cases"]) > 12 else 1)


def _case(sample: Sample) -> dict[str, Any] | None:
    """One case of the record; None where nothing could be measured."""
    timed = [each for each in sample.candidates if each.verdict in ("measured", "slow")]
    if not timed:
        return None
    best = min(each.best_known for each in timed)
    first = sample.candidates[0]
    legal = len(sample.choice.ranked)
    by_chance = [each for each in timed if each is not first or len(sample.candidates) == legal] or timed
    relative = sorted(best / each.best_known for each in by_chance)
    return {
        "group": sample.job.group,
        "name": sample.job.name,
        "equation": sample.job.equation,
        "extents": dict(sample.job.extents),
        "legal": legal,
        "refused": len(sample.candidates) - len(timed),
        "best": best,
        "model": best / first.best_known if first in timed else None,
        "relative": [float(f"{value:.5g}") for value in relative],
        "expected": {str(level): expected_draws(relative, level, legal) for level in LEVELS},
        "trials": [each.document() for each in sample.candidates],
    }


def expected_draws(relative: Sequence[float], level: float, legal: int) -> float:
    """Schedules to try, on average, until one performs better than `level` of the best.

    The mean of the negative hypergeometric distribution with V = `legal` and F from the sample.
    """
    below = sum(value <= level for value in relative) / len(relative)
    expected = (legal + 1) / (legal * (1 - below) + 1)
    assert math.isfinite(expected)
    return expected


def _random(effort: Effort) -> Effort:
    """An equal effort from the model's choice by chance alone."""
    return replace(effort, leaders=1, slow=max(effort.slow, 4.0), budget=max(effort.budget, 600.0))
