"""Fitting the cost model to a device: its numbers are moved until predictions agree with measured times.

The numbers of `weft.planner.coefficients` are searched one after the other, in logarithms and with ever smaller steps,
for the least mean deviation of predicted from measured times (again in logarithms, large deviations counting by their
size and not its square). What the measurements say nothing about stays where it was. Families with models of their own
get one factor each. The result is kept only where it predicts better and chooses no worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import torch

from weft.cli.tuning import Job, ranked_ahead
from weft.errors import UnsupportedError, WeftError
from weft.gpu.common import cost
from weft.planner.coefficients import Coefficients, coefficients, keep, numbers, using
from weft.planner.planner import Choice
from weft.planner.schedule import Target
from weft.spec import Contraction
from weft.tune.candidates import Candidate, Effort, pick_candidates
from weft.tune.compile_pool import Compiler
from weft.tune.tuner import measured
from weft_bench.tuning.jobs import of_suite

ENOUGH = 40  # measured schedules, fewer of which fit nothing
ENOUGH_OF_FAMILY = 5
STEPS = (0.3, 0.15, 0.07, 0.03)  # factors e^step by which a number is tried larger and smaller
ROUNDS = 4  # over all numbers with each step, at most
STAY = 1e-3  # added to the deviation for each number, times the square of its logarithmic change
WORSE = 1.01  # times the regret before, up to which a fit may choose
# What `on_device` measures: contractions of few and of many flops a byte in types of both kinds of units, and small
# ones, which take little more than a launch. Suites, number types and cases.
QUICK_SUITES = (
    ("tccg", ("fp16_fp32", "fp32"), ("1", "9", "14", "20", "24", "30")),
    ("dense", ("fp32", "fp64"), ("*-square-100x*", "*-wide-100x*", "*-growth-20x*", "*-thin-inside-25x*")),
)
QUICK_WORK = 1 << 30
QUICK = Effort(samples=4)


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured schedule and what predicting it takes."""

    case: int
    family: str
    measured: float
    predicted: float  # with the numbers before, the family's factor left out
    rest: float  # of that, what does not depend on the numbers
    asked: (
        tuple[Contraction, Target, cost.KernelWork] | None
    )  # arguments of `cost.direct_seconds`; None for a family with a model of its own


@dataclass(frozen=True, slots=True)
class Quality:
    """How well numbers predict."""

    deviation: float  # mean |log(predicted / measured)|
    regret: float  # the first choice's time over the best's, geometric mean over cases


@dataclass(frozen=True, slots=True)
class Fit:
    """Numbers found for a device, and whether they were kept."""

    target: Target
    observations: int
    cases: int
    found: Coefficients
    before: Quality
    after: Quality
    kept: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """One job's measured candidates; the first is the model's choice, the others were drawn at random."""

    job: Job
    choice: Choice
    candidates: list[Candidate]


def sampled(
    jobs: Sequence[Job], effort: Effort, begun: Callable[[Job], None] = lambda job: None
) -> tuple[list[Sample], dict[str, str]]:
    """Samples of all jobs, and why others have none: the model's choice and `effort.samples` others, none stored."""
    effort = replace(effort, leaders=1, slow=max(effort.slow, 4.0), budget=max(effort.budget, 600.0))
    found: list[Sample] = []
    failed: dict[str, str] = {}
    with Compiler(jobs[0].target, jobs[0].backend, effort.jobs) as compiler:
        for job, choice in ranked_ahead(jobs, effort, compiler, again=True):
            begun(job)
            try:
                if isinstance(choice, WeftError):
                    raise choice
                candidates = pick_candidates(choice.ranked, effort)
                measured(choice, candidates, effort, compiler)
                found.append(Sample(job, choice, candidates))
            except WeftError as error:
                failed[job.label] = str(error).partition("\n")[0]
    return found, failed


def calibrated(samples: Sequence[Sample], target: Target) -> Fit:
    """Fit the numbers to samples measured on a GPU, and keep them in the cache where they are better.

    `UnsupportedError` on a CPU, whose model has no such numbers, and with fewer than `ENOUGH` measured schedules.
    """
    if target.kind not in ("cuda", "hip"):
        raise UnsupportedError("the cost model of GPU kernels is fitted on a GPU")
    observations = observed(samples, target)
    if len(observations) < ENOUGH:
        raise UnsupportedError(f"{len(observations)} measured schedules are too few to fit to: {ENOUGH} are needed")
    start = coefficients(target)
    found = fitted(observations, replace(start, families={}))
    before, after = quality(observations, start), quality(observations, found)
    better = after.deviation < before.deviation and after.regret <= WORSE * before.regret
    if better:
        keep(target, found)
    return Fit(target, len(observations), len({each.case for each in observations}), found, before, after, better)


def on_device(device: torch.device, begun: Callable[[Job], None] = lambda job: None) -> Fit:
    """Fit the numbers to a few schedules of a few contractions on a GPU, in some seconds; they are kept.

    Where no numbers predict better than those that stand, those are kept as the device's own.
    """
    jobs = [job for suite in QUICK_SUITES for job in of_suite(*suite, work=QUICK_WORK, device=device)[0]]
    samples, _ = sampled(jobs, QUICK, begun)
    fit = calibrated(samples, jobs[0].target)
    if not fit.kept:
        keep(fit.target, coefficients(fit.target))
    return fit


def observed(samples: Sequence[Sample], target: Target) -> list[Observation]:
    """The full measurements, with the questions that each prediction asks the cost model."""
    found = []
    with using(replace(coefficients(target), families={})):
        for case, sample in enumerate(samples):
            for candidate in sample.candidates:
                if candidate.verdict != "measured":
                    continue
                with cost.recorded() as asked:
                    family, description = candidate.rank.family, sample.choice.description
                    predicted = family.predict(description, candidate.schedule, target)
                one = asked[0] if len(asked) == 1 else None  # several, where schedules are made of schedules
                rest = predicted - cost.direct_seconds(*one) if one is not None else predicted
                found.append(
                    Observation(case, candidate.schedule.family, candidate.best_known, predicted, rest, one)
                )  # fmt: skip
    return found


def fitted(observations: Sequence[Observation], start: Coefficients) -> Coefficients:
    """The numbers that predict these best, from `start` on, and a factor for each family with a model of its own."""
    direct = [each for each in observations if each.asked is not None]
    best = start
    if len(direct) >= ENOUGH:
        least = _objective(direct, start, start)
        for step in STEPS:
            for _ in range(ROUNDS):
                best, now = _improved(direct, best, least, step, start)
                if now == least:
                    break
                least = now
    return replace(best, families=_factors([each for each in observations if each.asked is None]))


def quality(observations: Sequence[Observation], given: Coefficients) -> Quality:
    """How well given numbers predict, and how well they choose."""
    predicted = [_predicted(each, given) for each in observations]
    deviation = fmean(abs(math.log(p / each.measured)) for p, each in zip(predicted, observations, strict=True))
    regrets = []
    for case in {each.case for each in observations}:
        own = [(p, each.measured) for p, each in zip(predicted, observations, strict=True) if each.case == case]
        regrets.append(math.log(min(own)[1] / min(measured for _, measured in own)))
    return Quality(deviation, math.exp(fmean(regrets)))


def report(fit: Fit) -> str:
    """The fit in words."""
    changed = [
        f"  {name} = {getattr(fit.found, name):.4g}"
        for name in numbers()
        if getattr(fit.found, name) != getattr(Coefficients(), name)
    ]
    changed += [f"  times of {name} x {factor:.3f}" for name, factor in fit.found.families.items()]
    lines = [
        f"cost model of {fit.target.name}, fitted to {fit.observations} schedules of {fit.cases} cases",
        f"  mean deviation {fit.before.deviation:.1%} -> {fit.after.deviation:.1%}; "
        f"first choice over the best {fit.before.regret:.3f} -> {fit.after.regret:.3f}",
        *changed,
        "kept in the cache" if fit.kept else "not kept: it is no better than what was there",
    ]
    return "\n".join(lines)


def shipped(fit: Fit) -> Mapping[str, Any]:
    """The numbers in the form of the files in ``data/costs``."""
    found = fit.found.as_json()
    families = found.pop("families")
    values = {name: {"value": value} for name, value in found.items()}
    about = f"{fit.observations} schedules of {fit.cases} cases"
    return {
        "device": fit.target.name,
        "sections": {"gathering": {"fit": about, "values": values, "families": families}},
    }


def _predicted(observation: Observation, given: Coefficients) -> float:
    if observation.asked is None:
        return observation.predicted * given.families.get(observation.family, 1.0)
    contraction, target, work = observation.asked
    seconds = observation.rest + cost.direct_seconds(contraction, target, work, given)
    return seconds * given.families.get(observation.family, 1.0)


def _objective(direct: Sequence[Observation], given: Coefficients, start: Coefficients) -> float:
    moved = sum(math.log(getattr(given, name) / getattr(start, name)) ** 2 for name in numbers())
    return fmean(abs(math.log(_predicted(each, given) / each.measured)) for each in direct) + STAY * moved


def _improved(
    direct: Sequence[Observation], best: Coefficients, least: float, step: float, start: Coefficients
) -> tuple[Coefficients, float]:
    """One round over all numbers: each a step larger or smaller, where that is better."""
    for name in numbers():
        for factor in (math.exp(step), math.exp(-step)):
            tried = replace(best, **{name: getattr(best, name) * factor})
            found = _objective(direct, tried, start)
            if found < least:
                best, least = tried, found
                break
    return best, least


def _factors(own: Sequence[Observation]) -> dict[str, float]:
    """For each family with a model of its own, the median of measured over predicted; none where too few tell."""
    found = {}
    for name in sorted({each.family for each in own}):
        ratios = [each.measured / each.predicted for each in own if each.family == name]
        if len(ratios) >= ENOUGH_OF_FAMILY:
            found[name] = median(ratios)
    return found
