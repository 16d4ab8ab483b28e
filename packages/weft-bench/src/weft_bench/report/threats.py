"""Threats to the validity of what was measured: what a record says may make its figures differ from a reader's.

The four kinds are those of section 3.6.5 of *Design and Performance Engineering of GPU-Accelerated Tensor Network
Algorithms*: of what is measured, of causes, of other places, of chance. Every page of results has them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weft.base.figures import counted
from weft.machine.timing import ENOUGH_SAMPLES
from weft_bench.records import Result, Run
from weft_bench.two_groups import two_groups

TITLE = "Threats to validity"
JOINED = "joined by hand"  # what a record says of itself that is not of one run
OUT_OF_CACHE = "A time is that of a call with operands out of the cache."
WITH_HOST = "A time is that of a call from Python, in which the host's work may be longer than the device's."
IN_CACHE = "A time is a call's time with operands in the cache."
RANDOM = "Operands are random: values of a program may draw another power, and so run at another clock."
INTERVALS = "Intervals hold what samples of one process let vary, not what another process or day would."


def threats(run: Run) -> dict[str, str]:
    """A few sentences of each kind for a run of a suite."""
    notes = dict.fromkeys(result.note for result in _results(run) if result.note)
    places = list(measured_at(run.device, run.environment, list(notes)[:3]))
    if run.caveat:
        places.append(f"The run is not the whole suite: {run.caveat}.")
    return gathered(_measured(run), _causes(run), places, _chance(run))


def gathered(
    measured: Iterable[str], causes: Iterable[str], places: Iterable[str], chance: Iterable[str]
) -> dict[str, str]:
    """Sentences of the four kinds by their names."""
    return {
        "What is measured": " ".join(measured),
        "Causes": " ".join(causes),
        "Other places": " ".join(places),
        "Chance": " ".join(chance),
    }


def paragraphs(said: Mapping[str, str]) -> str:
    """The kinds of which something is said, as HTML."""
    return "\n".join(f"<p><b>{kind}.</b> {html.escape(text)}</p>" for kind, text in said.items() if text)


def clocks_of(timings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Whether the device slowed itself down in timings, and the range of its clocks."""
    known = [clocks for timing in timings if (clocks := timing.get("clocks"))]
    throttled = sum(bool(clocks.get("throttled")) for clocks in known)
    if throttled:
        reasons = dict.fromkeys(reason for clocks in known for reason in clocks.get("throttled") or ())
        said = f"The device slowed itself down in {throttled} of {counted(len(timings), 'timing')}"
        yield f"{said} ({', '.join(reasons)})."
    rates = {megahertz for clocks in known if (megahertz := clocks.get("sm_mhz"))}
    if rates:
        yield f"Clocks were not locked: {' to '.join(map(str, sorted({min(rates), max(rates)})))} MHz."


def measured_at(device: str, environment: Mapping[str, Any], notes: Sequence[str] = ()) -> Iterator[str]:
    """The one device and the one set of versions, and whether the sources can be had again."""
    if not environment:
        yield f"One device was measured: {device}. The record says neither date, commit nor versions."
        return
    packages = environment.get("software", {}).get("packages", {})
    versions = [f"{name} {packages[name]}" for name in ("torch", "triton") if name in packages]
    artifacts = environment.get("artifacts", {})
    if joined := artifacts.get(JOINED):
        yield f"The record was joined by hand of several devices or commits: {joined}. Versions: {', '.join(versions)}."
    else:
        yield f"One device and one set of versions were measured: {'; '.join([device, *versions, *notes])}."
    commit = artifacts.get("commit")
    if commit is None or commit.endswith("+changes"):
        yield "The sources were not those of a commit: nobody can have them again."


def few_samples(numbers: Sequence[int]) -> Iterator[str]:
    """How many timings, given their numbers of samples, ended with fewer than are enough."""
    if few := sum(number < ENOUGH_SAMPLES for number in numbers):
        yield f"{few} of {counted(len(numbers), 'timing')} have fewer than {ENOUGH_SAMPLES} samples."


def under_floor(run: Run) -> Iterator[str]:
    """How many times are below the least that the measured ceilings allow, and the least of them."""
    shares = [
        result.summary.median / case.floor["seconds"]
        for case in run.cases
        if case.floor and run.mode == "cold"
        for result in case.results.values()
        if result.samples
    ]
    if below := [share for share in shares if share < 1]:
        yield (
            f"{len(below)} of {counted(len(shares), 'time')} are below the floor, down to {min(below):.2f} of it: "
            "its ceilings were measured, and others can be above them."
        )


def _results(run: Run) -> list[Result]:
    return [result for case in run.cases for result in case.results.values() if result.samples]


def _measured(run: Run) -> Iterator[str]:
    yield WITH_HOST if run.host else IN_CACHE if run.mode == "hot" else OUT_OF_CACHE
    yield RANDOM
    yield from under_floor(run)
    if "--quick" in run.command and "cutensor" in run.contenders:
        yield "cuTENSOR had fewer of its modes to choose from."
    if lacking := sum(not result.samples for case in run.cases for result in case.results.values()):
        yield f"Missing from means: {lacking} of {sum(len(case.results) for case in run.cases)} results."


def _causes(run: Run) -> Iterator[str]:
    yield "Times alone say no cause: weft profile counts what binds, weft report --why what a lead goes with."
    yield from clocks_of([result.timing for result in _results(run)])


def _chance(run: Run) -> Iterator[str]:
    yield INTERVALS
    yield from few_samples([len(result.samples) for result in _results(run)])
    if split := sum(two_groups(result.samples) is not None for result in _results(run)):
        yield f"Samples of {counted(split, 'timing')} fall into two groups."
