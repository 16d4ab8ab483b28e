"""The distance of each precision from float64, for sums of growing length.

For each precision and each K one product of an M x K with an N x K matrix is computed and held against the float64
product of the same stored values. Two figures are kept: the error relative to the result (the Frobenius norm of the
difference over that of the result), and the largest error of an element in units of its `weft.error_bound`, which is
at most 1. The first is also taken against the values before they were rounded to storage: what a program that rounds
its data sees. Values are normal, or uniform from 0 to 1: sums that cancel, and sums that do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

SEED = 0


@dataclass(frozen=True, slots=True)
class Precision:
    """One way to multiply: storage and products; sums and D are float32, for float64 that."""

    name: str
    stored: torch.dtype
    precision: str | torch.dtype | None = None
    on_cpu: bool = True  # whether a CPU has it; what it serves by something more exact it has not

    @property
    def result(self) -> torch.dtype:
        return torch.float64 if self.stored is torch.float64 else torch.float32


PRECISIONS = (
    Precision("float32 ieee", torch.float32),
    Precision("float32 ieee_bound", torch.float32, "ieee_bound", on_cpu=False),
    Precision("float32 tf32x3", torch.float32, "tf32x3", on_cpu=False),
    Precision("float32 tf32", torch.float32, "tf32", on_cpu=False),
    Precision("float16", torch.float16),
    Precision("bfloat16", torch.bfloat16),
    Precision("e4m3", torch.float8_e4m3fn),
    Precision("e4m3, fp8 products", torch.float8_e4m3fn, torch.float8_e4m3fn, on_cpu=False),
    Precision("e5m2", torch.float8_e5m2),
    Precision("e5m2, fp8 products", torch.float8_e5m2, torch.float8_e5m2, on_cpu=False),
)


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One product. All errors are relative; None where the device has no such precision."""

    precision: str
    values: str  # "normal" or "uniform"
    k: int
    computed: float | None  # against the float64 product of the stored values
    with_storage: float | None  # against that of the values before they were rounded to storage
    over_bound: float | None  # the largest error of an element over its bound
    why_not: str | None = None


def measured(
    device: torch.device, depths: Sequence[int], side: int, step: Callable[[str], None] = lambda _: None
) -> list[AccuracyRow]:
    """Every precision, kind of values and K, on one device."""
    return list(_rows(device, depths, side, step))


def _rows(device: torch.device, depths: Sequence[int], side: int, step: Callable[[str], None]) -> Iterator[AccuracyRow]:
    for values in ("normal", "uniform"):
        for k in depths:
            step(f"{values} K={k}")
            a, b = (_operand((side, k), values, SEED + at, device) for at in range(2))
            exact = a @ b.T
            for precision in PRECISIONS:
                if precision.on_cpu or device.type != "cpu":
                    yield _row(precision, values, a, b, exact)


def _row(precision: Precision, values: str, a: torch.Tensor, b: torch.Tensor, exact: torch.Tensor) -> AccuracyRow:
    from weft.api.contract import contract
    from weft.errors import UnsupportedError
    from weft.testing import expectation, max_error_over_bound

    k = a.shape[1]
    x, y = a.to(precision.stored), b.to(precision.stored)
    options: dict[str, Any] = {"precision": precision.precision, "out_dtype": precision.result}
    try:
        d = contract("mk,nk->mn", x, y, **options)
    except UnsupportedError as error:
        return AccuracyRow(precision.name, values, k, None, None, None, str(error).splitlines()[0])
    reference, bound = expectation("mk,nk->mn", x, y, **options)
    return AccuracyRow(
        precision.name, values, k, _relative(d, reference), _relative(d, exact),
        max_error_over_bound(d, reference, bound),
    )  # fmt: skip


def _operand(shape: tuple[int, int], values: str, seed: int, device: torch.device) -> torch.Tensor:
    """float64 values that do not depend on the device."""
    generator = torch.Generator().manual_seed(seed)
    make = torch.randn if values == "normal" else torch.rand
    return make(shape, dtype=torch.float64, generator=generator).to(device)


def _relative(d: torch.Tensor, reference: torch.Tensor) -> float:
    return float((d.double() - reference).norm() / reference.norm())


def page(rows: Sequence[AccuracyRow], about: str) -> str:
    """The rows as Markdown: a table for each figure and kind of values, precisions down and K across."""
    figures = {
        "computed": "Error of the product of the stored values, relative to the result",
        "with_storage": "The same with the rounding of the values to storage",
        "over_bound": "Largest error of an element over its bound",
    }
    lines = ["# Accuracy by precision and K", "", about, ""]
    depths = sorted({row.k for row in rows})
    for figure, title in figures.items():
        for values in dict.fromkeys(row.values for row in rows):
            lines += [f"## {title}: {values} values", ""]
            lines.append("| precision | " + " | ".join(f"K={k}" for k in depths) + " |")
            lines.append("|---" * (len(depths) + 1) + "|")
            here = {(row.precision, row.k): row for row in rows if row.values == values}
            for name in dict.fromkeys(row.precision for row in rows):
                cells = [_cell(getattr(here[name, k], figure)) if (name, k) in here else "" for k in depths]
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
            lines.append("")
    reasons = dict.fromkeys(f"{row.precision}: {row.why_not}" for row in rows if row.why_not)
    return "\n".join([*lines, *(f"* {reason}" for reason in reasons)]).rstrip() + "\n"


def _cell(value: float | None) -> str:
    return "not here" if value is None else f"{value:.1e}"


def write(rows: Sequence[AccuracyRow], folder: Path, device: torch.device, side: int) -> None:
    """`accuracy.json` and `README.md` in a folder, with the machine and the command."""
    from weft.machine.stamp import command, commit, device_stamp
    from weft_bench.records import write_whole

    stamp = device_stamp(device)
    about = (
        f"{side} x K times K x {side}, float32 sums and results, seed {SEED}, on {stamp['name']}, torch "
        f"{stamp['torch']}, commit {commit()}. Made by `{command()}`."
    )
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "device": stamp, "commit": commit(),
        "command": command(), "side": side, "seed": SEED, "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    write_whole(folder / "accuracy.json", json.dumps(record, indent=1) + "\n")
    write_whole(folder / "README.md", page(rows, about))
