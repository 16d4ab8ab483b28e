"""The tables of a run of the everyday set: a line a case, ratios by domain, and the cost model's predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean
from textwrap import shorten
from typing import NamedTuple

from weft.base.figures import duration
from weft_bench.everyday.measuring import ALONE, PREDICTED
from weft_bench.everyday.ways import PEERS, SAID
from weft_bench.records import CaseRecord, Run
from weft_bench.report.page import Cell, Table

EVEN = 0.95  # a ratio from which on weft is not behind
NEAR, FAR = 1.3, 2.0  # factors between a prediction and what was measured
ALL = "all"
_MOST_FAR = 20  # cases far from their prediction that are shown
_SCHEDULE = 60  # characters of a schedule

DOMAINS_IN_WORDS = (
    "Each row is a domain and a kind of call. Ratios are the time of the best of torch's ways over weft's: above 1 "
    f"weft is faster. mean is geometric, worst the smallest ratio, behind how many cases are under {EVEN}."
)
PREDICTIONS_IN_WORDS = (
    f"Each row is one kind of weft's calls: how many cases the cost model predicts within a factor of {NEAR}, and how "
    f"many it misses by more than {FAR:g}."
)
FAR_IN_WORDS = "The cases that were missed by most; predicted over measured time."


class Miss(NamedTuple):
    """A case and how its prediction relates to what was measured."""

    case: str
    contender: str
    predicted: float
    measured: float
    schedule: str

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def factor(self) -> float:
        """How far off it is, in either direction."""
        return max(self.ratio, 1 / self.ratio)


def ours(run: Run) -> list[str]:
    """The contenders that are weft."""
    return [name for name in run.contenders if name in SAID]


def ratio(case: CaseRecord, name: str) -> float | None:
    """The best time of torch's ways over that of a contender; None where one of them has none."""
    mine = case.measured(name)
    theirs = [found.seconds.value for peer in PEERS if (found := case.measured(peer)) is not None]
    return min(theirs) / mine.seconds.value if mine is not None and theirs else None


def line(case: CaseRecord, run: Run) -> str:
    """A case's times as they come, each of weft's with its ratio."""
    said = []
    for name in run.contenders:
        result, word = case.results[name], SAID.get(name, name)
        if result.samples:
            found = ratio(case, name) if name in SAID else None
            said.append(f"{word} {duration(result.seconds.value)}" + (f" ({found:.2f})" if found is not None else ""))
        else:
            said.append(f"{word} {'WRONG' if result.wrong else '-'}")
    return f"{case.group}: {case.name:<40} {', '.join(said)}"


def domains(run: Run) -> Table:
    """Ratios by domain and kind of call; those of all cases last."""
    rows = []
    for domain in (*run.groups, ALL):
        cases = [case for case in run.cases if domain in (case.group, ALL)]
        rows += [[Cell(domain), Cell(SAID[name]), *_ratios(cases, name)] for name in ours(run)]
    return Table(["domain", "call", "cases", "mean", "worst", "behind"], rows)


def misses(run: Run) -> list[Miss]:
    """Every prediction of a case beside its measurement."""
    found = []
    for case in run.cases:
        for name in ours(run):
            result = case.measured(name)
            about = result.about if result is not None else {}
            if about.get(PREDICTED) and about.get(ALONE):
                found.append(Miss(case.name, name, about[PREDICTED], about[ALONE], about.get("schedule", "")))
    return found


def predictions(run: Run) -> Table:
    """How near the predictions are, by the kind of call."""
    every = misses(run)
    rows = []
    for name in ours(run):
        factors = [miss.factor for miss in every if miss.contender == name]
        if factors:
            near, far = sum(each <= NEAR for each in factors), sum(each > FAR for each in factors)
            share = near / len(factors)
            rows.append([
                Cell(SAID[name]), Cell(str(len(factors))), Cell(f"{near} ({share:.0%})", share), Cell(str(far), far),
                Cell(f"{max(factors):.3g}", max(factors)),
            ])  # fmt: skip
    return Table(["call", "cases", f"within {NEAR}", f"off by more than {FAR:g}", "worst factor"], rows)


def far(run: Run) -> Table:
    """The cases that are off by most."""
    chosen = sorted((miss for miss in misses(run) if miss.factor > FAR), key=lambda miss: -miss.factor)[:_MOST_FAR]
    rows = [
        [
            Cell(miss.case), Cell(SAID[miss.contender]), Cell(duration(miss.predicted), miss.predicted),
            Cell(duration(miss.measured), miss.measured), Cell(f"{miss.ratio:.2g}", miss.ratio),
            Cell(shorten(miss.schedule, _SCHEDULE, placeholder=" ...")),
        ]
        for miss in chosen
    ]  # fmt: skip
    return Table(["case", "call", "predicted", "measured", "ratio", "schedule"], rows)


def failures(run: Run) -> list[str]:
    """Cases that a contender computed wrong, torch's ways among them."""
    return [
        f"{case.name}, {SAID.get(name, name)} ({result.wrong})"
        for case in run.cases
        for name, result in case.results.items()
        if result.wrong
    ]


def _ratios(cases: Iterable[CaseRecord], name: str) -> Sequence[Cell]:
    """The number of cases with a ratio, the mean, the worst, and how many are behind."""
    found = [each for case in cases if (each := ratio(case, name)) is not None]
    if not found:
        return [Cell("0", 0), *[Cell("")] * 3]
    mean, worst, behind = geometric_mean(found), min(found), sum(each < EVEN for each in found)
    tone = "better" if mean >= 1 else "worse"
    return [
        Cell(str(len(found)), len(found)), Cell(f"{mean:.2f}", mean, tone), Cell(f"{worst:.2f}", worst),
        Cell(str(behind), behind),
    ]  # fmt: skip
