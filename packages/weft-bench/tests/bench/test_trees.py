"""Contraction trees drawn: a graph, a figure and a page have every node."""

from __future__ import annotations

from pathlib import Path

import networkx
import torch

import weft
from weft_bench.report.trees import draw, to_graph, to_html


def test_a_tree_is_drawn(tmp_path: Path) -> None:
    tensors = [torch.rand(4, 4, 3) for _ in range(4)]
    net = weft.network("abx,bcx,cdx,dax->x", *tensors, slices="b")
    graph = to_graph(net)
    assert networkx.is_arborescence(graph.reverse())
    assert graph.graph["sliced"] == ("b",)
    assert [known["kind"] for _, known in graph.nodes(data=True)].count("operand") == 4
    draw(net, tmp_path / "tree.png")
    assert (tmp_path / "tree.png").stat().st_size > 1000
    page = to_html(net, tmp_path / "tree.html")
    assert page.count("<circle") == 7
    assert (tmp_path / "tree.html").read_text() == page
