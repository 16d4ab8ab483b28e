"""Several runs side by side, and the summary of figures that the documentation quotes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.machine.statistics import Interval
from weft_bench.records import CaseRecord, Run, device_slug, load, save, write_whole
from weft_bench.report import page
from weft_bench.report.figures import figures, unit
from weft_bench.report.page import Cell, Table
from weft_bench.report.ratios import Ratio, geomean

PAGE_FILE = "index.html"
SUMMARY_FILE = "summary.json"
SAME = "no difference"
MEANS_IN_WORDS = (
    "Each row is a contender's mean time over the cases that all runs measured, one pair of columns a run. Speedup is "
    "the first run's time over the later one's: above 1 the later one is faster. Verdicts stand only where the 95 % "
    "intervals part."
)
CASES_IN_WORDS = "Each row is one case and contender: its times, and whether a later run differs from the first."


@dataclass(frozen=True)
class Line:
    """One row of a comparison: the same thing in every run, seconds; None where a run lacks it."""

    group: str
    name: str  # of the case; empty for a group's geometric mean
    contender: str
    values: tuple[Interval | None, ...]

    def verdicts(self) -> list[str]:
        """For each run after the first: faster, slower, or no difference; empty where one of the two is missing."""
        first = self.values[0]
        said = []
        for later in self.values[1:]:
            if first is None or later is None:
                said.append("")
            elif not later.parts_from(first):
                said.append(SAME)
            else:
                said.append("faster" if later.value < first.value else "slower")
        return said


@dataclass(frozen=True)
class Comparison:
    """Runs of one suite, the first the one that others are held against."""

    runs: tuple[Run, ...]
    names: tuple[str, ...]
    means: tuple[Line, ...]  # geometric means over the cases that all runs measured
    cases: tuple[Line, ...]


def write(run: Run, folder: Path) -> dict[str, bytes]:
    """Write everything of one run into `folder`: JSON, CSV, plots, page. Returns the plots by name.

    Without matplotlib there are none, with a warning; the JSON is enough to draw them elsewhere.
    """
    save(run, folder)
    try:
        from weft_bench.report.plots import draw
    except ImportError as error:
        warnings.warn(f"no plots: {error}; weft report draws them where it can", RuntimeWarning, stacklevel=2)
        plots: dict[str, bytes] = {}
    else:
        plots = draw(run)
    for name, png in plots.items():
        write_whole(folder / f"{name}.png", png)
    write_whole(folder / PAGE_FILE, page.run_page(run, plots))
    return plots


def compare(runs: Sequence[Run], names: Sequence[str]) -> Comparison:
    """Hold `runs` of one suite against the first. `WeftError` where they are of different suites."""
    suites = {run.suite for run in runs}
    if len(suites) != 1:
        raise WeftError(f"runs of different suites cannot be compared: {', '.join(sorted(suites))}")
    by_name = [{(case.group, case.name): case for case in run.cases} for run in runs]
    keys = list(dict.fromkeys(key for cases in by_name for key in cases))
    if len(runs) > 1 and not any(all(key in cases for cases in by_name) for key in keys):
        has = "; ".join(f"{name} has {_groups_text(run)}" for name, run in zip(names, runs, strict=True))
        raise WeftError(f"the runs have no case in common: {has}")
    contenders = list(dict.fromkeys(name for run in runs for name in run.contenders))
    cases: list[Line] = []
    means: list[Line] = []
    for contender in contenders:
        lines = [Line(*key, contender, tuple(_seconds(cases.get(key), contender) for cases in by_name)) for key in keys]
        cases += [line for line in lines if any(line.values)]
        for group in dict.fromkeys(group for group, _ in keys):
            common = [key for key, line in zip(keys, lines, strict=True) if line.group == group and all(line.values)]
            if common:
                values = tuple(_mean([cases[key] for key in common], contender) for cases in by_name)
                means.append(Line(group, "", contender, values))
    return Comparison(tuple(runs), tuple(names), tuple(means), tuple(cases))


def _groups_text(run: Run) -> str:
    """The cases of a run in a few words."""
    counts = {group: sum(case.group == group for case in run.cases) for group in run.groups}
    texts = [f"{count} of {group}" for group, count in counts.items()]
    return ", ".join(texts) if len(texts) <= 4 else f"{', '.join(texts[:3])} and {len(texts) - 3} groups more"


def comparison_table(lines: Sequence[Line], names: Sequence[str]) -> Table:
    """Times with intervals, the ratio of the first to each later run, and what can be said of it."""
    heads = ["group", "case", "contender"]
    for at, name in enumerate(names):
        heads += [f"{name} us", "interval us"] + (["speedup", "verdict"] if at else [])
    return Table(heads, [_row(line) for line in lines])


def comparison_page(comparison: Comparison) -> str:
    """The comparison as a page."""
    first = comparison.runs[0]
    lead = "; ".join(
        f"{name}: {run.device}, commit {run.commit or 'unknown'}, {run.date}" + (f" ({run.caveat})" * bool(run.caveat))
        for name, run in zip(comparison.names, comparison.runs, strict=True)
    )
    return page.page(
        f"weft bench {first.suite}: {len(comparison.runs)} runs",
        lead,
        [
            page.section(
                "Geometric means", comparison_table(comparison.means, comparison.names).html(), MEANS_IN_WORDS
            ),
            page.section("Cases", comparison_table(comparison.cases, comparison.names).html(), CASES_IN_WORDS),
        ],
    )


def summary(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Every figure of every run by name, with its interval, unit, and where it comes from.

    Where two runs have the same figure, the later run's stands. `WeftError` for runs of different devices, and for a
    run that was not finished or has wrong results: its figures would be about something else.
    """
    if len({run.device for run in runs}) > 1:
        raise WeftError(f"one summary is of one device, these are {', '.join(sorted({run.device for run in runs}))}")
    found: dict[str, dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: run.date):
        if run.ended != "finished":
            raise WeftError(f"the run of {run.suite} of {run.date} was not finished: {run.ended}")
        wrong = [f"{case.group} {case.name}" for case, _ in run.failures()]
        if wrong:
            raise WeftError(f"the run of {run.suite} of {run.date} has wrong results: {', '.join(wrong)}")
        for name, value in figures(run).items():
            found[name] = {
                "value": _rounded(value.value),
                "low": _rounded(value.low),
                "high": _rounded(value.high),
                "unit": f"{unit(name)} ({run.caveat})" if run.caveat else unit(name),
                "commit": run.commit,
                "date": run.date,
                "command": run.command,
            }
    return dict(sorted(found.items()))


def write_summary(folders: Sequence[Path], file: Path | None = None) -> Path:
    """Write the summary of the runs in `folders` to `file`, by default ``results/<device>/summary.json``."""
    runs = [load(folder) for folder in folders]
    content = summary(runs)
    if file is None:
        file = Path("results") / device_slug(runs[0].device) / SUMMARY_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return file


def _seconds(case: CaseRecord | None, contender: str) -> Interval | None:
    result = case.measured(contender) if case is not None else None
    return result.seconds if result is not None else None


def _mean(cases: Sequence[CaseRecord], contender: str) -> Interval:
    """Geometric mean of a contender's times."""
    results = [result for case in cases if (result := case.measured(contender)) is not None]
    return geomean([Ratio(result.samples, (1.0,)) for result in results])


def _row(line: Line) -> list[Cell]:
    row = [Cell(line.group), Cell(line.name or "geometric mean"), Cell(line.contender)]
    first = line.values[0]
    for at, value in enumerate(line.values):
        if value is None:
            row += [Cell(""), Cell("")]
        else:
            row += [page.microseconds(value), Cell(f"[{1e6 * value.low:.4g}, {1e6 * value.high:.4g}]")]
        if at:
            verdict = line.verdicts()[at - 1]
            ratio = first.value / value.value if first is not None and value is not None else None
            row.append(Cell(f"{ratio:.3g}", ratio) if ratio is not None else Cell(""))
            row.append(Cell(verdict, tone={"faster": "better", "slower": "worse"}.get(verdict, "")))
    return row


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
