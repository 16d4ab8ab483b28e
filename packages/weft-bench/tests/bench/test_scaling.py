"""`weft bench scaling`: its cases, what a rank measures, the laws beside the measurements, and the whole command."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import network_rank_cases
from on_ranks import on_ranks
from profiling.made import profile
from weft.errors import UnsupportedError
from weft_bench.cases.scaling import PlacedCase
from weft_bench.machine.laws import Scaling, amdahl, amdahl_limit, fit_amdahl, fit_gustafson, gustafson
from weft_bench.profiling.record import call_share
from weft_bench.profiling.scaling import pictures, roofline_picture
from weft_bench.records import CaseRecord, Result, Run, continued, load, save
from weft_bench.report.figures import figures, in_words
from weft_bench.report.laws import measured_picture
from weft_bench.report.page import run_page, scaling_table
from weft_bench.report.plots import draw
from weft_bench.scaling import SCALING, Job, contender, measure_scaling, read_ranks, record_of
from weft_bench.suites import entries

CPU = torch.device("cpu")


def test_cases_are_networks_the_same_or_growing() -> None:
    found = {entry.case.name: entry for entry in entries(SCALING) if not isinstance(entry.case, PlacedCase)}
    assert {entry.group for entry in found.values()} == {"own", "strong", "weak", "modes"}
    own = found["randreg_200_3-own"].case
    assert (own.slices(1), own.slices(8)) == (27, 27)
    strong, weak = found["rtree_100-strong"].case, found["rtree_100-weak"].case
    assert (strong.slices(1), strong.slices(4)) == (24, 24)
    assert (weak.slices(1), weak.slices(4)) == (12, 48)
    case, (label,) = weak.on(3)
    assert case.extents[label] == 36
    assert all(term[0] == label for term in case.terms)
    assert case.slice((label,)).work == weak.network.work
    modes = found["circuit-modes"].case
    assert (modes.slices(1), modes.slices(8)) == (1, 1)
    small = {entry.case.name: entry for entry in entries(SCALING, work=1 << 14)}
    assert small["randreg_200_3-own"].case.slices(2) == 27
    assert small["randreg_200_3-own"].case.slice.work <= 1 << 14
    assert small["randreg_200_3-own"].scaled
    assert {entry.case.network.precision for entry in entries(SCALING, ["tf32"], ["*-tf32"])} == {"tf32"}
    assert entries(SCALING, ["tf32"])[0].case.name.endswith("-tf32")


def test_products_lie_in_parts() -> None:
    found = {entry.case.name: entry.case for entry in entries(SCALING, only=["product-*"])}
    assert len(found) == 4
    strong, weak = found["product-k-strong"], found["product-k-weak"]
    assert strong.placements == weak.placements == ("k", "k", "m")
    assert strong.extents(2) == {"m": 65536, "k": 65536, "n": 65536}
    assert weak.extents(2) == {"m": 65536, "k": 2 * 65536, "n": 65536}
    assert found["product-m-weak"].extents(4)["m"] == 4 * 65536
    assert strong.shrunk(10**6).extent == 96


def test_numbers_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_ranks("4,2", CPU) == (1, 2, 4)
    assert read_ranks(None, CPU)[:1] == (1,)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert read_ranks(None, torch.device("cuda")) == (1, 2)
    with pytest.raises(UnsupportedError, match="4 ranks need as many GPUs: there are 3"):
        read_ranks("1,4", torch.device("cuda"))
    for wrong in ("two", "0,1", ""):
        with pytest.raises(UnsupportedError, match="is no list of numbers"):
            read_ranks(wrong, CPU)


def made() -> Run:
    """A run whose times follow the laws: 0.9 of the work is parallel."""
    chosen = entries(SCALING, only=["rtree_100-strong", "rtree_100-weak"])
    run = Run(SCALING, "a device", [contender(number) for number in (4, 2, 1)], {}, mode="hot", host=True)
    run.cases = [record_of(entry) for entry in chosen]
    for case in run.cases:
        for ranks in (1, 2, 4):
            seconds = 1 / amdahl(0.9, ranks) if case.group == "strong" else ranks / gustafson(0.9, ranks)
            result = Result(samples=(seconds,) * 3, about={"slices": 24})
            case.results[contender(ranks)] = result
    run.ended = "finished"
    return run


def test_speedups_and_the_laws_that_fit_them(tmp_path: Path) -> None:
    run = made()
    found = figures(run)
    assert found["scaling.rtree_100-strong.speedup_on_4"].value == pytest.approx(amdahl(0.9, 4))
    assert found["scaling.rtree_100-weak.scaled_speedup_on_4"].value == pytest.approx(gustafson(0.9, 4))
    for case in ("rtree_100-strong", "rtree_100-weak"):
        assert found[f"scaling.{case}.parallel_share"].value == pytest.approx(0.9)
    assert all(in_words(name) for name in found)
    rows = scaling_table(run).rows
    assert [[cell.text for cell in row][:3] for row in rows] == [
        [name, ranks, "24"] for name in ("rtree_100-strong", "rtree_100-weak") for ranks in ("1", "2", "4")
    ]
    assert {row[-1].text for row in rows} == {"0.9000"}
    drawn = draw(run)
    assert set(drawn) == {"amdahl", "gustafson"}
    assert "Scaling" in run_page(run, drawn)
    save(run, tmp_path)
    assert figures(load(tmp_path)) == found


def test_what_failed_on_some_ranks_has_no_speedup() -> None:
    run = made()
    run.cases[0].results[contender(4)] = Result(wrong="RankError: rank 3 of 4 ended")
    assert "scaling.rtree_100-strong.speedup_on_4" not in figures(run)
    run.cases[0].results[contender(1)] = Result(wrong="no")
    assert not [name for name in figures(run) if "strong" in name]


def test_what_ranks_measure_and_what_breaks_on_one_of_them() -> None:
    names = ["rtree_100-weak", "circuit-modes", "product-*"]
    outcomes = on_ranks(2, network_rank_cases.scaling, names)
    assert [outcome.message for outcome in outcomes] == ["", ""]
    first, second = (outcome.value for outcome in outcomes)
    by_name = dict(zip([entry.case.name for entry in entries(SCALING, only=names)], first, strict=False))
    assert by_name["rtree_100-weak"]["about"]["slices"] == 24
    assert by_name["circuit-modes"]["about"]["slices"] == 1
    said = by_name["product-k-strong"]["about"]
    assert said["compute_seconds"] > 0
    assert 0 <= said["hidden"] <= 1
    assert said["predicted_seconds"] > 0
    assert said["timeline"][0].startswith("measured:")
    for mine, theirs in zip(first[:-2], second[:-2], strict=True):
        assert mine["samples"] == theirs["samples"]
        assert len(mine["samples"]) >= 3
        assert 0 < mine["error_over_bound"] < 1
    for wrong, broken in (first[-2:], second[-2:]):
        assert "WrongResult" in wrong["wrong"] or "rank 0 of 2" in wrong["wrong"]
        assert "rank 1 of 2" in broken["wrong"]


LAUNCHER = """
import json, pathlib, sys, time
told, seen = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
found = {"samples": [0.5], "timing": {}, "error_over_bound": 0.1, "about": {}}
with open(told["out"], "a") as out:
    out.write(json.dumps({"case": told["cases"][0], **found}) + "\\n")
until = time.monotonic() + 30
while not seen.exists() and time.monotonic() < until:
    time.sleep(0.01)
print("a rank is gone" if seen.exists() else "nobody looked", file=sys.stderr)
sys.exit(3)
"""


def test_a_row_is_told_while_the_ranks_still_measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen, launch, told = tmp_path / "seen", subprocess.Popen, []
    monkeypatch.setattr(
        "weft_bench.scaling.subprocess.Popen",
        lambda command, **how: launch([sys.executable, "-c", LAUNCHER, command[-1], str(seen)], **how),
    )

    def kept(case: CaseRecord, name: str) -> None:
        told.append((case.name, name, case.results[name].wrong))
        seen.touch()

    run = Run(SCALING, "a device", [contender(1)], {})
    chosen = entries(SCALING, only=["rtree_100-strong", "rtree_100-weak"])
    measure_scaling(run, chosen, [1], Job(CPU), kept=kept)
    (first, name, fine), (second, _, wrong) = told
    assert (first, name, fine) == ("rtree_100-strong", "1 rank", "")
    assert run.cases[0].results[name].samples == (0.5,)
    assert second == "rtree_100-weak"
    assert wrong == "the ranks ended with code 3 before this case: a rank is gone"


def test_a_run_that_was_cut_off_goes_on_with_what_has_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, asked = entries(SCALING, only=["rtree_100-strong", "rtree_100-weak"]), []

    def launched(number: int, names: Sequence[str], job: Job) -> Iterator[tuple[str, Result]]:
        asked.append((number, list(names)))
        for name in names:
            yield name, Result(samples=(1.0 / number,))

    monkeypatch.setattr("weft_bench.scaling._launched", launched)
    names = [contender(2), contender(1)]
    before = Run(SCALING, "a device", names, {}, mode="hot", host=True)
    before.cases = [record_of(chosen[0])]
    before.cases[0].results = {"1 rank": Result(samples=(0.5,)), "2 ranks": Result(wrong="the ranks ended")}
    run = continued(Run(SCALING, "a device", names, {}, mode="hot", host=True), before, whole=False)
    measure_scaling(run, chosen, [1, 2], Job(CPU))
    assert asked == [(1, ["rtree_100-weak"]), (2, ["rtree_100-strong", "rtree_100-weak"])]
    assert [case.results["1 rank"].samples for case in run.cases] == [(0.5,), (1.0,)]
    assert [case.results["2 ranks"].samples for case in run.cases] == [(0.5,), (0.5,)]
    measure_scaling(run, chosen, [1, 2], Job(CPU))
    assert len(asked) == 2
    assert run.ended == "finished"


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    words = ["bench", "scaling", "--device", "cpu", "--ranks", "2", "--cases", "rtree_100-*", "--work", "4096"]
    command = [sys.executable, "-m", "weft", *words, "--budget", "0.01", "--rrs", "0.5", "--out", str(tmp_path)]
    ended: Any = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = [line.split() for line in ended.stdout.splitlines() if line.lstrip().startswith(("strong", "weak"))]
    assert [row[:4] for row in rows[:4]] == [
        [group, f"rtree_100-{group}", ranks, word]
        for ranks, word in (("1", "rank"), ("2", "ranks")) for group in ("strong", "weak")
    ]
    run = load(tmp_path)
    assert run.contenders == ["2 ranks", "1 rank"]
    assert run.ended == "finished"
    assert {"scaling.rtree_100-strong.speedup_on_2", "scaling.rtree_100-weak.scaled_speedup_on_2"} <= set(figures(run))
    assert {"amdahl.png", "gustafson.png", "index.html"} <= {file.name for file in tmp_path.iterdir()}


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
