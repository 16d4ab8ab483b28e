"""Which path `optimize="auto"` finds: never slower than the plain one, slices counted, the same in every process."""

from __future__ import annotations

import os
import sys

import pytest

import weft
from commands import python
from weft.networks.path import every_path
from weft.planner.schedule import Target
from weft.planner.target import standing_for

pytestmark = pytest.mark.early
GPU = Target("cuda", name="a GPU", capability=90, processors=132, shared_memory=232448)
CPU = Target("cpu", name="a CPU", processors=16)
Terms = list[tuple[object, ...]]


def peps(rows: int, bond: int) -> tuple[Terms, list[tuple[int, ...]]]:
    """Both layers of a square lattice: sites of the ket, then those of the bra, which share the sites' own modes."""
    places = [(i, j) for i in range(rows) for j in range(rows)]
    terms: Terms = [
        ((layer, "down", i, j), (layer, "across", i, j), (layer, "down", i + 1, j), (layer, "across", i, j + 1), (i, j))
        for layer in ("ket", "bra") for i, j in places
    ]  # fmt: skip
    inner = [[bond if at else 1 for at in place] + [bond if at < rows - 1 else 1 for at in place] for place in places]
    return terms, [(*extents, 2) for extents in inner] * 2


def site_by_site(rows: int) -> list[tuple[int, int]]:
    """Each site of the ket with that of the bra, and the pairs one after the other into a boundary."""
    sites = rows * rows
    pairs = [(0, sites - at) for at in range(sites)]  # places in a list that shrinks
    return pairs + [(0, 1)] + [(0, left - 1) for left in range(sites - 1, 1, -1)]


@pytest.mark.parametrize(("rows", "bond", "target"), [(8, 3, GPU), (6, 2, CPU), (5, 3, CPU)])
def test_a_lattice_is_contracted_no_slower_than_site_by_site(rows: int, bond: int, target: Target) -> None:
    terms, shapes = peps(rows, bond)
    with standing_for(target):
        found = weft.network(terms, *shapes, output=(), dtype="float64", memory_limit="32GB")
        plain = weft.network(terms, *shapes, output=(), dtype="float64", optimize=site_by_site(rows))
    assert plain.report()["steps"][0]["k"] == 2, "the plain path begins with a pair of sites"
    assert found.report()["seconds"] <= plain.report()["seconds"]
    if bond == 3:
        assert found.report()["seconds"] < 0.95 * plain.report()["seconds"]


def test_slices_count_when_paths_are_compared() -> None:
    terms, shapes = peps(5, 3)
    limit = 100_000
    with standing_for(CPU):
        whole = weft.network(terms, *shapes, output=(), dtype="float64")
        found = weft.network(terms, *shapes, output=(), dtype="float64", memory_limit=limit)
        given = weft.network(terms, *shapes, output=(), dtype="float64", memory_limit=limit, optimize=whole.path)
    assert found.memory <= limit
    assert given.slices
    assert found.report()["seconds"] < 0.9 * given.report()["seconds"]


def test_labels_that_are_sliced_by_hand_stay_sliced() -> None:
    terms, shapes = peps(4, 3)
    label = ("ket", "across", 1, 2)
    assert weft.network(terms, *shapes, output=(), slices=[label]).slices == (label,)


def test_deep_trees_are_sliced() -> None:
    count = 300
    terms = [(at, at + 1, "x") for at in range(count)]
    shapes = [(8, 8, 8)] * count
    from_left = [(0, 1), *[(0, left - 1) for left in range(count - 1, 1, -1)]]
    net = weft.network(terms, *shapes, output=(0, count), optimize=from_left, memory_limit="2500 B")
    assert net.slices == ("x",)


SAME = "import test_paths; print(test_paths.found_path())"


def found_path() -> str:
    terms, shapes = peps(4, 3)
    with standing_for(CPU):
        net = weft.network(terms, *shapes, output=(), dtype="float64", memory_limit=40_000)
    assert net.slices
    return repr((net.path, net.slices))


def test_every_process_finds_the_same_path() -> None:
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    assert python(SAME, PYTHONHASHSEED="7", PYTHONPATH=path) == found_path()


def test_every_path_of_four_is_looked_at_and_no_search_imported_for_it() -> None:
    script = """
import sys, torch, weft
net = weft.network("ab,bc,cd,de->ae", *(torch.randn(shape) for shape in ((2, 90), (90, 3), (3, 80), (80, 2))))
print(net.plan.source, "cotengra" in sys.modules)
"""
    said = python(script)
    assert "the fastest of 18 paths by weft's count" in said
    assert said.endswith("False")


def test_every_path_is_a_tree() -> None:
    for count, paths in ((1, 1), (2, 1), (3, 3), (4, 18)):
        found = list(every_path(range(count), count))
        assert len(set(found)) == len(found) == paths
        for pairs in found:
            used = sorted(place for pair in pairs for place in pair)
            assert used == list(range(2 * count - 2))
