"""What the demo prints and writes: a table of its outcomes, their geometric means, and the same numbers as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from rich import box
from rich.table import Table

from weft.base.figures import duration, share, si
from weft.bench.environment import disclose
from weft.cli.demo import EXAMPLE, Outcome, Settings
from weft.machine.ceilings import Ceilings
from weft.machine.stamp import device_stamp
from weft.machine.statistics import geometric_mean
from weft.machine.timing import Timing
from weft.spec.dtypes import dtype_name

_COLUMNS = ("", "equation", "M", "N", "K", "time", "rate", "roof", "error", "torch")
_LEFT = ("", "equation")
_OVER_THE_ROOF = 1.05  # beyond what noise explains
_ROOMY = 90  # columns of text from which two spaces stand between columns of the table


def suite(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """All but the example, which has its own types and functions."""
    return [outcome for outcome in outcomes if outcome.case.name != EXAMPLE.name]


def table(outcomes: Sequence[Outcome], settings: Settings, width: int) -> Table:
    """One row a case, and geometric means below; 80 characters of `width` are enough."""
    stored, _, result = map(dtype_name, settings.dtypes)
    place = device_stamp(settings.device)["name"]
    made = Table(
        title=f"TCCG, {stored} -> {result}, {settings.backend} backend on {place}",
        caption=" ".join(_caption(outcomes, settings)),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1 if width >= _ROOMY else 0),
        collapse_padding=True,
        show_footer=True,
    )
    footers = _footers(outcomes)
    for name in _COLUMNS:
        made.add_column(name, footer=footers.get(name, ""), justify="left" if name in _LEFT else "right", no_wrap=True)
    for outcome in outcomes:
        made.add_row(*_row(outcome))
    return made


def sentence(outcome: Outcome) -> str:
    """One outcome in a line, for the example."""
    if outcome.ours is None or outcome.torch is None:
        return f"WRONG: {outcome.failure}"
    return (
        f"{duration(outcome.ours.seconds)}, {_rate_text(outcome)}{_roof_text(outcome, ' (', ' of the roof)')}; "
        f"torch.einsum with its functions apart {duration(outcome.torch.seconds)}, {outcome.speed_against_torch:.2f} "
        f"times as long; largest error {outcome.error_over_bound:.3f} of its bound"
    )


def means(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Geometric means over right results; empty where there are none."""
    timed = [outcome for outcome in outcomes if outcome.ours is not None]
    floors = [outcome.of_floor for outcome in timed if outcome.of_floor is not None]
    found = {}
    if timed:
        found["speed against torch"] = geometric_mean([outcome.speed_against_torch for outcome in timed])
    if floors:
        found["floor over time"] = geometric_mean(floors)
    return found


def as_json(
    outcomes: Sequence[Outcome], settings: Settings, known: Ceilings | None, *, complete: bool
) -> dict[str, Any]:
    """Every number of the table, with what is needed to judge and repeat it. `complete`: whether all cases ran."""
    environment = disclose(
        settings.device,
        workloads={
            "suite": "the fused example of the paper, and TCCG",
            "extents": settings.scaling,
            "inputs": "normal values, seeded",
        },
        correctness={
            "reference": "weft.reference in float64, on operands of their own, D poisoned beforehand",
            "bound": "a worst case of rounding for each element: weft.testing.expectation",
        },
        ceilings=known,
        budget=settings.budget,
    )
    return {
        "environment": environment,
        "backend": settings.backend,
        "device": str(settings.device),
        "complete": complete,
        "cases": [_record(outcome) for outcome in outcomes],
        "geometric means": means(suite(outcomes)),
        "wrong": [outcome.case.name for outcome in outcomes if outcome.failure],
    }


def _caption(outcomes: Sequence[Outcome], settings: Settings) -> list[str]:
    """What the columns are, and what this run leaves to be desired."""
    sentences = [
        f"Extents: {settings.scaling}.",
        f"time: median of {settings.mode} runs.",
        "rate: FLOP/s where compute binds, else compulsory bytes a second.",
        "roof: roofline floor over time.",
        "error: largest error over its bound, against float64.",
        "torch: time of torch.einsum, contiguous in D's order and in the operands' type, over weft's.",
    ]
    timings = [timing for outcome in outcomes for timing in (outcome.ours, outcome.torch) if timing is not None]
    if settings.mode == "cold" and (noted := sum(bool(timing.notes) for timing in timings)):
        sentences.append(f"{noted} of {len(timings)} timings were not quite so: see their notes (--json).")
    if any((outcome.of_floor or 0) > _OVER_THE_ROOF for outcome in outcomes):
        sentences.append("Times under the floor mean that the ceilings were measured low: weft info --refresh.")
    return sentences


def _row(outcome: Outcome) -> list[str]:
    contraction = outcome.plan.contraction
    head = [outcome.case.name.removeprefix("tccg-"), str(outcome.case.equation)]
    head += [str(extent) for extent in (contraction.m, contraction.n, contraction.k)]
    if outcome.ours is None:
        return [*head, "WRONG", "", "", _error_text(outcome), ""]
    return [
        *head,
        duration(outcome.ours.seconds),
        _rate_text(outcome),
        _roof_text(outcome),
        _error_text(outcome),
        f"{outcome.speed_against_torch:.2f}x",
    ]


def _footers(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """The last row: geometric means by column, and the worst error, which has none."""
    found = means(outcomes)
    footers = {"equation": "geometric mean"} if found else {}
    if "floor over time" in found:
        footers["roof"] = share(found["floor over time"])
    if "speed against torch" in found:
        footers["torch"] = f"{found['speed against torch']:.2f}x"
    return footers


def _rate_text(outcome: Outcome) -> str:
    return si(outcome.rate, "FLOP/s" if outcome.compute_bound else "B/s")


def _roof_text(outcome: Outcome, before: str = "", after: str = "") -> str:
    return f"{before}{share(outcome.of_floor)}{after}" if outcome.of_floor is not None else ""


def _error_text(outcome: Outcome) -> str:
    return f"{outcome.error_over_bound:.3f}" if outcome.error_over_bound < 1000 else f"{outcome.error_over_bound:.0e}"


def _record(outcome: Outcome) -> dict[str, Any]:
    contraction, work, floor = outcome.plan.contraction, outcome.work, outcome.floor
    error = outcome.error_over_bound
    record: dict[str, Any] = {
        "case": outcome.case.name,
        "equation": outcome.case.equation,
        "extents": {str(label): extent for label, extent in outcome.case.extents.items()},
        "functions": {h: f for h in ("a_fn", "b_fn", "epilogue") if (f := getattr(outcome.case, h)) is not None},
        "dtypes": [dtype_name(dtype) for dtype in outcome.case.dtypes],
        "batch": contraction.batch,
        "m": contraction.m,
        "n": contraction.n,
        "k": contraction.k,
        "flops": work.flops,
        "function flops": work.function_flops,
        "compulsory bytes": work.traffic,
        "schedule": str(outcome.plan.schedule) if outcome.plan.schedule is not None else None,
        "workspace bytes": outcome.plan.workspace_bytes,
        "error over bound": error if isfinite(error) else None,
        "failure": outcome.failure or None,
        "floor seconds": floor.seconds if floor is not None else None,
        "binds": floor.binds if floor is not None else None,
    }
    if outcome.ours is not None and outcome.torch is not None:
        record |= {
            "seconds": outcome.ours.seconds,
            "rate": outcome.rate,
            "rate unit": "FLOP/s" if outcome.compute_bound else "B/s",
            "floor over time": outcome.of_floor,
            "speed against torch": outcome.speed_against_torch,
            "timing": _timing(outcome.ours),
            "torch timing": _timing(outcome.torch),
        }
    return record


def _timing(timing: Timing) -> dict[str, Any]:
    """How a timing was taken and its summary, without the samples."""
    return {**asdict(timing.summary), **{k: v for k, v in asdict(timing).items() if k != "samples"}}
