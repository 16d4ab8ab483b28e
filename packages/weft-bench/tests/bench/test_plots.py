"""Plots are drawn for what a run has, from its records, and show what they should."""

from __future__ import annotations

import struct
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch

import weft
from runs import case, run
from weft_bench.records import Result
from weft_bench.report.plots import beeswarm, cumulative, draw, exactness, fusion, roofline, swarm, throughput

RELU = {"a_fn": "relu"}
TCCG = run(
    *(case(f"tccg-{at:02}", weft=10, cutensor=5 + 5 * at, torch=40) for at in range(1, 9)),
    *(case(f"tccg-{at:02}", "fp16_fp16", weft=10, cutensor=20, torch=30) for at in range(1, 9)),
)
FUSED = run(
    *(case(f"tccg-{at:02}", "none", weft=10, cutensor=20) for at in range(1, 4)),
    *(case(f"tccg-{at:02}", "relu", RELU, weft=11, cutensor=40) for at in range(1, 4)),
    suite="tccg-fusion",
)


def sizes(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_what_is_drawn() -> None:
    drawn = draw(TCCG)
    assert list(drawn) == ["swarm", "roofline", "cumulative"]
    assert all(width > 600 and height > 400 for width, height in map(sizes, drawn.values()))


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw(run()) == {}
    alone = case("tccg-01", weft=10)
    alone.floor = {}
    alone.results["torch"] = Result(cannot="not today")
    assert draw(run(alone)) == {}


def test_swarm_shows_every_ratio_and_both_means() -> None:
    figure = swarm(TCCG)
    assert figure is not None
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        f"{group}\nagainst {peer}" for group in ("fp16_fp32", "fp16_fp16") for peer in ("cutensor", "torch")
    ]
    points = [np.asarray(points.get_offsets()) for points in axes.collections]
    assert sorted(points[0][:, 1]) == pytest.approx([0.5 * at + 0.5 for at in range(1, 9)])
    assert np.abs(points[0][:, 0]).max() < 0.5  # in its own column
    texts = {text.get_text() for text in axes.texts}
    means = np.exp(np.mean(np.log([0.5 * at + 0.5 for at in range(1, 9)])))
    assert f"{means:.2f}" in texts
    assert {"01", "08"} <= texts  # the extremes are named


def test_roofline_has_every_case_under_its_roofs() -> None:
    figure = roofline(TCCG)
    assert figure is not None
    (axes,) = figure.axes
    rates = {points.get_label(): np.asarray(points.get_offsets()) for points in axes.collections}
    assert {name: len(points) for name, points in rates.items()} == {"weft": 16, "cutensor": 16, "torch": 16}
    assert rates["weft"][0] == pytest.approx([12_000_000 / 280_000, 1.2])
    roof, vector = axes.lines
    assert np.asarray(roof.get_ydata()).max() == pytest.approx(4.0)  # 12 Mflop in 3 us
    assert np.asarray(vector.get_ydata()).max() <= 133.8  # an H200's vector pipes, by the data sheet
    assert {"float16", "float16 vector pipes"} <= {text.get_text() for text in axes.texts}


def test_cumulative_shares_rise_to_one() -> None:
    figure = cumulative(TCCG)
    assert figure is not None
    (axes,) = figure.axes
    first = axes.lines[0]
    assert np.asarray(first.get_ydata()) == pytest.approx([at / 8 for at in range(9)])
    assert first.get_label() == "fp16_fp32 against cutensor"


def test_fusion_is_relative_to_the_peer_without_functions() -> None:
    figure = fusion(FUSED)
    assert figure is not None
    (axes,) = figure.axes
    heights = {points.get_label(): np.asarray(points.get_offsets())[:, 1] for points in axes.collections}
    assert heights["none, cutensor"] == pytest.approx([1, 1, 1])
    assert heights["relu, weft"] == pytest.approx([20 / 11] * 3)
    assert heights["relu, cutensor"] == pytest.approx([0.5] * 3)
    assert fusion(TCCG) is None


def test_every_compute_type_stands_at_its_time_and_error() -> None:
    one, other = (case(f"tccg-{at:02}", "fp32_bound", weft=10, cutensor=20) for at in (1, 2))
    one.results["weft"].error_over_bound = 0.02
    one.results["cutensor"].ways = {"gett 32F": 30e-6, "ttgt 32F": 20e-6, "ttgt TF32": "wrong: too far off"}
    one.results["cutensor"].errors = {"gett 32F": 0.04, "ttgt 32F": 0.04, "ttgt TF32": 8.0}
    one.results["cutensor"].beyond = {"ttgt TF32": 5e-6}
    figure = exactness(run(one, other))
    assert figure is not None
    (axes,) = figure.axes
    points = {points.get_label(): np.asarray(points.get_offsets()).tolist() for points in axes.collections}
    assert points == {"32F": [pytest.approx([1, 2])], "TF32": [pytest.approx([200, 0.5])], "weft": [[0.5, 1.0]]}
    assert exactness(TCCG) is None


def test_throughput_stands_under_the_copy() -> None:
    cases = [case(f"permute-{at}", group, weft=10, torch=40) for group in ("fp16", "fp32") for at in "ab"]
    for each in cases:
        each.work = {"flops": 0, "function_flops": 0, "bytes": 30_000_000}
        each.floor["copy"] = 7.5e-6
    cases[3].results["torch"] = Result(cannot="not today")
    figure = throughput(run(*cases, suite="permute"))
    assert figure is not None
    (axes,) = figure.axes
    points = {points.get_label(): np.asarray(points.get_offsets()) for points in axes.collections}
    assert points["weft"][:, 1] == pytest.approx([3.0] * 4)
    assert points["torch"][:, 1] == pytest.approx([0.75] * 3)
    assert np.asarray(axes.lines[0].get_ydata()) == pytest.approx([4.0, 4.0])
    assert {text.get_text() for text in axes.texts} == {"copy", "fp16", "fp32"}
    assert "throughput" in draw(run(*cases, suite="permute"))
    assert throughput(TCCG) is None


def test_swarms_do_not_overlap() -> None:
    offsets = beeswarm([1.0] * 5)
    assert sorted(offsets) == pytest.approx([-0.14, -0.07, 0, 0.07, 0.14])
    assert np.abs(beeswarm([1.0] * 99)).max() < 0.5
    assert list(beeswarm([0.0, 1.0, 2.0])) == [0, 0, 0]


def test_a_tree_is_drawn(tmp_path: Path) -> None:
    tensors = [torch.rand(4, 4, 3) for _ in range(4)]
    net = weft.network("abx,bcx,cdx,dax->x", *tensors, slices="b")
    graph = net.to_graph()
    assert networkx.is_arborescence(graph.reverse())
    assert graph.graph["sliced"] == ("b",)
    assert [known["kind"] for _, known in graph.nodes(data=True)].count("operand") == 4
    net.draw(tmp_path / "tree.png")
    assert (tmp_path / "tree.png").stat().st_size > 1000
    page = net.to_html(tmp_path / "tree.html")
    assert page.count("<circle") == 7
    assert (tmp_path / "tree.html").read_text() == page
