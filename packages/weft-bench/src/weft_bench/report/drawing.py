"""How plots of reports are set: axes, plain logarithms, and the picture as bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from weft.base.figures import duration

NARROW = 5.4  # inches: a picture whose letters can still be read where it is shrunk to the width of a phone


def new_axes(title: str, *, width: float, height: float = 4.8) -> tuple[Figure, Any]:
    """A figure with one set of axes, in inches; as all plots of reports look."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, which="major", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def plain_logarithm(axis: Any, set_scale: Callable[[str], Any]) -> None:
    """Logarithmic, with plain numbers at 1, 2 and 5 of each decade."""
    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda ratio, _: ""))


def legend_below(figure: Figure, axes: Any, *, columns: int = 2) -> None:
    """The legend under the axes, where it covers no point."""
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def logarithm_of_time(axis: Any, set_scale: Callable[[str], Any]) -> None:
    """Logarithmic, seconds written as durations."""
    plain_logarithm(axis, set_scale)
    axis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))


def png(figure: Figure) -> bytes:
    """The picture as a PNG file."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": "weft"})
    return stream.getvalue()
