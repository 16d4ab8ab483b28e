"""Scaling over threads, measured and modelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.ticker import FuncFormatter

from weft.base.figures import si
from weft.machine.datasheets import datasheet
from weft.machine.timing import measure
from weft_bench.cases import Case
from weft_bench.machine.laws import Scaling
from weft_bench.profiling.record import Record
from weft_bench.profiling.subject import of_case
from weft_bench.report.drawing import NARROW, legend_below, new_axes, png
from weft_bench.report.laws import INK, both_logarithmic, measured_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_BUDGET = 0.1  # seconds of samples for each number of threads
_CPU = torch.device("cpu")


def strong(case: Case, most: int | None = None) -> Scaling:
    """The speed-up of one case on 1, 2, 4, ... threads, each planned for that many."""
    counts = _counts(most)
    alone, *others = (_seconds(case, count) for count in counts)
    return Scaling("strong", counts, (1.0, *(alone / seconds for seconds in others)))


def weak(case: Case, most: int | None = None) -> Scaling:
    """The scaled speed-up where the largest mode of D grows with the threads: p times the work over how much longer."""
    counts = _counts(most)
    alone, *others = (_seconds(grown(case, count), count) for count in counts)
    more = zip(counts[1:], others, strict=True)
    return Scaling("weak", counts, (1.0, *(count * alone / seconds for count, seconds in more)))


def grown(case: Case, times: int) -> Case:
    """The case with the largest mode of its result so many times as long."""
    extents = case.extents
    label = max(case.notation.output, key=lambda each: extents[each])
    a, b = (
        tuple(extent * times if each == label else extent for each, extent in zip(term, shape, strict=True))
        for term, shape in zip(case.notation.inputs, case.shapes, strict=True)
    )
    return replace(case, shapes=(a, b))


def _counts(most: int | None) -> tuple[int, ...]:
    limit = most or torch.get_num_threads()
    counts = [1]
    while 2 * counts[-1] < limit:
        counts.append(2 * counts[-1])
    return tuple(dict.fromkeys((*counts, limit)))


def _seconds(case: Case, threads: int) -> float:
    with _planned_for(threads):
        subject = of_case(case, _CPU)
        return measure(
            subject.call, [subject.tensors], device=_CPU, mode="hot", budget=_BUDGET, threads=threads
        ).seconds


@contextmanager
def _planned_for(threads: int) -> Iterator[None]:
    """Within, torch has so many threads, and plans are made for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_ROOF = "#777777"


def roofline_picture(profiles: Sequence[Record]) -> Figure | None:
    """Calls under several ceilings: DRAM and, where `weft micro l2` has measured it, the L2; matrix and vector rates.

    A filled point stands at flops over compulsory bytes, a ring at flops over the bytes that really moved. None where
    no profile has both ceilings and work.
    """
    shown = [each for each in profiles if each.ceilings and each.flops and each.bytes and each.samples]
    if not shown:
        return None
    known = shown[0].ceilings
    figure, axes = new_axes(f"roofline of {shown[0].device}", width=NARROW)
    places = [each.flops / moved for each in shown for moved in (each.bytes, each.moved or each.bytes)]
    flat = _flat_roofs(known, shown[0].device)
    memory = {"DRAM": float(known["copy"]), **({"L2": float(known["l2"])} if known.get("l2") else {})}
    top = max(flat.values(), default=max(memory.values()) * max(places))
    knees = [rate / min(memory.values()) for rate in flat.values()]
    reach = np.geomspace(min(places) / 4, 4 * max(*places, *knees), 200)
    for (name, rate), style in zip(memory.items(), ("-", "-."), strict=False):
        label = f"{name}: {si(rate, 'B/s')}"
        axes.plot(reach, np.minimum(top, rate * reach), style, color=_ROOF, linewidth=1, label=label)
    for (name, rate), style in zip(flat.items(), ("--", ":"), strict=False):
        roof = np.minimum(rate, max(memory.values()) * reach)
        axes.plot(reach, roof, style, color=_ROOF, linewidth=0.9, label=f"{name}: {si(rate, 'FLOP/s')}")
    for each, ink in zip(shown, INK, strict=False):
        rate = each.flops / each.seconds.value
        label = f"{each.name}: {si(rate, 'FLOP/s')}"
        axes.scatter([each.flops / each.bytes], [rate], color=ink, s=36, zorder=3, label=label)
        if each.moved:
            axes.scatter([each.flops / each.moved], [rate], facecolors="none", edgecolors=ink, s=60, zorder=3)
    both_logarithmic(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: si(rate, "FLOP/s")))
    slowest = min(each.flops / each.seconds.value for each in shown)
    axes.set_ylim(min(slowest, min(memory.values()) * reach[0]) / 2, 1.5 * top)
    axes.set_xlabel("flop per byte (filled: compulsory, ring: really moved)")
    legend_below(figure, axes, columns=1)
    return figure


def pictures(profiles: Sequence[Record], measured: Sequence[Scaling] = ()) -> dict[str, bytes]:
    """PNG images of all models that these profiles feed, by the words under them."""
    found: dict[str, Figure | None] = {
        "The calls under the device's ceilings: memory, caches, matrix and vector pipes.": roofline_picture(profiles)
    }
    if measured:
        found["Speed-up over one thread, of the same work and of work that grows with the threads."] = (
            measured_picture(measured, "threads")
        )
    return {words: png(figure) for words, figure in found.items() if figure is not None}


def _flat_roofs(known: Mapping[str, Any], device: str) -> dict[str, float]:
    """Rates in flop/s: of the products' own type on matrix units, and of vector pipes by the data sheet."""
    name, roofs = known.get("rate") or "", {}
    if known.get("products"):
        roofs[f"{name} products"] = float(known["products"])
    sheet = datasheet(device)
    plain = "float32" if name in ("tf32", "tf32x3") else name
    if sheet is not None and plain in sheet.vector:
        roofs[f"{plain} vector pipes (data sheet)"] = sheet.vector[plain]
    elif (rate := known.get("matrix", {}).get("float32")) and name != "float32":
        roofs["float32 products"] = float(rate)
    return roofs
