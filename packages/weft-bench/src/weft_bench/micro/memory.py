"""Memory: strided copies, reads of growing working sets, banks of shared memory, transfers between host and device."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.machine.ceilings import ceilings
from weft.machine.timing import measure
from weft_bench.micro import cuda, numa, published
from weft_bench.micro.models import break_even, conflicts, fit_transfer, knee
from weft_bench.micro.record import Micro, Row

STRIDES = (1, 2, 4, 8, 16, 32, 64, 128)
ELEMENTS = 1 << 24  # of the strided copy: as many as the published sweep moves
_BLOCK = 256
_TILE = 2048  # elements that a program reads at once from the L2
_READ_BYTES = 1 << 30  # in one call, from whatever working set
WORKING_SETS = tuple(1 << at for at in range(20, 30))  # bytes
BANK_STRIDES = (1, 2, 4, 8, 16, 32)
_BANK_STEPS = 4096
TRANSFERS = tuple(1 << at for at in range(12, 29, 2))  # bytes


def coalescing(device: torch.device, name: str, budget: float) -> Micro:
    """Bandwidth of fp32 loads and stores whose neighbours lie apart."""
    from weft_bench.micro.kernels import strided_copy_kernel

    x, y = torch.randn(ELEMENTS, device=device), torch.empty(ELEMENTS, device=device)
    rows: list[Row] = []
    for stride in STRIDES:

        def copy(stride: int = stride) -> None:
            strided_copy_kernel[(ELEMENTS // _BLOCK,)](x, y, stride, ELEMENTS=ELEMENTS, BLOCK=_BLOCK)

        seconds = _seconds(copy, device, budget)
        rate = 8 * ELEMENTS / seconds / 1e9
        first = float(rows[0]["GB/s"] or 0) if rows else rate
        rows.append({"stride": stride, "ms": 1e3 * seconds, "GB/s": rate, "of stride 1": rate / first})
    worst = min(float(row["of stride 1"] or 0) for row in rows)
    return Micro(
        "coalescing", name, "fp32 copies at (thread x stride) mod 2^24", "stride", ("GB/s",), rows,
        {"worst of stride 1": worst}, f"neighbours that lie apart leave {worst:.0%} of the bandwidth",
        published.COALESCING, published.SOURCE,
    )  # fmt: skip


def l2(device: torch.device, name: str, budget: float) -> Micro:
    """Bandwidth of reads over the size of the working set."""
    from weft_bench.micro.kernels import read_again_kernel

    programs = 8 * torch.cuda.get_device_properties(device).multi_processor_count
    out = torch.empty(programs * _TILE, device=device)
    x = torch.zeros(WORKING_SETS[-1] // 4, device=device)
    rows: list[Row] = []
    for size in WORKING_SETS:
        tiles = size // (4 * _TILE)
        passes = max(1, _READ_BYTES // size)

        def read(tiles: int = tiles, passes: int = passes) -> None:
            read_again_kernel[(programs,)](x, out, tiles, passes, PROGRAMS=programs, BLOCK=_TILE)

        rows.append({"MiB": size / 2**20, "TB/s": passes * size / _seconds(read, device, budget) / 1e12})
    rates = [float(row["TB/s"] or 0) for row in rows]
    capacity = knee([float(size) for size in WORKING_SETS], rates)
    properties = torch.cuda.get_device_properties(device)
    figures = {"L2 TB/s": max(rates), "DRAM TB/s": rates[-1], "knee MiB": capacity / 2**20,
               "L2 MiB by the driver": properties.L2_cache_size / 2**20}  # fmt: skip
    return Micro(
        "l2", name, "fp32 reads of a working set over and over, past the first cache", "MiB", ("TB/s",), rows, figures,
        f"the L2 gives {max(rates) / rates[-1]:.2f} times what memory does, up to about {capacity / 2**20:.0f} MiB",
    )  # fmt: skip


def shared(device: torch.device, name: str, budget: float) -> Micro:
    """Time of reads of shared memory over the stride between lanes: bank conflicts."""
    kernel = cuda.kernel("banks")
    blocks, threads = 4 * torch.cuda.get_device_properties(device).multi_processor_count, 256
    out = torch.empty(blocks * threads, device=device)
    rows: list[Row] = []
    for stride in BANK_STRIDES:

        def read(stride: int = stride) -> None:
            kernel(blocks, threads, out, stride, _BANK_STEPS)

        seconds = _seconds(read, device, budget)
        rate = 4 * blocks * threads * _BANK_STEPS / seconds / 1e12
        first = float(rows[0]["TB/s"] or 0) if rows else rate
        rows.append({"stride": stride, "lanes a bank": conflicts(stride), "us": 1e6 * seconds, "TB/s": rate,
                     "times as long": first / rate})  # fmt: skip
    worst = float(rows[-1]["times as long"] or 0)
    return Micro(
        "shared", name, "reads of words of shared memory that lie apart", "stride", ("times as long",), rows,
        {"TB/s without conflicts": float(rows[0]["TB/s"] or 0), "times as long with 32 lanes a bank": worst},
        f"lanes that meet in one bank wait for one another: 32 of them take {worst:.3g} times as long",
    )  # fmt: skip


def transfer(device: torch.device, name: str, budget: float) -> Micro:
    """Time of copies between host and device, pinned and pageable, and T = t0 + bytes / B fitted to them.

    Where the host's memory has several nodes, that is a class of path each.
    """
    rows: list[Row] = []
    paths = [(node, f" {node.text}" if node else "") for node in numa.nodes(device) or (None,)]
    for size in TRANSFERS:
        there = torch.empty(size, dtype=torch.uint8, device=device)
        row: dict[str, float | str | None] = {"bytes": size}
        for (node, path), kind in itertools.product(paths, ("pinned", "pageable")):
            with numa.bound(node):
                here = _host(size, kind == "pinned")
                row[f"{kind}{path} to device us"] = 1e6 * _copied(there, here, device, budget)
                row[f"{kind}{path} to host us"] = 1e6 * _copied(here, there, device, budget)
        rows.append(row)
    ways = [key for key in rows[0] if key != "bytes"]
    fitted = {way: fit_transfer(TRANSFERS, [float(row[way] or 0) / 1e6 for row in rows]) for way in ways}
    figures: dict[str, float] = {}
    for way, model in fitted.items():
        plain = way.removesuffix(" us")
        figures |= {f"{plain}: t0 us": 1e6 * model.latency, f"{plain}: GB/s": model.bandwidth / 1e9,
                    f"{plain}: off by at most": model.worst}  # fmt: skip
    bandwidth = fitted[f"pinned{paths[0][1]} to device us"].bandwidth
    said = f"pinned memory moves at {bandwidth / 1e9:.3g} GB/s"
    for _, path in paths[1:]:
        share = fitted[f"pinned{path} to device us"].bandwidth / bandwidth
        said += f", that of{path} at {share:.2f} of it"
    for what, value in _break_even(device, bandwidth).items():
        figures[what] = value
        said += f"; {what} {value:.3g}"
    return Micro("transfer", name, "copies between host and device", "bytes", tuple(ways), rows, figures, said)


def _break_even(device: torch.device, bandwidth: float) -> dict[str, float]:
    """Flops for each byte moved from which on an fp32 product is better made on the GPU, where rates are known."""
    try:
        there = ceilings(device, may_measure=False).rate("float32")
    except UnsupportedError:
        return {}
    if there is None:
        return {}
    found = {"flop/B from which computing takes longer than moving": break_even(bandwidth, there)}
    try:
        here = ceilings("cpu", may_measure=False).rate("float32")
    except UnsupportedError:
        here = None
    if here is not None:
        found["flop/B from which moving pays against this CPU"] = break_even(bandwidth, there, here)
    return found


def _host(size: int, pinned: bool) -> torch.Tensor:
    """Memory of the host, touched by this thread."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(1)


def _copied(to: torch.Tensor, source: torch.Tensor, device: torch.device, budget: float) -> float:
    """Seconds of a copy on the stream; of pageable memory with what the host does for it."""

    def copy() -> None:
        to.copy_(source, non_blocking=True)

    taken = measure(copy, [()], device=device, mode="hot", budget=budget, capture=False, quick=True)
    return taken.seconds


def _seconds(call: Callable[[], Any], device: torch.device, budget: float) -> float:
    return measure(call, [()], device=device, mode="hot", budget=budget, quick=True).seconds
