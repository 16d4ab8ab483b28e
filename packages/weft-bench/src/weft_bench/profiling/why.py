"""Correlations of what a case is, and of what counters say of it, with weft's lead over a peer.

Two coefficients, as section IV-G of "Flexible Performant Tensor Contractions on GPUs" has them: Pearson's of the
logarithms, for what grows by a power, and Spearman's of the ranks, for what grows at all. The lead is the peer's median
over weft's. An interval is a percentile bootstrap over the cases. A correlation is no cause: of twenty quantities one
has an interval without 0 by chance alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from weft.errors import WeftError
from weft.machine.statistics import Interval, percentile_interval
from weft_bench.profiling.counters import ALL
from weft_bench.profiling.page import JSON_FILE
from weft_bench.profiling.record import Record
from weft_bench.records import CaseRecord, Run, reading
from weft_bench.report.page import Cell, Column, Table

WHY_IN_WORDS = (
    "Each row is a quantity of the cases: how it goes with the peer's time over weft's, by rank (Spearman) and by "
    "logarithms (Pearson), from -1 to 1. In brackets the interval that holds it with 95 % confidence; what has 0 "
    "within shows nothing. A correlation is no cause, and of twenty one stands out by chance."
)
LEAST = 5  # cases, below which nothing is correlated
RESAMPLES = 1000


def why(run: Run, peer: str, group: str, profiles: Mapping[str, Record] | None = None) -> Table:
    """Quantities of one group's cases with their coefficients, the surest first; `profiles` by names of cases.

    `WeftError` where fewer than five cases have both times.
    """
    pairs = run.pairs(peer, group)
    if len(pairs) < LEAST:
        raise WeftError(f"{len(pairs)} cases of {group} have times of {peer}: correlations need {LEAST}")
    leads = np.array([theirs.summary.median / mine.summary.median for _, theirs, mine in pairs])
    found = [_quantities(run, case, profiles or {}) for case, _, _ in pairs]
    rows = []
    for name in dict.fromkeys(name for each in found for name in each):
        values = np.array([np.nan if (value := each.get(name)) is None else value for each in found], dtype=float)
        known = np.isfinite(values)
        if known.sum() >= LEAST and np.ptp(values[known]) > 0:
            rows.append((name, int(known.sum()), *correlations(values[known], leads[known])))
    rows.sort(key=lambda row: -max(row[2].low, -row[2].high))
    return Table(
        ("quantity", "cases", "spearman", "interval", "pearson", "interval"),
        [[Cell(name), Cell(str(count), count), *_cells(rank), *_cells(line)] for name, count, rank, line in rows],
    )


def correlations(values: np.ndarray, leads: np.ndarray) -> tuple[Interval, Interval]:
    """Spearman's coefficient, and Pearson's of the logarithms (of the values themselves where one is not positive)."""
    draws = np.random.default_rng(0).integers(len(leads), size=(RESAMPLES, len(leads)))
    x = np.log(values) if (values > 0).all() else values
    found = []
    for a, b in ((_ranks(values), _ranks(leads)), (x, np.log(leads))):
        again = np.array([r for draw in draws if np.isfinite(r := _pearson(a[draw], b[draw]))])
        found.append(Interval(_pearson(a, b), *percentile_interval(again)))
    return found[0], found[1]


def profiles_below(folders: Iterable[Path]) -> dict[str, Record]:
    """Profiles of weft by the folder's name, which is the case's; `WeftError` where a folder has none."""
    import json

    found: dict[str, Record] = {}
    for folder in folders:
        files = sorted(folder.rglob(JSON_FILE))
        if not files:
            raise WeftError(f"there is no {JSON_FILE} in {folder} or below")
        for file in files:
            with reading(file, "profile of weft"):
                found[file.parent.name] = Record.from_dict(json.loads(file.read_text())["profiles"][0])
    return found


def _quantities(run: Run, case: CaseRecord, profiles: Mapping[str, Record]) -> dict[str, float | None]:
    """All of a case that a lead may come from, None where it is not known."""
    flops, moved = case.work.get("flops"), case.work.get("bytes")
    matrix = [case.modes[name] for name in "mnk" if name in case.modes]
    found: dict[str, float | None] = {name.upper(): case.modes.get(name) for name in ("m", "n", "k", "batch")}
    if len(matrix) == 3:
        m, n, k = matrix
        found |= {
            "M N": m * n, "M K": m * k, "N K": n * k, "M over N": m / n, "K squared over M N": k * k / (m * n),
            "least over greatest of M, N": min(m, n) / max(m, n),
        }  # fmt: skip
    found |= {
        "least over greatest of M, N, K": min(matrix) / max(matrix) if matrix else None,
        "modes": len(case.extents),
        "least extent": min((extent for _, extent in case.extents), default=None),
        "flops": flops,
        "bytes": moved,
        "flops a byte": flops / moved if flops and moved else None,
        "floor": case.floor.get("seconds"),
    }
    for key in ("waves", "slots_used", "occupancy", "registers"):
        column = Column(key, key, "kernels")
        found[f"weft's {key.replace('_', ' ')}"] = column.of(run, case)
    profile = profiles.get(case.base)
    if profile is not None and profile.busiest is not None and profile.bytes == moved:  # of the same types
        found |= {f"counter: {each.words}": profile.busiest.get(each.key) for each in ALL}
    return found


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    means: np.ndarray = (np.cumsum(counts) - (counts + 1) / 2)[inverse]
    return means


def _pearson(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm else float("nan")


def _cells(value: Interval) -> Sequence[Cell]:
    sure = "" if value.low <= 0 <= value.high else "better" if value.value > 0 else "worse"
    return Cell(f"{value.value:.2f}", value.value, sure), Cell(f"[{value.low:.2f}, {value.high:.2f}]")
