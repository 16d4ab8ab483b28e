"""The figures of runs with known times."""

import pytest

from runs import case, run
from weft.bench.figures import figures, group_figures, over_floor, relative, scopes, value
from weft.bench.records import Result


def test_gm1_gm2_and_the_worst_case() -> None:
    known = run(case("tccg-01", weft=10, cutensor=40), case("tccg-02", weft=10, cutensor=5))
    found = figures(known)
    assert found["tccg.fp16_fp32.gm1_cutensor"].value == pytest.approx((4 * 0.5) ** 0.5)
    assert found["tccg.fp16_fp32.gm2_cutensor"].value == pytest.approx(2.0)
    assert found["tccg.fp16_fp32.worst_vs_cutensor"].value == pytest.approx(0.5)
    for interval in found.values():
        assert interval.low <= interval.value <= interval.high


def test_time_over_the_floor() -> None:
    found = figures(run(case("tccg-01", weft=10, torch=40), case("tccg-02", weft=40, torch=40)))
    assert found["tccg.fp16_fp32.time_over_floor"].value == pytest.approx(4.0)
    assert found["tccg.fp16_fp32.torch_over_floor"].value == pytest.approx(8.0)


def test_groups_are_averaged_apart() -> None:
    found = figures(run(case("tccg-01", weft=10, torch=20), case("tccg-01", "fp16_fp16", weft=10, torch=30)))
    assert found["tccg.fp16_fp32.gm1_torch"].value == pytest.approx(2)
    assert found["tccg.fp16_fp16.gm1_torch"].value == pytest.approx(3)


def test_beyond_is_averaged_as_a_whole_and_against_the_best_peer_of_each_case() -> None:
    one = case("hadamard", "batch", weft=10, cutensor=20, torch=80)
    other = case("double-product", "double", weft=10, cutensor=90, torch=45)
    alone = case("int8-product", "integer", weft=10, torch=10)
    alone.results["cutensor"] = Result(cannot="no sums of int8")
    found = figures(run(one, other, alone, suite="beyond"))
    assert found["beyond.geomean_vs_best_peer"].value == pytest.approx((2 * 4.5 * 1) ** (1 / 3))
    assert found["beyond.gm1_cutensor"].value == pytest.approx((2 * 9) ** 0.5)  # of the cases that it can do
    assert scopes(run(one, suite="beyond")) == [None]
    assert group_figures(run(one, other, suite="beyond"), "double")["gm1_torch"].value == pytest.approx(4.5)


def test_fusion_is_held_against_weft_without_functions() -> None:
    relu, leaky = {"a_fn": "relu"}, {"a_fn": "leaky_relu"}
    known = run(
        case("tccg-01", "none", weft=10, cutensor=20),
        case("tccg-01", "relu", relu, weft=11, cutensor=22),
        case("tccg-01", "leaky_relu", leaky, weft=12, cutensor=60),
        case("tccg-02", "none", weft=20, cutensor=20),
        case("tccg-02", "relu", relu, weft=20, cutensor=20),
        suite="tccg-fusion",
    )
    found = figures(known)
    assert found["fusion.geomean_over_plain"].value == pytest.approx((1.1 * 1.2 * 1.0) ** (1 / 3))
    assert found["fusion.worst_over_plain"].value == pytest.approx(1.2)
    assert found["fusion.leaky_relu_vs_cutensor"].value == pytest.approx(5.0)
    assert found["fusion.relu_vs_cutensor"].value == pytest.approx(2**0.5)


def test_fusion_of_two_number_types_keeps_them_apart() -> None:
    relu = {"a_fn": "relu"}
    known = run(
        case("tccg-01", "fp16_fp32.none", weft=10),
        case("tccg-01", "fp16_fp32.relu", relu, weft=20),
        case("tccg-01", "fp64.none", weft=100),
        case("tccg-01", "fp64.relu", relu, weft=110),
        suite="tccg-fusion",
    )
    found = figures(known)
    assert found["fusion.fp16_fp32.geomean_over_plain"].value == pytest.approx(2)
    assert found["fusion.fp64.geomean_over_plain"].value == pytest.approx(1.1)


def test_cases_that_one_side_lacks_do_not_count() -> None:
    known = run(case("tccg-01", weft=10, torch=20), case("tccg-02", weft=10, torch=20))
    known.cases[1].results["torch"] = Result(cannot="for a reason")
    assert [value(ratio) for ratio in relative(known, "torch")] == pytest.approx([2])
    known.cases[0].results["weft"] = Result(wrong="off by one")
    assert relative(known, "torch") == []
    assert "tccg.fp16_fp32.gm1_torch" not in figures(known)
    known.cases[1].floor = {}
    assert over_floor(known, "weft") == []
