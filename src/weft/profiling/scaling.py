"""Models of scaling, and pictures of them with what was measured: Amdahl, Gustafson, the roofline with its ceilings.

Amdahl's law bounds the speed-up of a fixed piece of work of which a share f runs in parallel:
S(p) = 1 / (1 - f + f / p) (1967). Gustafson's bounds that of work which grows with the workers:
S(p) = 1 - f + f p (1988). A share is fitted by least squares where both are lines in f: 1 / S of the first, S of the
second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.bench.report.drawing import new_axes, plain_logarithm, png
from weft.machine.datasheets import datasheet
from weft.profiling.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK = ("#0b6e99", "#c2570c", "#6a51a3", "#2d6a4f", "#a1306f")
_ROOF = "#777777"


def amdahl(f: float, p: float) -> float:
    """The most by which p workers speed up work of which a share f is parallel."""
    return 1 / ((1 - f) + f / p)


def amdahl_limit(f: float) -> float:
    """The same with any number of workers; infinite where all is parallel."""
    return math.inf if f == 1 else 1 / (1 - f)


def gustafson(f: float, p: float) -> float:
    """The same where the work grows with the workers."""
    return (1 - f) + f * p


def fit_amdahl(workers: Sequence[float], speedups: Sequence[float]) -> float:
    """The parallel share that explains measured speed-ups best, within 0 and 1."""
    steps = np.asarray(workers, dtype=float)
    rise, left = 1 - 1 / steps, 1 - 1 / np.asarray(speedups, dtype=float)
    return _share(rise, left)


def fit_gustafson(workers: Sequence[float], speedups: Sequence[float]) -> float:
    """The same of scaled speed-ups."""
    return _share(np.asarray(workers, dtype=float) - 1, np.asarray(speedups, dtype=float) - 1)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Measured speed-ups over one worker: of the same work ("strong"), or of work that grew with them ("weak")."""

    kind: str
    workers: tuple[int, ...]
    speedups: tuple[float, ...]

    @property
    def parallel(self) -> float:
        """The fitted parallel share."""
        fit = fit_amdahl if self.kind == "strong" else fit_gustafson
        return fit(self.workers, self.speedups)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "workers": list(self.workers), "speedups": list(self.speedups),
            "parallel share": self.parallel,
        }  # fmt: skip


def call_share(profile: Record) -> float | None:
    """The share of one call, host and then device, that the device takes: what faster kernels can shorten."""
    if profile.host is None or not profile.samples:
        return None
    return profile.seconds.value / (profile.seconds.value + profile.host)


def amdahl_picture(shares: Mapping[str, float], measured: Sequence[Scaling] = (), *, most: int = 64) -> Figure:
    """Speed-up over workers (or over how many times as fast the kernels are) for parallel shares by name."""
    figure, axes = new_axes("Amdahl: what a serial share leaves", width=7)
    reach = np.geomspace(1, most, 100)
    axes.plot(reach, reach, color=_ROOF, linewidth=0.8, linestyle=":")
    for (name, share), ink in zip(shares.items(), _INK, strict=False):
        limit = amdahl_limit(share)
        told = f"{name}: f = {share:.3f}, at most {limit:.3g}" if math.isfinite(limit) else f"{name}: f = 1"
        axes.plot(reach, [amdahl(share, p) for p in reach], color=ink, label=told)
        if math.isfinite(limit) and limit < most:
            axes.axhline(limit, color=ink, linewidth=0.6, linestyle="--")
    for each, ink in zip(measured, _INK, strict=False):
        axes.scatter(each.workers, each.speedups, color=ink, s=24, zorder=3, label=f"measured, {each.kind}")
    _both_logarithmic(axes)
    axes.set_xlabel("workers, or how many times as fast the parallel part is")
    axes.set_ylabel("speed-up")
    axes.legend(fontsize=8, frameon=False)
    return figure


def gustafson_picture(shares: Mapping[str, float], measured: Sequence[Scaling] = (), *, most: int = 64) -> Figure:
    """Scaled speed-up over workers."""
    figure, axes = new_axes("Gustafson: work that grows with the workers", width=7)
    reach = np.geomspace(1, most, 100)
    axes.plot(reach, reach, color=_ROOF, linewidth=0.8, linestyle=":")
    for (name, share), ink in zip(shares.items(), _INK, strict=False):
        axes.plot(reach, [gustafson(share, p) for p in reach], color=ink, label=f"{name}: f = {share:.3f}")
    for each, ink in zip(measured, _INK, strict=False):
        axes.scatter(each.workers, each.speedups, color=ink, s=24, zorder=3, label=f"measured, {each.kind}")
    _both_logarithmic(axes)
    axes.set_xlabel("workers")
    axes.set_ylabel("scaled speed-up")
    axes.legend(fontsize=8, frameon=False)
    return figure


def roofline_picture(profiles: Sequence[Record]) -> Figure | None:
    """Calls under several ceilings: DRAM and, where `weft micro l2` has measured it, the L2; matrix and vector rates.

    A filled point stands at flops over compulsory bytes, a ring at flops over the bytes that really moved. None where
    no profile has both ceilings and work.
    """
    shown = [each for each in profiles if each.ceilings and each.flops and each.bytes and each.samples]
    if not shown:
        return None
    known = shown[0].ceilings
    figure, axes = new_axes(f"roofline of {shown[0].device}", width=8.5)
    places = [each.flops / moved for each in shown for moved in (each.bytes, each.moved or each.bytes)]
    flat = _flat_roofs(known, shown[0].device)
    memory = {"DRAM": float(known["copy"]), **({"L2": float(known["l2"])} if known.get("l2") else {})}
    top = max(flat.values(), default=max(memory.values()) * max(places))
    knees = [rate / min(memory.values()) for rate in flat.values()]
    reach = np.geomspace(min(places) / 4, 4 * max(*places, *knees), 200)
    for name, rate in memory.items():
        axes.plot(reach, np.minimum(top, rate * reach) / 1e12, color=_ROOF, linewidth=1)
        _note(axes, f"{name} {rate / 1e12:.3g} TB/s", reach[12], rate * reach[12] / 1e12)
    for name, rate in flat.items():
        axes.plot(
            reach, np.minimum(rate, max(memory.values()) * reach) / 1e12, color=_ROOF, linewidth=0.7, linestyle="--"
        )
        axes.annotate(
            f"{name} {rate / 1e12:.3g}", (reach[-1], rate / 1e12), fontsize=7, ha="right", va="bottom", color="#555"
        )
    for each, ink in zip(shown, _INK, strict=False):
        rate = each.flops / each.seconds.value / 1e12
        axes.scatter([each.flops / each.bytes], [rate], color=ink, s=36, zorder=3, label=each.name)
        if each.moved:
            axes.scatter([each.flops / each.moved], [rate], facecolors="none", edgecolors=ink, s=60, zorder=3)
    _both_logarithmic(axes)
    axes.set_xlabel("flop per byte (filled: compulsory, ring: really moved)")
    axes.set_ylabel("Tflop/s")
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def pictures(profiles: Sequence[Record], measured: Sequence[Scaling] = ()) -> dict[str, bytes]:
    """PNG images of all models that these profiles feed, by the words under them."""
    found: dict[str, Figure | None] = {
        "The calls under the device's ceilings: memory, caches, matrix and vector pipes.": roofline_picture(profiles)
    }
    shares = {each.name: share for each in profiles if (share := call_share(each)) is not None}
    if shares:
        found["What faster kernels would bring to one call from Python, whose host time stays as it is."] = (
            amdahl_picture(shares)
        )
    strong = [each for each in measured if each.kind == "strong"]
    weak = [each for each in measured if each.kind == "weak"]
    if strong:
        fitted = {f"fitted to {each.kind} scaling": each.parallel for each in strong}
        found["The same work on more threads, and Amdahl's law fitted to it."] = amdahl_picture(fitted, strong)
    if weak:
        fitted = {f"fitted to {each.kind} scaling": each.parallel for each in weak}
        found["Work that grows with the threads, and Gustafson's law fitted to it."] = gustafson_picture(fitted, weak)
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


def _share(rise: np.ndarray, left: np.ndarray) -> float:
    """The slope of a line through the origin, within 0 and 1."""
    square = float(rise @ rise)
    return min(1.0, max(0.0, float(rise @ left) / square)) if square else 0.0


def _note(axes: Any, words: str, x: float, y: float) -> None:
    axes.annotate(words, (x, y), fontsize=7, color="#555", rotation=0, va="bottom", ha="left")


def _both_logarithmic(axes: Any) -> None:
    plain_logarithm(axes.xaxis, axes.set_xscale)
    plain_logarithm(axes.yaxis, axes.set_yscale)
