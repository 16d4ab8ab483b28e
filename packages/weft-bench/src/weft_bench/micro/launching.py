"""The cost of a launch: 1000 small products one by one, in a CUDA graph, and grouped in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.api.contract import plan
from weft.errors import UnsupportedError
from weft.machine.statistics import Summary
from weft.machine.timing import Timing, measure
from weft_bench.micro import published
from weft_bench.micro.record import Micro, Row, column

COUNT = 1000
AGAIN = 2  # times that rows in doubt are measured anew
UNSTEADY = 1.25  # a product that takes so many times as long as a larger one was held up by something else
SIZES = (1, 2, 4, 8, 13, 16, 23, 32)


def launch(device: torch.device, name: str, budget: float) -> Micro:
    """Microseconds of 1000 fp64 products of n x n matrices in three ways."""
    rows, doubt = agreeing(lambda n: _row(device, n, budget))
    least = min(rows, key=lambda row: float(row["separate us"] or 0))
    each = float(least["separate us"] or 0) / COUNT
    figures = {"us a launch": each}
    if (graph := least.get("graph us")) is not None:
        figures["us a launch in a graph"] = float(graph) / COUNT
    return Micro(
        "launch", name, f"{COUNT} products of n x n matrices in fp64", "n", ("separate us", "graph us", "grouped us"),
        rows, figures, f"one launch after another costs {each:.3g} us each, whatever little it computes",
        published.LAUNCH, published.SOURCE, doubt=doubt,
    )  # fmt: skip


def overhead(separate: Summary, grouped: Summary) -> float | None:
    """The share of the separate launches that grouping saves, in percent and never below 0.

    None where the two intervals overlap: then nothing can be said.
    """
    if grouped.low <= separate.high and separate.low <= grouped.high:
        return None
    return max(0.0, 100 * (1 - grouped.median / separate.median))


def agreeing(row: Callable[[int], Row]) -> tuple[list[Row], str]:
    """A row for each size, those that contradict others measured again; and a sentence on what is left out for it."""
    rows = {n: row(n) for n in SIZES}
    for _ in range(AGAIN):
        rows |= {n: row(n) for n in held_up(list(rows.values()))}
    doubtful = held_up(list(rows.values()))
    if len(doubtful) == len(rows):
        raise UnsupportedError("the machine is too busy to say anything: measure again on a quiet one")
    sizes = ", ".join(map(str, doubtful))
    said = f"left out: n = {sizes}, whose times contradict others; other programs use the machine" if doubtful else ""
    return [each for n, each in rows.items() if n not in doubtful], said


def held_up(rows: Sequence[Row]) -> list[int]:
    """The sizes whose times contradict others: no overhead can be told, or a larger product takes far less."""
    times = column(rows, "separate us")
    return [
        int(row["n"] or 0)
        for at, row in enumerate(rows)
        if row["overhead %"] is None or times[at] > UNSTEADY * min(times[at:])
    ]


def _row(device: torch.device, n: int, budget: float) -> Row:
    a, b = (torch.randn(COUNT, n, n, dtype=torch.float64, device=device) for _ in range(2))
    out = torch.empty_like(a)
    triples = [(a[at], b[at], out[at]) for at in range(COUNT)]
    grouped: Any = plan("bij,bjk->bik", a, b, out=out, specialize="now")

    def separate() -> None:
        for x, y, z in triples:
            torch.mm(x, y, out=z)

    def together() -> None:
        grouped(a, b, out=out)

    def taken(call: Callable[[], Any], *, capture: bool) -> Timing:
        return measure(call, [()], device=device, mode="hot", budget=budget, capture=capture)

    alone, one = (taken(call, capture=False).summary for call in (separate, together))
    row: dict[str, float | str | None] = {"n": n, "separate us": 1e6 * alone.median, "grouped us": 1e6 * one.median}
    if device.type == "cuda":
        graph = taken(separate, capture=True)
        row["graph us"] = 1e6 * graph.seconds if graph.captured else None
    return row | {"times as fast": alone.median / one.median, "overhead %": overhead(alone, one)}
