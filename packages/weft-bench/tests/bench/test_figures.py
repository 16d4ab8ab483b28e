"""The figures of runs with known times."""

import pytest

from runs import MICRO, case, result, run
from weft.machine.statistics import Interval
from weft_bench.records import CaseRecord, Result
from weft_bench.report.figures import figures, group_figures, scopes, unit
from weft_bench.report.ratios import over_floor, relative, value
from weft_bench.suites import MOVED


def tells(found: dict[str, Interval], of: str, **values: float) -> None:
    """Each of these figures is there, and comes to this."""
    assert {name: found[f"{of}.{name}"].value for name in values} == pytest.approx(values)


def test_gm1_gm2_and_the_worst_case() -> None:
    known = run(case("tccg-01", weft=10, cutensor=40), case("tccg-02", weft=10, cutensor=5))
    found = figures(known)
    tells(found, "tccg.fp16_fp32", gm1_cutensor=(4 * 0.5) ** 0.5, gm2_cutensor=2.0, worst_vs_cutensor=0.5)
    known.cases[0].results["weft"] = Result(samples=(5 * MICRO, 10 * MICRO, 10 * MICRO))
    known.cases[0].results["cutensor"] = Result(samples=(40 * MICRO, 40 * MICRO))
    assert figures(known)["tccg.fp16_fp32.gm1_of_minima_cutensor"].value == pytest.approx((8 * 0.5) ** 0.5)
    for interval in found.values():
        assert interval.low <= interval.value <= interval.high


def test_slow_cases_of_a_peer_are_left_out() -> None:
    """Five times as far from the floor as the median case, however far ahead weft is."""
    usual = [case(f"tccg-0{number}", weft=10, cutensor=20) for number in range(1, 4)]
    found = figures(run(*usual, case("tccg-04", weft=10, cutensor=100), case("tccg-05", weft=5, cutensor=20)))
    tells(found, "tccg.fp16_fp32", gm1_without_slow_cutensor=(2**3 * 4) ** 0.25, gm1_cutensor=(2**3 * 4 * 10) ** 0.2)


def test_time_over_the_floor() -> None:
    found = figures(run(case("tccg-01", weft=10, torch=40), case("tccg-02", weft=40, torch=40)))
    tells(found, "tccg.fp16_fp32", time_over_floor=4.0, torch_over_floor=8.0)


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
    tells(
        found, "beyond", geomean_vs_best_peer=(2 * 4.5 * 1) ** (1 / 3),
        gm1_cutensor=(2 * 9) ** 0.5,  # of the cases that it can do
    )  # fmt: skip
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
    assert "fusion.same_schedule_over_plain" not in figures(known)
    for each, time in zip(known.cases, (10, 13, 14, 20, 22), strict=True):
        each.results["weft-same"] = result(time)
    known.contenders.append("weft-same")
    found = figures(known)
    assert not any("vs_weft-same" in name for name in found)
    tells(
        found, "fusion", same_schedule_over_plain=(1.3 * 1.4 * 1.1) ** (1 / 3),
        geomean_over_plain=(1.1 * 1.2 * 1.0) ** (1 / 3), worst_over_plain=1.2, leaky_relu_vs_cutensor=5.0,
        relu_vs_cutensor=2**0.5,
    )  # fmt: skip
    known.cases += [case(f"tccg-0{number}", "relu", relu, weft=10, cutensor=far) for number, far in ((3, 20), (4, 100))]
    assert figures(known)["fusion.relu_without_slow_vs_cutensor"].value == pytest.approx(4 ** (1 / 3))


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


def moved(name: str, group: str, bytes_: int = 8_000, copy: float = 5, **times: float) -> CaseRecord:
    """A case that moves so many bytes, which a copy does in `copy` microseconds."""
    record = case(name, group, **times)
    record.work = {"flops": 0, "function_flops": 0, "bytes": bytes_}
    record.floor = {**record.floor, "copy": copy * MICRO}
    return record


def test_permutations_against_a_copy_and_peers() -> None:
    known = run(
        *(moved("permute-2a", group, weft=10, torch=40, cutensor=11) for group in MOVED),
        *(moved("permute-2b", group, weft=6.25, torch=25, cutensor=5) for group in MOVED),
        moved("transpose-square-100x100", "thesis", weft=100, torch=50),
        suite="permute",
    )
    found = figures(known)
    assert found["permute.geomean_vs_copy"].value == pytest.approx((0.5 * 0.8) ** 0.5)
    assert found["permute.worst_vs_copy"].value == pytest.approx(0.5)
    assert found["permute.geomean_vs_torch"].value == pytest.approx(4)
    assert found["permute.worst_vs_cutensor"].value == pytest.approx(0.8)
    assert found["permute.fp64.geomean_vs_copy"].value == pytest.approx((0.5 * 0.8) ** 0.5)
    assert found["permute.thesis.geomean_vs_torch"].value == pytest.approx(0.5)
    known.cases = [each for each in known.cases if each.group != "fp16"]
    assert "permute.geomean_vs_copy" not in figures(known)  # not all sizes of elements
    assert "permute.fp32.geomean_vs_copy" in figures(known)


def test_fused_permutations_are_held_to_the_plain_ones_byte_for_byte() -> None:
    known = run(
        moved("permute-2a", "fp32", 8_000, weft=8),
        moved("permute-2a", "fp32.relu", 8_000, weft=8.8),
        moved("permute-2a", "fp32.cast", 6_000, weft=6),
        moved("permute-2a", "fp64", 16_000, weft=1),
        moved("permute-2b", "fp32.relu", 8_000, weft=1),
        suite="permute",
    )
    found = figures(known)
    tells(found, "permute", relu_over_plain=1.1, cast_over_plain=1.0, fused_over_plain=1.1**0.5)


def test_in_place_figures_are_of_float32() -> None:
    known = run(
        moved("in-place-4096x4096", "fp32.square", weft=10, torch=30),
        moved("in-place-8192x8192", "fp32.square", weft=6.25, torch=30),
        moved("in-place-1000x9000", "fp32.rectangular", weft=20, torch=30),
        moved("in-place-10000x300", "fp32.rectangular", weft=10, torch=30),
        moved("in-place-4096x4096", "fp16.square", weft=5, torch=30),
        suite="transpose",
    )
    known.cases[3].results["weft"] = Result(cannot="not on the GPU yet")
    found = figures(known)
    assert found["transpose_inplace.square_vs_copy"].value == pytest.approx((0.5 * 0.8) ** 0.5)
    assert found["transpose_inplace.square_worst_vs_copy"].value == pytest.approx(0.5)
    assert found["transpose_inplace.rectangular_vs_copy"].value == pytest.approx(0.25)
    assert found["transpose_inplace.fp16.square_vs_copy"].value == pytest.approx(1)
    assert found["transpose_inplace.square_vs_torch"].value == pytest.approx((3 * 4.8) ** 0.5)


def test_dense_products_against_cublas() -> None:
    types = ("fp32", "fp64", "fp16_fp16")
    known = run(
        *(case("dense-square-2500x2500x2500", group, weft=10, cublas=20) for group in types),
        *(case("dense-square-100x100x100", f"{group}.small", weft=11, cublas=10) for group in types),
        case("dense-thin-inside-1x100x1", "fp64.small", weft=12, cublas=10),
        suite="dense",
    )
    found = figures(known)
    assert found["dense.worst_small_over_cublas"].value == pytest.approx(1.2)
    assert found["dense.fp32.worst_small_over_cublas"].value == pytest.approx(1.1)
    assert found["dense.fp32.geomean_vs_cublas"].value == pytest.approx((2 / 1.1) ** 0.5)
    assert found["dense.geomean_vs_cublas"].value == pytest.approx((2**3 / 1.1**3 / 1.2) ** (1 / 7))
    assert found["dense.worst_vs_cublas"].value == pytest.approx(1 / 1.2)


def test_plans_of_the_model_alone_are_weft_too() -> None:
    known = run(case("tccg-01", **{"weft": 8, "weft-model": 10, "torch": 40}))
    found = figures(known)
    tells(found, "tccg.fp16_fp32", untuned_vs_tuned=0.8, geomean_vs_best_peer=5)
    assert known.peers == ["torch"]


def test_calls_are_the_slowest_of_each_and_nothing_is_subtracted() -> None:
    known = run(
        case("product", "call", **{"weft": 12, "weft-contract": 14, "torch": 20}),
        case("modes", "call", **{"weft": 8, "weft-contract": 16, "torch": 30}),
        suite="call",
        mode="hot",
        host=True,
    )
    known.environment["platform"]["ceilings"] = {"launch_eager": 5e-6}
    found = figures(known)
    tells(found, "call", host_us=12, contract_us=16, torch_us=30, host_geomean_us=96**0.5, launch_us=5)
    assert known.caveat == ""  # hot is how it is meant
    assert known.peers == ["torch"]
    known.environment["platform"]["ceilings"] = None
    assert "call.launch_us" not in figures(known)


def test_a_bias_and_a_relu_against_the_bare_product() -> None:
    known = run(
        case("plain", "plain", weft=10, cublas=9),
        case("bias-relu", "bias-relu", {"epilogue": "relu"}, weft=10),
        case("bias-relu-as-c", "bias-relu-as-c", {"epilogue": "relu"}, weft=12),
        suite="epilogue",
    )
    found = figures(known)
    tells(found, "epilogue", bias_relu_vs_cublas=0.9, bias_relu_vs_plain=1.0, bias_relu_as_c_vs_cublas=0.75)
    assert figures(run(case("relu", "relu", weft=1), suite="epilogue")) == {}


def test_algebras_have_rates_and_the_worst_against_the_compiler() -> None:
    known = run(
        case("max-plus", "max_plus", weft=1, compile=5),  # 12 Mflop each
        case("log", "log", weft=2),
        case("log-direct", "log_direct", weft=12),
        case("tccg-01", "max_plus", weft=10, compile=40),
        case("tccg-20", "max_plus", weft=10, compile=90),
        suite="algebra",
    )
    found = figures(known)
    tells(
        found, "algebra", max_plus_fp32_tops=12, log_vs_direct=6, max_plus_vs_compile_min=4,
        max_plus_vs_compile_geomean=6, max_plus_vs_compile=5,
    )  # fmt: skip


def test_complex_numbers_and_integers() -> None:
    known = run(
        *(case(f"tccg-{at}", "complex64", weft=10, cutensor=at) for at in (20, 24)),
        *(case(f"tccg-{at}", "complex128", weft=20, cutensor=at) for at in (20, 30)),
        *(case(f"tccg-{at}", "complex128_3m", weft=10, cutensor=at) for at in (20, 30)),
        *(case(f"tccg-{at}", "complex64_tf32", weft=10, cutensor=20) for at in (20, 24)),
        case("product", "fp16_fp16", weft=12, cutensor=9),
        case("product", "int8_int32", weft=10),
        suite="numbers",
    )
    found = figures(known)
    assert found["complex64.ieee_vs_cutensor_min"].value == pytest.approx(2)
    assert found["complex128.ieee_vs_cutensor_min"].value == pytest.approx(1)
    assert found["complex128.vs_cutensor_min"].value == pytest.approx(2)  # of as many products as the peer makes
    assert found["complex64.tf32_gm_cutensor"].value == pytest.approx(2)
    assert found["int8.vs_fp16"].value == pytest.approx(0.9)  # the fastest of the half-precision ones


def test_units() -> None:
    assert unit("permute.geomean_vs_copy") == "ratio"
    assert unit("call.host_us") == "us"
    assert unit("algebra.max_plus_fp32_tops") == "T op/s"
