"""What the cost model chooses of schedules that were timed, beside the fastest of them."""

import json
from functools import cache
from itertools import groupby
from math import exp, log
from pathlib import Path

import pytest

from weft.cli.tuning.run import of_equation

RECORD = Path(__file__).parents[2] / "results" / "h200" / "float32_schedules.json"


@cache
def _over_the_fastest():
    """Of each problem the time of the model's choice, which was timed, over the least."""
    rows = [row for row in json.loads(RECORD.read_text())["rows"] if row["verdict"] == "measured"]
    return {problem: _of_problem(list(timed)) for problem, timed in groupby(rows, key=_problem)}


def _problem(row):
    return row["equation"], *row["extents"].items()


def _of_problem(timed):
    chosen = of_equation(timed[0]["equation"], timed[0]["extents"], target="h200").choice().best.schedule
    seconds = {row["schedule"]: row["seconds"] for row in timed}
    return seconds[str(chosen)] / min(seconds.values())


def test_products_of_float32_take_little_more_than_the_fastest_schedule():
    found = _over_the_fastest()
    assert len(found) == 35
    assert exp(sum(map(log, found.values())) / len(found)) < 1.05
    assert max(found.values()) < 1.31


@pytest.mark.parametrize("shape", [(1250, 2500, 1250), (500, 2000, 1500), (740, 2960, 2220)])
def test_sums_along_rows_leave_the_library_only_where_it_is_slower(shape):
    """Those took 1.27 to 1.60 times as long as cuBLAS, by kernels that were expected to be faster."""
    m, k, n = shape
    assert _over_the_fastest()["mk,kn->mn", ("m", m), ("k", k), ("n", n)] < 1.1
