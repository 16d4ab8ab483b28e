"""Arithmetic: registers against occupancy, and branches that split warps."""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.machine.datasheets import limits_of
from weft.machine.timing import measure
from weft_bench.machine.occupancy import occupancy
from weft_bench.micro import cuda, published
from weft_bench.micro.record import Micro, Row

LIVE = (4, 8, 16, 24, 32, 48, 64, 96, 128, 160)  # sums that each thread keeps
HELD = (0, 16, 32, 64, 96, 128, 192)  # registers that each thread keeps besides, at equal work
EQUAL = 8  # sums then: as many multiply-adds as wait for one another
_THREADS = 256
_OPERATIONS = 1 << 15  # multiply-adds of each thread, whatever it keeps
_BRANCH_STEPS = 2048


def registers(device: torch.device, name: str, budget: float) -> Micro:
    """Rate of fp32 multiply-adds over the number of sums that a thread keeps in registers."""
    rows = [{"sums": live, **_rate(device, live, 0, budget)} for live in LIVE]
    best = max(rows, key=lambda row: float(row["Tflop/s"] or 0))
    last = rows[-1]
    return Micro(
        "registers", name, "fp32 multiply-adds on so many sums a thread", "sums", ("Tflop/s", "occupancy %"), rows,
        {"best Tflop/s": float(best["Tflop/s"] or 0), "Tflop/s with most registers": float(last["Tflop/s"] or 0)},
        f"fastest with {best['sums']} sums a thread: fewer leave the pipes waiting for their own results, more leave "
        "fewer warps to hide behind",
    )  # fmt: skip


def held(device: torch.device, name: str, budget: float) -> Micro:
    """Rate at equal work over the number of registers that a thread keeps besides: occupancy alone varies."""
    rows = [{"held": count, **_rate(device, EQUAL, count, budget)} for count in HELD]
    first, last = (float(rows[at]["Tflop/s"] or 0) for at in (0, -1))
    return Micro(
        "held", name, f"fp32 multiply-adds on {EQUAL} sums a thread, with so many registers kept besides", "held",
        ("Tflop/s", "occupancy %"), rows, {"Tflop/s with most registers over least": last / first},
        f"with {HELD[-1]} registers more, and so fewer warps, the same work reaches {last / first:.0%} of the rate",
        published.REGISTERS, published.SOURCE,
    )  # fmt: skip


def _rate(device: torch.device, live: int, held: int, budget: float) -> Row:
    """Time, rate, registers and occupancy of multiply-adds on `live` sums, with `held` registers kept besides."""
    properties = torch.cuda.get_device_properties(device)
    blocks, steps = 16 * properties.multi_processor_count, _OPERATIONS // live
    out = torch.zeros(blocks * _THREADS, device=device)
    kernel = cuda.kernel("live_sums", LIVE=live, HELD=held)
    taken = measure(
        lambda: kernel(blocks, _THREADS, out, steps, 0.999, 0.5), [()], device=device, mode="hot", budget=budget
    )
    row: dict[str, float | str | None] = {
        "ms": 1e3 * taken.seconds, "Tflop/s": 2 * live * steps * blocks * _THREADS / taken.seconds / 1e12,
        "registers": kernel.registers,
    }  # fmt: skip
    if kernel.registers is not None:
        limits = limits_of(10 * properties.major + properties.minor)
        row["occupancy %"] = 100 * occupancy(limits, registers=kernel.registers, shared=0, warps=_THREADS // 32).share
    return row


def divergence(device: torch.device, name: str, budget: float) -> Micro:
    """A branch taken by whole warps, and by half of the lanes of each."""
    rows: list[Row] = []
    for branch, by_lane in (("by warp", False), ("by lane", True)):
        call, out = branch_call(device, by_lane)
        taken = measure(call, [(out,)], device=device, mode="hot", budget=budget)
        rows.append({"branch": branch, "ms": 1e3 * taken.seconds})
    ratio = float(rows[1]["ms"] or 0) / float(rows[0]["ms"] or 1)
    return Micro(
        "divergence", name, "two sides of a branch, of equally many multiply-adds", "branch", ("ms",), rows,
        {"times as long": ratio}, f"a branch that splits each warp takes {ratio:.3g} times as long",
    )  # fmt: skip


def branch_call(device: torch.device, by_lane: bool) -> tuple[Callable[[torch.Tensor], None], torch.Tensor]:
    """A call of the branch, by half of the lanes of each warp or by whole warps, and the tensor that it writes."""
    kernel = cuda.kernel("branch")
    blocks = 16 * torch.cuda.get_device_properties(device).multi_processor_count
    out = torch.empty(blocks * _THREADS, device=device)
    return lambda out: kernel(blocks, _THREADS, out, int(by_lane), _BRANCH_STEPS), out
