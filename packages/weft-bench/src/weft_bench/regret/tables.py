"""The tables of a run, and a row's line as it comes."""

from __future__ import annotations

from statistics import geometric_mean

from weft.base.figures import duration
from weft_bench.regret.record import CACHES, RegretRun, Row
from weft_bench.regret.workloads import CALLS
from weft_bench.report.page import Cell, Table

CALLS_IN_WORDS = (
    "Each row is a fresh process. Under a number of calls: the time from the first call on until then, over torch's "
    "for as many calls (~: reckoned from the last ones). steady is a call at the end over torch's; then seconds of "
    "weft's first call and of a torch call."
)
ONCE_IN_WORDS = (
    "Each row is a fresh process: all shapes once, or a network planned and contracted; then the same again, and torch."
)
MEAN, WORST = "geometric mean", "worst"


def line(row: Row) -> str:
    """A row as it comes."""
    head = f"{row.caches:>5}  {row.workload:<36}"
    if row.failure:
        return f"{head} {row.failure}"
    if row.kind != CALLS:
        first, again, torch = (duration(row.figures[name]) for name in ("first", "again", "torch"))
        return f"{head} first {first}, again {again}, torch {torch}"
    return f"{head} " + "  ".join(cell.text for cell in _cells(row))


def calls(run: RegretRun) -> Table:
    """Ratios at each mark, with geometric means and worst ones for each state of the caches."""
    rows = run.of_kind(calls=True)
    marks = rows[0].marks if rows else []
    heads = ["caches", "workload", *map(str, marks), "steady", "first", "torch"]
    lines = [[Cell(row.caches), Cell(row.workload), *_cells(row)] for row in rows]
    for state in CACHES:
        if chosen := [row for row in rows if row.caches == state]:
            columns = [[row.regret(at) for row in chosen] for at in range(len(marks))]
            columns.append([row.steady for row in chosen])
            for name, fold in ((MEAN, geometric_mean), (WORST, max)):
                found = [_number(fold(column)) for column in columns]
                lines.append([Cell(state), Cell(name), *found, Cell(""), Cell("")])
    return Table(heads, lines)


def once(run: RegretRun) -> Table:
    """Shapes and networks."""
    rows = [
        [
            Cell(row.caches), Cell(row.workload),
            *(Cell(duration(row.figures[name]), row.figures[name]) for name in ("first", "again", "torch")),
        ]
        for row in run.of_kind(calls=False)
    ]  # fmt: skip
    return Table(["caches", "workload", "first", "again", "torch"], rows)


def _cells(row: Row) -> list[Cell]:
    reached = row.figures["weft"]["reached"]
    found = [_number(row.regret(at), "" if mark <= reached else "~") for at, mark in enumerate(row.marks)]
    seconds = (row.figures["weft"]["first"], row.figures["torch"]["each"])
    return [*found, _number(row.steady), *(Cell(duration(each), each) for each in seconds)]


def _number(value: float, mark: str = "") -> Cell:
    return Cell(f"{value:.4g}{mark}" if value >= 100 else f"{value:.2f}{mark}", value)
