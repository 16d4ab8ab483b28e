"""The laws at published values, and their fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from profiling.made import profile
from weft_bench.machine.laws import Scaling, amdahl, amdahl_limit, fit_amdahl, fit_gustafson, gustafson
from weft_bench.profiling.record import call_share
from weft_bench.profiling.scaling import pictures, roofline_picture
from weft_bench.report.laws import measured_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from weft_bench.profiling.profile import Profile


@pytest.mark.parametrize(("f", "of_four", "limit"), [(0.90, 3.08, 10.0), (0.95, 3.48, 20.0), (0.99, 3.88, 100.0)])
def test_amdahl_is_the_published_table(f: float, of_four: float, limit: float) -> None:
    """Table 3.5 of the thesis."""
    assert amdahl(f, 4) == pytest.approx(of_four, abs=0.005)
    assert amdahl_limit(f) == pytest.approx(limit)
    assert amdahl(f, 1e12) == pytest.approx(limit)


def test_gustafson() -> None:
    assert gustafson(0.9, 1) == 1
    assert gustafson(0.9, 10) == pytest.approx(9.1)
    assert amdahl_limit(1.0) == math.inf


def test_shares_are_found_again() -> None:
    workers = (1, 2, 4, 8, 64)
    assert fit_amdahl(workers, [amdahl(0.93, p) for p in workers]) == pytest.approx(0.93)
    assert fit_gustafson(workers, [gustafson(0.7, p) for p in workers]) == pytest.approx(0.7)
    assert fit_amdahl(workers, [1.0] * 5) == 0
    assert fit_amdahl((1,), (1.0,)) == 0
    assert fit_amdahl((1, 2), (1.0, 3.0)) == 1  # more than all is parallel: caches


def test_the_share_that_faster_kernels_shorten() -> None:
    found = profile()
    found.host = found.seconds.value / 3
    assert call_share(found) == pytest.approx(0.75)
    found.host = None
    assert call_share(found) is None


def on_a_cpu() -> Profile:
    """A profile with the ceilings of a CPU: rates of some hundred GFLOP/s."""
    found = profile(seconds=0.0116)
    found.device, found.counters, found.host = "a CPU", [], None
    found.ceilings = {"source": "measured", "copy": 1.2e10, "rate": "float32", "products": 1.4e11, "matrix": {}}
    return found


def test_the_roofline_of_a_cpu_is_in_its_own_unit() -> None:
    figure = roofline_picture([on_a_cpu()])
    assert figure is not None
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["DRAM: 12.0 GB/s", "float32 products: 140 GFLOP/s", "weft: 86.2 GFLOP/s"]
    figure.draw_without_rendering()
    assert {text.get_text().split()[1] for text in figure.axes[0].get_yticklabels()} == {"GFLOP/s"}


STRONG, WEAK = (Scaling(kind, (1, 2, 3), (1.0, 1.9, 2.6)) for kind in ("strong", "weak"))


def test_a_chart_of_threads_has_the_measured_points_alone() -> None:
    axes = measured_picture([STRONG, WEAK], "threads").axes[0]
    assert axes.get_xlim()[1] < 3.5
    _, *lines = axes.get_lines()
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3]] * 2
    assert [list(line.get_ydata()) for line in lines] == [[1.0, 1.9, 2.6]] * 2


@pytest.mark.parametrize(
    "figure",
    [
        lambda: roofline_picture([profile(), profile("torch", 41e-6, K2=40.0)]),
        lambda: roofline_picture([on_a_cpu()]),
        lambda: measured_picture([STRONG, WEAK], "threads"),
    ],
    ids=["gpu", "cpu", "threads"],
)
def test_no_label_covers_another(figure: Callable[[], Figure]) -> None:
    drawn = figure()
    drawn.draw_without_rendering()
    axes = drawn.axes[0]
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *drawn.legends[0].get_texts()]
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [text.get_window_extent() for text in texts if text.get_text() and text.get_visible()]
    assert len(boxes) > 8
    assert [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])] == []


def test_pictures_are_drawn_of_what_is_known() -> None:
    strong, weak = (Scaling(kind, (1, 2, 4), (1.0, 1.9, 3.5)) for kind in ("strong", "weak"))
    drawn = pictures([profile()], [strong, weak])
    assert len(drawn) == 2
    assert all(png.startswith(b"\x89PNG") for png in drawn.values())
    bare = profile()
    bare.ceilings, bare.host = {}, None
    assert pictures([bare]) == {}
