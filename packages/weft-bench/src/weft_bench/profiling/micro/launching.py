"""The cost of a launch: 1000 small products one by one, in a CUDA graph, and grouped in one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.api.contract import plan
from weft.machine.timing import measure
from weft_bench.profiling.micro import published
from weft_bench.profiling.micro.record import Micro, Row

COUNT = 1000
SIZES = (1, 2, 4, 8, 13, 16, 23, 32)


def launch(device: torch.device, name: str, budget: float) -> Micro:
    """Microseconds of 1000 fp64 products of n x n matrices in three ways."""
    rows = [_row(device, n, budget) for n in SIZES]
    least = min(rows, key=lambda row: float(row["separate us"] or 0))
    each = float(least["separate us"] or 0) / COUNT
    figures = {"us a launch": each}
    if (graph := least.get("graph us")) is not None:
        figures["us a launch in a graph"] = float(graph) / COUNT
    return Micro(
        "launch", name, f"{COUNT} products of n x n matrices in fp64", "n", ("separate us", "graph us", "grouped us"),
        rows, figures, f"one launch after another costs {each:.3g} us each, whatever little it computes",
        published.LAUNCH, published.SOURCE,
    )  # fmt: skip


def _row(device: torch.device, n: int, budget: float) -> Row:
    a, b = (torch.randn(COUNT, n, n, dtype=torch.float64, device=device) for _ in range(2))
    out = torch.empty_like(a)
    triples = [(a[at], b[at], out[at]) for at in range(COUNT)]
    grouped: Any = plan("bij,bjk->bik", a, b, out=out, specialize="never")

    def separate() -> None:
        for x, y, z in triples:
            torch.mm(x, y, out=z)

    def together() -> None:
        grouped(a, b, out=out)

    def microseconds(call: Callable[[], Any], *, capture: bool) -> tuple[float, bool]:
        taken = measure(call, [()], device=device, mode="hot", budget=budget, capture=capture)
        return 1e6 * taken.seconds, taken.captured

    alone, _ = microseconds(separate, capture=False)
    one, _ = microseconds(together, capture=False)
    row: dict[str, float | str | None] = {"n": n, "separate us": alone, "grouped us": one}
    if device.type == "cuda":
        graph, captured = microseconds(separate, capture=True)
        row["graph us"] = graph if captured else None
    return row | {"times as fast": alone / one, "overhead %": 100 * (1 - one / alone)}
