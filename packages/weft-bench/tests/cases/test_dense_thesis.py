"""What the thesis on dense matrices published: sizes of the suites, rates that a V100 can reach, figures as printed."""

from __future__ import annotations

import pytest
import torch

from weft_bench.cases import layout
from weft_bench.dense_thesis import counted_how, published_counters, published_times

PEAK, MEMORY = 7.8e12, 0.9e12  # FLOP/s in double precision and B/s of a V100
PRODUCTS = {case.name: case for case in layout.dense(torch.float64)}
MOVES = {case.name: case for case in (*layout.transpositions(torch.float64), *layout.in_place(torch.float64))}


def test_sizes_are_those_of_the_suites() -> None:
    """All columns of tables 4.5 to 4.10 and 4.17 to 4.20; the smallest square is not transposed in place there."""
    names = set(published_times()) - {"in-place-100x100"}
    assert names <= {*PRODUCTS, *MOVES}
    assert sum(name.startswith("dense-") for name in names) == 6 * 5
    assert sum(name.startswith("transpose-") for name in names) == 4 * 3
    assert {"in-place-5000x5000", "in-place-10000x10000"} <= names


@pytest.mark.parametrize("name", sorted(published_times()))
def test_rates_are_those_of_a_v100(name: str) -> None:
    """None is above its peak, and none is absurdly slow."""
    found = published_times()[name]
    for who, seconds in {**found.libraries, **found.kernels}.items():
        if name in PRODUCTS:
            m, k, n = (PRODUCTS[name].extents[label] for label in "mkn")
            assert 2 * m * k * n / seconds < PEAK, who
        elif name in MOVES:
            assert MOVES[name].bytes / seconds < MEMORY, who
        assert 1e-5 < seconds < 0.3, who


def test_figures_are_as_printed() -> None:
    """Speed-ups of the tables, which were printed with two digits behind the point."""
    for name, kernel, speedup in (
        ("dense-square-5000x5000x5000", "1.6", 0.30), ("dense-wide-3700x1850x3700", "1.5", 0.19),
        ("dense-tall-50x100x50", "1.5", 16.30), ("dense-growth-260x1040x780", "1.6", 1.12),
        ("dense-thin-inside-50x5000x50", "1.5", 1.47), ("dense-thin-outside-5000x50x5000", "1.6", 0.37),
        ("transpose-square-10000x10000", "2.3", 0.81), ("transpose-wide-2500x5000", "2.3", 2.28),
        ("transpose-tall-10000x5000", "2.1", 0.48), ("transpose-thin-10000x100", "2.3", 15.67),
    ):  # fmt: skip
        found = published_times()[name]
        assert found.library is not None
        assert found.library[1] / found.kernels[kernel] == pytest.approx(speedup, abs=6e-3), name


def test_the_library_and_the_fastest_kernel() -> None:
    square = published_times()["dense-square-5000x5000x5000"]
    assert square.table == "4.5"
    assert square.library == ("cuBLAS", 3.369595e-02)
    assert square.fastest_kernel == ("1.6", 1.130343e-01)
    moved = published_times()["transpose-square-10000x10000"]
    assert (moved.library, moved.fastest_kernel) == (("MAGMA", 3.093129e-03), ("2.3", 3.821392e-03))
    within = published_times()["in-place-10000x10000"]
    assert (within.library, within.fastest_kernel) == (None, ("2.4", 2.667357e-03))


def test_counters_are_those_of_the_appendix() -> None:
    """Changes that tables 3.5, 3.7 and 3.9 print follow from them."""
    for kernel, before, metric, percent in (
        ("1.4", "1.1", "DRAM reads GB/s", 130.733), ("1.6", "1.1", "warps active of 1", -70.0202),
        ("2.3", "2.1", "issued instructions a cycle", 213.14), ("2.3", "2.1", "instructions a warp", -75.6294),
    ):  # fmt: skip
        change = published_counters(kernel)[metric] / published_counters(before)[metric] - 1
        assert 100 * change == pytest.approx(percent, rel=1e-4)
    assert counted_how().startswith("Quadro P6000, nvprof")
    with pytest.raises(KeyError, match=r"3\.1"):
        published_counters("3.1")
