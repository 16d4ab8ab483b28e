"""`weft tune`: descriptions to be tuned, one after the other, and the record of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from weft.api.describe import hypothetical
from weft.base.files import hand_out
from weft.errors import UnsupportedError, WeftError
from weft.machine.stamp import command, commit, device_stamp
from weft.machine.statistics import Interval, mean_ratio
from weft.planner import tuned as tuned_schedules
from weft.planner.keys import NotSerializable, digest, serialize_description
from weft.planner.planner import Choice, choose
from weft.planner.schedule import Description, Target
from weft.planner.validity import now
from weft.spec import Layout
from weft.spec.contraction import output_shape
from weft.tune.candidates import Candidate, Effort
from weft.tune.compile_pool import Compiler
from weft.tune.progress import quiet
from weft.tune.tuner import Report, ahead_of, begin_compiling, tune


@dataclass(frozen=True, slots=True)
class Job:
    """One description to be tuned, and what it is called."""

    group: str
    name: str
    equation: str
    extents: Mapping[str, int]
    description: Description
    backend: str
    target: Target
    workspace_limit: int | None = None

    @property
    def label(self) -> str:
        return f"{self.group} {self.name}".strip()

    @property
    def mark(self) -> str | None:
        """A digest of the description, functions and types included; None where it cannot be serialised."""
        try:
            return digest(serialize_description(self.description))
        except NotSerializable:
            return None

    def choice(self) -> Choice:
        """The cost model's ranking, whatever is stored."""
        return choose(self.description, self.backend, self.target, self.workspace_limit)


def of_equation(equation: str, extents: Mapping[str, int], **options: Any) -> Job:
    """The contraction of two contiguous operands; options are those of `weft.api.describe.hypothetical`."""
    request = hypothetical(equation, extents, **options)
    if request.backend == "reference":
        raise UnsupportedError("the reference backend chooses nothing: there is nothing to tune")
    d = Layout.contiguous(output_shape(request.notation, request.extents), request.d_dtype)
    described = request.contraction(None, d)
    return Job("", equation, equation, extents, described, request.backend, request.target, request.workspace_limit)


FIGURE = "untuned_vs_tuned"


def figures(record: Mapping[str, Any]) -> dict[str, Interval]:
    """The figures of a record of `weft.cli.tuning`, with 95 % bootstrap intervals from the last
    round's samples.

    Where a schedule was stored before, its one known time stands for its samples. Cases that failed are left out.
    """
    groups: dict[str, list[tuple[list[float], list[float]]]] = {}
    for case in record["cases"]:
        fastest, model = (_samples(case.get(part)) for part in ("winner", "model"))
        if fastest and model:
            # Where the model's choice won, both are the same samples: their ratio is 1 and nothing else.
            groups.setdefault(case["group"], []).append(([1.0], [1.0]) if fastest == model else (fastest, model))
    suite = record["suite"]
    return {
        ".".join(filter(None, (suite, group, FIGURE))): mean_ratio(*map(list, zip(*pairs, strict=True)))
        for group, pairs in groups.items()
    }


def _samples(part: Mapping[str, Any] | None) -> list[float]:
    if part is None:
        return []
    if part.get("samples"):
        return list(part["samples"])
    return [part["seconds"]] if part.get("seconds") else []


FORMAT = 1
_PARTS = {"what", "format", "suite", "device", "effort", "cases"}  # that going on looks at
AHEAD = 3  # cases whose candidates are with the compilers while one is measured


@dataclass
class TuningRun:
    """A run and what came of it so far."""

    device: dict[str, Any]
    effort: Effort
    suite: str = ""
    about: dict[str, Any] = field(default_factory=dict)  # command, commit, date
    ended: str = "running"
    skipped: dict[str, str] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def on(cls, device: torch.device, effort: Effort, suite: str = "") -> TuningRun:
        about = {"command": command(), "commit": commit(), "date": now()}
        return cls(device_stamp(device), effort, suite, about)

    def document(self) -> dict[str, Any]:
        found = asdict(self)
        return {"what": "weft tune", "format": FORMAT, **found.pop("about"), **found}

    def find(self, job: Job) -> dict[str, Any] | None:
        wanted = job.group, job.name, job.mark
        return next((case for case in self.cases if (case["group"], case["name"], case.get("mark")) == wanted), None)


def go(
    run: TuningRun,
    jobs: Sequence[Job],
    *,
    again: bool = False,
    begun: Callable[[Job], None] = lambda job: None,
    report: Report = quiet,
    kept: Callable[[TuningRun], None] = lambda run: None,
) -> None:
    """Tune every job that has no schedule stored yet (`again`: every one) and add it to the run.

    `begun` hears of each job before, `kept` of the run after each. Ctrl-C ends the run, and so does a candidate that
    takes the device along; the run then says so, and going on leaves that candidate out.
    """
    jobs = [job for job in jobs if run.find(job) is None]
    if not jobs:
        run.ended = "finished"
        return
    with Compiler(jobs[0].target, jobs[0].backend, run.effort.jobs) as compiler:
        try:
            for job, choice in ranked_ahead(jobs, run.effort, compiler, again):
                begun(job)
                run.cases.append(_tuned(job, choice, run.effort, compiler, again, report))
                kept(run)
            run.ended = "finished"
        except KeyboardInterrupt:
            run.ended = "interrupted"
        except RuntimeError as error:  # what a candidate alone does wrong is noted with it and does not come here
            run.ended = f"the device was lost: {str(error).partition(chr(10))[0]}"
    kept(run)


def ranked_ahead(
    jobs: Sequence[Job], effort: Effort, compiler: Compiler, again: bool
) -> Iterator[tuple[Job, Choice | WeftError]]:
    """Jobs with the cost model's ranking, or why there is none; the compilers have the candidates of the next few."""

    def ranked(job: Job) -> Choice | WeftError:
        try:
            choice = job.choice()
        except WeftError as error:
            return error
        if again or tuned_schedules.recalled(choice, job.workspace_limit) is None:
            begin_compiling(choice, effort, compiler)
        return choice

    return ahead_of(jobs, ranked, AHEAD)


def _tuned(
    job: Job, choice: Choice | WeftError, effort: Effort, compiler: Compiler, again: bool, report: Report
) -> dict[str, Any]:
    """One job's entry in the record."""
    entry: dict[str, Any] = {"group": job.group, "name": job.name, "equation": job.equation}
    entry |= {"extents": dict(job.extents), "mark": job.mark}
    try:
        if isinstance(choice, WeftError):
            raise choice
        stored = None if again else tuned_schedules.recalled(choice, job.workspace_limit)
        if stored is not None:
            return entry | _stored(choice, stored)
        outcome = tune(choice, job.workspace_limit, effort, compiler=compiler, again=again, report=report)
        return entry | outcome.document()
    except WeftError as error:
        return entry | {"failed": str(error).partition("\n")[0]}


def _stored(choice: Any, found: Any) -> dict[str, Any]:
    """A schedule stored before; the model's time is that of its tuning, where the model still says the same."""
    model = next(rank for rank in found.ranked if rank.schedule == choice.best.schedule)
    ratio = found.best.measured / model.measured if model.measured else None
    return {
        "stored": True,
        "date": found.origin.date,
        **{name: Candidate(rank, "measured", seconds=rank.measured).document()
           for name, rank in (("model", model), ("winner", found.best))},
        "ratio": ratio,
        "legal": len(choice.ranked),
        "tried": 0,
        "spent": 0.0,
        "excluded": list(found.excluded),
        "trials": [],
    }


def save(run: TuningRun, file: Path) -> None:
    """Write the record, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    hand_out(file, json.dumps(run.document(), indent=1, allow_nan=False) + "\n")


def load(file: Path) -> dict[str, Any]:
    """A record as `save` wrote it; `WeftError` for another file."""
    try:
        document = dict(json.loads(file.read_text()))
        whole = document.keys() >= _PARTS and all(case.keys() >= {"group", "name"} for case in document["cases"])
        if whole and document["what"] == "weft tune" and document["format"] == FORMAT:
            return document
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        pass
    raise WeftError(f"{file} is no record of weft tune")
