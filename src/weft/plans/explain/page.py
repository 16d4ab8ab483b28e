"""A report as a notebook shows it."""

from __future__ import annotations

from typing import Any

from weft.base.describe import table
from weft.base.figures import duration, share, si

CANDIDATES_SHOWN = 4


def shown(report: Any) -> str:
    """HTML of a `Report`: what is computed, what it costs, what was chosen, and what else could have been."""
    heads = ("", "schedule", "predicted", "measured", "workspace")
    candidates = [
        (
            at, each.text, duration(each.predicted_seconds),
            "" if each.measured_seconds is None else duration(each.measured_seconds), si(each.workspace_bytes, "B"),
        )
        for at, each in enumerate(report.candidates[:CANDIDATES_SHOWN], 1)
    ]  # fmt: skip
    return table(_rows(report)) + (table(candidates, heads) if candidates else "")


def _rows(report: Any) -> list[tuple[str, str]]:
    modes = [f"{mode.name}={mode.extent}" + (f" ({mode.role})" if mode.role else "") for mode in report.modes]
    rows = [
        ("equation", report.equation),
        ("device", f"{report.device}, {report.backend} backend"),
        ("modes", ", ".join(modes)),
        ("types", ", ".join(f"{name} {dtype}" for name, dtype in report.types.items())),
    ]
    if report.functions:
        rows.append(("fused", ", ".join(f"{hook}: {name}" for hook, name in report.functions.items())))
    rows.append(("work", f"{si(report.flops, 'flop')}, {si(report.bytes_read + report.bytes_written, 'B')} of traffic"))
    if report.floor_seconds is not None:
        binds = f"{report.floor_binds} binds ({report.ceilings} ceilings)"
        rows.append(("floor", f"{duration(report.floor_seconds)}, {binds}"))
    if report.schedule is not None:
        rows.append(("schedule", f"{report.schedule} (by {report.source})"))
    if report.predicted_seconds is not None:
        of_floor = report.floor_seconds / report.predicted_seconds if report.floor_seconds else None
        reached = f", {share(of_floor)} of the floor's speed" if of_floor is not None and of_floor <= 1 else ""
        of_host = f", {duration(report.host_seconds)} on the host" if report.host_seconds is not None else ""
        rows.append(("predicted", duration(report.predicted_seconds) + reached + of_host))
    rows.append(("workspace", si(report.workspace_bytes, "B")))
    return rows
