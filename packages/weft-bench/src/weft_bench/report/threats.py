"""Threats to the validity of a run: what its own record says may make its figures differ from a reader's.

The four kinds are those of section 3.6.5 of *Design and Performance Engineering of GPU-Accelerated Tensor Network
Algorithms*: of what is measured, of causes, of other places, of chance.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.base.figures import counted
from weft.machine.statistics import two_groups
from weft.machine.timing import ENOUGH_SAMPLES
from weft_bench.records import Result, Run


def threats(run: Run) -> dict[str, str]:
    """A few sentences of each kind."""
    return {
        "What is measured": " ".join(_measured(run)),
        "Causes": " ".join(_causes(run)),
        "Other places": " ".join(_places(run)),
        "Chance": " ".join(_chance(run)),
    }


def _results(run: Run) -> list[Result]:
    return [result for case in run.cases for result in case.results.values() if result.samples]


def _measured(run: Run) -> Iterator[str]:
    where = "the host's work for a call" if run.host else "a call's time with operands in the cache"
    yield f"A time is {where if run.host or run.mode == 'hot' else 'that of a call with operands out of the cache'}."
    yield "Operands are random: values of a program may draw another power, and so run at another clock."
    if "--quick" in run.command:
        yield "Peers had fewer of their modes to choose from."
    if lacking := sum(not result.samples for case in run.cases for result in case.results.values()):
        yield f"Missing from means: {lacking} of {sum(len(case.results) for case in run.cases)} results."


def _causes(run: Run) -> Iterator[str]:
    yield "Times alone say no cause: weft profile counts what binds, weft report --why what a lead goes with."
    throttled = sum(bool((result.timing.get("clocks") or {}).get("throttled")) for result in _results(run))
    if throttled:
        yield f"The device slowed itself down in {throttled} of {counted(len(_results(run)), 'timing')}."
    clocks = {megahertz for result in _results(run) if (megahertz := (result.timing.get("clocks") or {}).get("sm_mhz"))}
    if clocks:
        yield f"Clocks were not locked: {min(clocks)} to {max(clocks)} MHz."


def _places(run: Run) -> Iterator[str]:
    packages = run.environment.get("software", {}).get("packages", {})
    notes = dict.fromkeys(result.note for result in _results(run) if result.note)
    versions = [f"{name} {packages[name]}" for name in ("torch", "triton") if name in packages]
    yield f"One device and one set of versions were measured: {'; '.join([run.device, *versions, *list(notes)[:3]])}."
    if run.commit is None or run.commit.endswith("+changes"):
        yield "The sources were not those of a commit: nobody can have them again."
    if run.caveat:
        yield f"The run is not the whole suite: {run.caveat}."


def _chance(run: Run) -> Iterator[str]:
    yield "Intervals hold what samples of one process let vary, not what another process or day would."
    few = sum(len(result.samples) < ENOUGH_SAMPLES for result in _results(run))
    if few:
        yield f"{few} of {counted(len(_results(run)), 'timing')} have fewer than {ENOUGH_SAMPLES} samples."
    if split := sum(two_groups(result.samples) is not None for result in _results(run)):
        yield f"Samples of {counted(split, 'timing')} fall into two groups."
