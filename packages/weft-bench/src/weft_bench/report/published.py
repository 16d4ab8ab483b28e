"""Columns of what others published of a case: by head, a function from a case to a text and what it sorts by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from weft_bench.dense_thesis import DTYPE, SOURCE, PublishedTimes, published_times
from weft_bench.records import CaseRecord

_ON = "(V100, fp64)"

IN_WORDS = (
    f"Columns {_ON} are seconds that the {SOURCE} printed for a Tesla V100 in double precision: of the library that "
    "its speed-ups are over, and of the fastest of its kernels. Times stand beside cases in double precision alone; a "
    "rate of bytes beside every type that is moved."
)


def published(case: CaseRecord) -> PublishedTimes | None:
    """The thesis's times of a case; None where it has none, or at other extents."""
    return None if case.scaled else published_times().get(case.name)


def _library(case: CaseRecord) -> tuple[str, float] | None:
    found = _of_the_type(case)
    return _time(*found.library) if found and found.library else None


def _kernel(case: CaseRecord) -> tuple[str, float] | None:
    found = _of_the_type(case)
    return _time(*found.fastest_kernel) if found else None


def _rate(case: CaseRecord) -> tuple[str, float] | None:
    """TB/s of the fastest that was published, where nothing is multiplied."""
    found = published(case)
    if found is None or case.work.get("flops"):
        return None
    who, seconds = min({**found.libraries, **found.kernels}.items(), key=lambda each: each[1])
    rate = 2 * 8 * math.prod(extent for _, extent in case.extents) / seconds / 1e12
    return f"{rate:.3g} {_named(who)}", rate


def _table(case: CaseRecord) -> tuple[str, None] | None:
    found = published(case)
    return (f"table {found.table}", None) if found and (_kernel(case) or _rate(case)) else None


def _of_the_type(case: CaseRecord) -> PublishedTimes | None:
    return published(case) if set(case.dtypes) == {DTYPE} else None


def _time(who: str, seconds: float) -> tuple[str, float]:
    number = f"{1e6 * seconds:.4g}" if seconds < 1e-2 else f"{1e6 * seconds:.0f}"
    return f"{number} {_named(who)}", 1e6 * seconds


def _named(who: str) -> str:
    return f"kernel {who}" if who[0].isdecimal() else who


PUBLISHED: Mapping[str, Callable[[CaseRecord], tuple[str, float | None] | None]] = {
    f"published library us {_ON}": _library,
    f"published kernel us {_ON}": _kernel,
    f"published TB/s {_ON}": _rate,
    "published in": _table,
}
