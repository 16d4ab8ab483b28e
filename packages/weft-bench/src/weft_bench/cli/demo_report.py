"""The demo's output: a table of its cases, their geometric means, and the same numbers as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import geometric_mean
from typing import Any

from rich import box
from rich.table import Table

from weft.base.figures import duration, share, si
from weft.spec.dtypes import dtype_name
from weft_bench.cli.demo_job import EXAMPLE, Settings
from weft_bench.records import CaseRecord, Result, Run

_COLUMNS = ("", "equation", "M", "N", "K", "time", "rate", "roof", "error", "torch")
_LEFT = ("", "equation")
_OVER_THE_ROOF = 1.05  # beyond what noise explains
_ROOMY = 90  # columns of text from which two spaces stand between columns of the table
_OURS, _PEER = "weft", "torch"


def suite(run: Run) -> list[CaseRecord]:
    """All measured cases but the example, which has its own types and functions."""
    return [record for record in _whole(run) if record.name != EXAMPLE.name]


def table(records: Sequence[CaseRecord], settings: Settings, place: str, width: int) -> Table:
    """One row a case, and geometric means below; 80 characters of `width` are enough. `place` names the device."""
    stored, _, result = map(dtype_name, settings.dtypes)
    made = Table(
        title=f"TCCG, {stored} -> {result}, {settings.backend} backend on {place}",
        caption=" ".join(_caption(records, settings)),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1 if width >= _ROOMY else 0),
        collapse_padding=True,
        show_footer=True,
    )
    footers = _footers(records)
    for name in _COLUMNS:
        made.add_column(name, footer=footers.get(name, ""), justify="left" if name in _LEFT else "right", no_wrap=True)
    for record in records:
        made.add_row(*_row(record))
    return made


def sentence(record: CaseRecord) -> str:
    """One case in a line, for the example."""
    ours, theirs = record.measured(_OURS), record.measured(_PEER)
    if ours is None:
        return f"WRONG: {failure(record)}"
    beside = (
        f"torch.einsum with its functions apart {duration(theirs.summary.median)}, {_speed(record):.2f} times as long"
        if theirs is not None
        else f"torch.einsum: {record.results[_PEER].cannot or record.results[_PEER].wrong}"
    )
    roof = f" ({share(_of_floor(record))} of the roof)" if record.floor else ""
    return f"{duration(ours.summary.median)}, {_rate_text(record)}{roof}; {beside}; largest error " + (
        f"{ours.error_over_bound:.3f} of its bound"
    )


def failure(record: CaseRecord) -> str:
    """The fault in weft's result; empty for a right one."""
    return record.results[_OURS].wrong.removeprefix("wrong: ")


def means(records: Sequence[CaseRecord]) -> dict[str, float]:
    """Geometric means over right results; empty where there are none."""
    timed = [record for record in records if record.measured(_OURS) is not None]
    both = [record for record in timed if record.measured(_PEER) is not None]
    floors = [_of_floor(record) for record in timed if record.floor]
    found = {}
    if both:
        found["speed against torch"] = geometric_mean([_speed(record) for record in both])
    if floors:
        found["floor over time"] = geometric_mean(floors)
    return found


def as_json(run: Run, settings: Settings, *, complete: bool) -> dict[str, Any]:
    """Every number of the table, with what is needed to judge and repeat it. `complete`: whether all cases ran."""
    records = _whole(run)
    return {
        "environment": run.environment,
        "backend": settings.backend,
        "device": str(settings.device),
        "complete": complete,
        "cases": [_record(record) for record in records],
        "geometric means": means(suite(run)),
        "wrong": [record.name for record in records if record.results[_OURS].wrong],
    }


def _whole(run: Run) -> list[CaseRecord]:
    """Cases to whose end the run has come."""
    return [record for record in run.cases if record.results.keys() >= set(run.contenders)]


def _compute_bound(record: CaseRecord) -> bool:
    """Which side of the roof is lower for this case; the matrix side where the roof is not known."""
    return not record.floor or record.floor["compute"] >= record.floor["memory"]


def _seconds(record: CaseRecord, contender: str = _OURS) -> float:
    return record.results[contender].summary.median


def _rate(record: CaseRecord) -> float:
    """FLOP/s where compute binds, else compulsory bytes a second."""
    return record.work["flops" if _compute_bound(record) else "bytes"] / _seconds(record)


def _of_floor(record: CaseRecord) -> float:
    """The floor over the time taken."""
    return float(record.floor["seconds"]) / _seconds(record)


def _speed(record: CaseRecord) -> float:
    """Above 1 where weft is faster than torch."""
    return _seconds(record, _PEER) / _seconds(record)


def _caption(records: Sequence[CaseRecord], settings: Settings) -> list[str]:
    """The meaning of the columns, and the caveats of this run."""
    sentences = [
        f"Extents: {settings.scaling}.",
        f"time: median of {settings.mode} runs.",
        "rate: FLOP/s where compute binds, else compulsory bytes a second.",
        "roof: roofline floor over time.",
        "error: largest error over its bound, against float64.",
        "torch: time of torch.einsum, contiguous in D's order and in the operands' type, over weft's.",
    ]
    timings = [result.timing for record in records for result in record.results.values() if result.samples]
    if settings.mode == "cold" and (noted := sum(bool(timing["notes"]) for timing in timings)):
        sentences.append(f"{noted} of {len(timings)} timings were not quite so: see their notes (--json).")
    timed = [record for record in records if record.floor and record.measured(_OURS) is not None]
    if any(_of_floor(record) > _OVER_THE_ROOF for record in timed):
        sentences.append("Times under the floor mean that the ceilings were measured low: weft info --refresh.")
    return sentences


def _row(record: CaseRecord) -> list[str]:
    head = [record.name.removeprefix("tccg-"), record.equation]
    head += [str(record.modes[mode]) for mode in ("m", "n", "k")]
    error = _error_text(record.results[_OURS])
    if record.measured(_OURS) is None:
        return [*head, "WRONG", "", "", error, ""]
    return [
        *head,
        duration(_seconds(record)),
        _rate_text(record),
        share(_of_floor(record)) if record.floor else "",
        error,
        f"{_speed(record):.2f}x" if record.measured(_PEER) is not None else "-",
    ]


def _footers(records: Sequence[CaseRecord]) -> dict[str, str]:
    """The last row: geometric means by column, and the worst error, which has none."""
    found = means(records)
    footers = {"equation": "geometric mean"} if found else {}
    if "floor over time" in found:
        footers["roof"] = share(found["floor over time"])
    if "speed against torch" in found:
        footers["torch"] = f"{found['speed against torch']:.2f}x"
    return footers


def _rate_text(record: CaseRecord) -> str:
    return si(_rate(record), "FLOP/s" if _compute_bound(record) else "B/s")


def _error_text(result: Result) -> str:
    error = result.error_over_bound
    if error is None:
        return "inf"
    return f"{error:.3f}" if error < 1000 else f"{error:.0e}"


def _record(record: CaseRecord) -> dict[str, Any]:
    result, modes, work = record.results[_OURS], record.modes, record.work
    return {
        "case": record.name,
        "equation": record.equation,
        "extents": dict(record.extents),
        "functions": record.functions,
        "dtypes": list(record.dtypes),
        "batch": modes["batch"],
        "m": modes["m"],
        "n": modes["n"],
        "k": modes["k"],
        "flops": work["flops"],
        "function flops": work["function_flops"],
        "compulsory bytes": work["bytes"],
        "schedule": result.about.get("schedule"),
        "workspace bytes": result.about.get("workspace bytes"),
        "error over bound": result.error_over_bound,
        "failure": failure(record) or None,
        "floor seconds": record.floor.get("seconds"),
        "binds": record.floor.get("binds"),
        **(_measured(record) if record.measured(_OURS) is not None else {}),
    }


def _measured(record: CaseRecord) -> dict[str, Any]:
    """The times of a right result, and torch's where it has one."""
    beside = record.measured(_PEER)
    return {
        "seconds": _seconds(record),
        "rate": _rate(record),
        "rate unit": "FLOP/s" if _compute_bound(record) else "B/s",
        "floor over time": _of_floor(record) if record.floor else None,
        "speed against torch": _speed(record) if beside is not None else None,
        "timing": _timing(record.results[_OURS]),
        "torch timing": _timing(beside) if beside is not None else None,
    }


def _timing(result: Result) -> dict[str, Any]:
    """How a timing was taken and its summary, without the samples."""
    return {**asdict(result.summary), **result.timing}
