"""Contraction trees drawn: a graph, a figure and a page have every node."""

from __future__ import annotations

from pathlib import Path

import networkx
import torch

import weft


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
