"""Time, joules and digits of one contraction in several precisions: what each buys, and what it costs.

Digits are -log10 of the error's norm over the result's, against the product of the same fp64 values: rounding operands
to a narrower type counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from weft.errors import UnsupportedError
from weft.machine.statistics import Interval, summarise
from weft.machine.timing import measure
from weft.oracle.reference import contract
from weft_bench.cases import Case
from weft_bench.machine.sensors import Sensor
from weft_bench.peers.registry import Tensors
from weft_bench.profiling.energy import measured_energy
from weft_bench.profiling.subject import CaseRecipe, Subject, prepared, usual_sampling
from weft_bench.timed_sets import TimedSets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: By name: the type of operands, of the result, and how products are made.
PRECISIONS: Mapping[str, tuple[torch.dtype, torch.dtype, str | None]] = {
    "fp64": (torch.float64, torch.float64, None),
    "fp32": (torch.float32, torch.float32, None),
    "tf32x3": (torch.float32, torch.float32, "tf32x3"),
    "tf32": (torch.float32, torch.float32, "tf32"),
    "fp16": (torch.float16, torch.float32, None),
}
_INK = {"fp64": "#2d6a4f", "fp32": "#0b6e99", "tf32x3": "#6a51a3", "tf32": "#a1306f", "fp16": "#c2570c"}


@dataclass(frozen=True, slots=True)
class Trade:
    """One precision."""

    precision: str
    seconds: float | None = None
    low: float | None = None  # 95 % interval
    high: float | None = None
    joules: float | None = None  # a call; None without a sensor
    digits: float | None = None
    schedule: str | None = None
    missing: str = ""  # why there is nothing

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def trade(case: Case, device: torch.device, budget: float, sensor: Sensor | None = None) -> list[Trade]:
    """The case in each precision, on the same values; with a sensor the energy of a call, too."""
    wide = replace(case, dtypes=(torch.float64,) * 3, precision=None)
    shapes = (*case.shapes, case.d_shape)
    generator = torch.Generator(device=device).manual_seed(28)
    a, b, _ = (torch.randn(shape, dtype=torch.float64, device=device, generator=generator) for shape in shapes)
    options = {name: value for name, value in wide.options().items() if name in ("a_fn", "b_fn", "epilogue", "algebra")}
    exact = contract(case.equation, a, b, **options)
    found = []
    for name in PRECISIONS:
        try:
            found.append(_one(name, case, (a, b), exact, device, budget, sensor))
        except UnsupportedError as error:
            found.append(Trade(name, missing=str(error).partition("\n")[0]))
    return found


def digits(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Decimal digits that agree in norm; 17 where all do."""
    error = torch.linalg.vector_norm((result.to(exact.dtype) - exact).flatten()).item()
    size = torch.linalg.vector_norm(exact.flatten()).item()
    return 17.0 if error == 0 else min(17.0, -math.log10(error / size)) if size else -math.inf


def picture(found: Sequence[Trade], title: str) -> Figure | None:
    """Digits over time, each point as large as its joules where they are known; None where nothing was measured."""
    from weft_bench.report.drawing import NARROW, legend_below, logarithm_of_time, new_axes

    shown = [each for each in found if each.seconds is not None and each.digits is not None]
    if not shown:
        return None
    figure, axes = new_axes(title, width=NARROW)
    known = [each.joules for each in shown if each.joules is not None]
    for each in shown:
        size = 60.0 if each.joules is None or not known else 60 + 900 * each.joules / max(known)
        words = each.precision if each.joules is None else f"{each.precision}: {each.joules:.3g} J"
        axes.scatter([each.seconds], [each.digits], s=size, color=_INK[each.precision], alpha=0.55, linewidths=0)
        axes.scatter([], [], s=60, color=_INK[each.precision], alpha=0.55, label=words)
    logarithm_of_time(axes.xaxis, axes.set_xscale)
    axes.set_xlabel("time of a call")
    axes.set_ylabel("digits")
    axes.margins(0.2)
    legend_below(figure, axes)
    return figure


def _one(
    name: str, case: Case, operands: tuple[torch.Tensor, torch.Tensor], exact: torch.Tensor, device: torch.device,
    budget: float, sensor: Sensor | None,
) -> Trade:  # fmt: skip
    stored, result, precision = PRECISIONS[name]
    typed = replace(case, dtypes=(stored, stored, result), precision=precision)
    a, b = (x.to(stored) for x in operands)
    tensors = Tensors(a, b, None, torch.empty(case.d_shape, dtype=result, device=device))
    recipe = CaseRecipe(typed, device=str(device))
    call, plan, _, _ = prepared(recipe, tensors)
    value = digits(call(*tensors), exact)
    sampling = usual_sampling(device)
    sets = TimedSets(tensors, device, sampling).rotated(call)
    samples = measure(call, sets, device=device, mode=sampling.mode, budget=budget).samples
    found = summarise(samples)
    taken = Interval(found.median, found.low, found.high)
    joules = None
    if sensor is not None:
        subject = Subject(name, call, tensors, device, recipe, plan)
        joules = measured_energy(subject, flops=1, moved=1, seconds=1.0, repetitions=3, sensor=sensor).joules
    schedule = str(plan.schedule) if plan is not None else None
    return Trade(name, taken.value, taken.low, taken.high, joules, value, schedule)
