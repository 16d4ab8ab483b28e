"""The results of the suite `scaling`: speed-ups over one rank, and the laws that are fitted to them.

    scaling.CASE.speedup_on_P        of the same work: the time of one rank over that of P
    scaling.CASE.scaled_speedup_on_P of P times the work: P times that
    scaling.CASE.parallel_share      the share of the work that runs in parallel, by Amdahl's law, or Gustafson's
"""

from __future__ import annotations

from weft.machine.statistics import Interval
from weft_bench.machine.laws import Scaling
from weft_bench.records import CaseRecord, Run
from weft_bench.report.ratios import Ratio, geomean
from weft_bench.scaling import contender, ranks_of

WEAK = "weak"


def speedups(run: Run, case: CaseRecord) -> dict[int, Interval]:
    """By number of ranks: over one rank, or scaled where the work grows with them."""
    alone = case.measured(contender(1))
    found: dict[int, Interval] = {}
    for name in run.contenders:
        mine, ranks = case.measured(name), ranks_of(name)
        if alone is None or mine is None:
            continue
        ratio = geomean([Ratio(alone.samples, mine.samples)])
        times = ranks if case.group == WEAK else 1
        found[ranks] = Interval(*(times * each for each in (ratio.value, ratio.low, ratio.high)))
    return dict(sorted(found.items()))


def scaling_of(run: Run, case: CaseRecord) -> Scaling | None:
    """The speed-ups of a case, where there is one besides that of one rank."""
    found = speedups(run, case)
    if len(found) < 2:
        return None
    kind = "weak" if case.group == WEAK else "strong"
    return Scaling(kind, tuple(found), tuple(each.value for each in found.values()))


def scaling_figures(run: Run) -> dict[str, Interval]:
    """The figures of a run."""
    found: dict[str, Interval] = {}
    for case in run.cases:
        law = scaling_of(run, case)
        if law is None:
            continue
        word = "scaled_speedup" if case.group == WEAK else "speedup"
        for ranks, value in speedups(run, case).items():
            if ranks > 1:
                found[f"scaling.{case.name}.{word}_on_{ranks}"] = value
        found[f"scaling.{case.name}.parallel_share"] = Interval(*[law.parallel] * 3)
    return found


def scaling_rows(run: Run) -> list[tuple[CaseRecord, int, Interval, Scaling]]:
    """Each case on each number of ranks: its speed-up, and the law fitted to all of them."""
    found = []
    for case in run.cases:
        law = scaling_of(run, case)
        if law is not None:
            found += [(case, ranks, value, law) for ranks, value in speedups(run, case).items()]
    return found


def fitted(run: Run, kind: str) -> dict[str, Scaling]:
    """The cases of the same work ("strong"), or of work that grows with the ranks ("weak"), by name."""
    every = {case.name: scaling_of(run, case) for case in run.cases}
    return {name: found for name, found in every.items() if found is not None and found.kind == kind}
