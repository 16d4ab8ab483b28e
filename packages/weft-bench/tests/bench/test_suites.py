"""The suites: how many cases, in which groups, and what is said of names that do not exist."""

import pytest
import torch

from weft.errors import WeftError
from weft_bench import cases
from weft_bench.peers.registry import PEERS
from weft_bench.problems import PROBLEMS
from weft_bench.scaling import SCALING
from weft_bench.suites import MOVED, PAIRS, SUITES, entries


def test_tccg_is_both_pairs_of_48() -> None:
    found = entries("tccg")
    assert [entry.group for entry in found] == ["fp16_fp32"] * 48 + ["fp16_fp16"] * 48
    assert {entry.case.dtypes[2] for entry in found[:48]} == {torch.float32}
    assert {entry.case.dtypes[2] for entry in found[48:]} == {torch.float16}
    assert [entry.case for entry in found[:48]] == list(cases.tccg())  # the list that tests share


@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_of_number_types(pair: str) -> None:
    found = entries("tccg", [pair])
    assert len(found) == 48
    dtype, out, precision = PAIRS[pair]
    assert {entry.case.dtypes for entry in found} == {(dtype, dtype, out)}
    assert {entry.case.precision for entry in found} == {precision}


def test_fusion_puts_the_function_on_a_b_and_d() -> None:
    found = entries("tccg-fusion")
    assert len(found) == 4 * 48
    assert [entry.group for entry in found[:4]] == ["none", "relu", "leaky_relu", "elu"]
    for entry in found:
        function = None if entry.group == "none" else entry.group
        assert (entry.case.a_fn, entry.case.b_fn, entry.case.epilogue) == (function,) * 3
    assert {entry.base for entry in found[:4]} == {"tccg-01"}
    assert entries("tccg-fusion", ["fp16_fp32", "fp64"])[4 * 48].group == "fp64.none"


def test_beyond_has_what_tccg_lacks() -> None:
    found = entries("beyond")
    assert len(found) >= 40
    assert [entry.case for entry in found] == list(cases.beyond())
    groups = {entry.group for entry in found}
    assert groups >= {"batch", "diagonal", "lone", "complex", "double", "tf32", "small", "odd", "strided", "large"}
    assert any(max(map(torch.Size.numel, map(torch.Size, (*e.case.shapes, e.case.d_shape)))) > 2**31 for e in found)


def test_dense_is_three_types_of_products_and_states() -> None:
    found = entries("dense")
    groups = [entry.group for entry in found]
    for kind in ("", ".small"):
        counts = {groups.count(types + kind) for types in ("fp32", "fp64", "fp16_fp16")}
        assert len(counts) == 1
        assert counts != {0}
    assert {entry.case.dtypes[0] for entry in found} == {torch.float32, torch.float64, torch.float16}
    assert {entry.case.equation for entry in found} == {"mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->mn"}
    small = {entry.case.name for entry in found if entry.group == "fp32.small"}
    assert {"dense-square-100x100x100", "dense-square-1000x1000x1000", "dense-thin-outside-5000x50x5000"} <= small
    assert "dense-square-1300x1300x1300" not in small


def test_permute_is_every_size_of_element_with_fused_ones_and_matrices() -> None:
    found = entries("permute")
    groups = [entry.group for entry in found]
    assert [groups.count(types) for types in MOVED] == [31] * 4
    assert groups.count("fp32.relu") == groups.count("fp32.cast") >= 8
    assert groups.count("thesis") > 20
    at = groups.index("fp32.relu")
    assert groups[at - 1] == "fp32"  # the plain one just before
    assert found[at - 1].base == found[at].base
    assert {entry.group for entry in entries("permute", ["fp64"])} == {"fp64"}


def test_transpose_is_squares_and_others() -> None:
    found = entries("transpose")
    assert {entry.group for entry in found} == {
        f"{types}.{shape}" for types in ("fp16", "fp32", "fp64") for shape in ("square", "rectangular")
    }
    assert [entry.group for entry in found].count("fp32.square") == 5
    assert [entry.group for entry in found].count("fp32.rectangular") == 3


def test_epilogues_algebras_and_numbers() -> None:
    assert [entry.group for entry in entries("epilogue")] == ["plain", "relu", "bias-relu", "bias-relu-as-c"]
    algebras = entries("algebra")
    assert [entry.group for entry in algebras].count("max_plus") == 7
    assert {entry.case.name for entry in algebras} >= {"max-plus", "log", "log-direct", "tccg-20"}
    numbers = entries("numbers")
    groups = [entry.group for entry in numbers]
    assert [groups.count(group) for group in ("complex64", "complex64_tf32", "complex128")] == [3, 11, 3]
    assert [groups.count(group) for group in ("complex64_3m", "complex128_3m")] == [3, 3]
    for entry in numbers:
        assert (entry.case.dtypes[0], entry.case.dtypes[2], entry.case.precision) == PAIRS[entry.group]


def test_names_are_unique_within_their_group() -> None:
    for suite in SUITES:
        names = [(entry.group, entry.case.name) for entry in entries(suite)]
        assert len(set(names)) == len(names)


def test_suites_name_what_there_is() -> None:
    for suite in SUITES.values():
        if suite.kind != SCALING:  # which has a runner of its own, and no peers
            assert suite.kind in PROBLEMS
            assert set(suite.peers) <= PEERS[suite.kind].keys()
        assert set(suite.usual) <= suite.types.keys()
        assert suite.about


def test_choosing_cases() -> None:
    assert [entry.case.name for entry in entries("tccg", ["fp64"], ["1", "tccg-2*"])][:3] == [
        "tccg-01",
        "tccg-20",
        "tccg-21",
    ]
    assert [entry.case.name for entry in entries("beyond", only=["had*", "tf32-modes"])] == ["hadamard", "tf32-modes"]


def test_scaling_says_so() -> None:
    small = entries("beyond", only=["small-extents-of-four", "single-modes"], work=1 << 13)
    assert {entry.case.name: entry.scaled for entry in small} == {"small-extents-of-four": False, "single-modes": True}
    assert all(entry.case.work <= 1 << 13 for entry in small)
    for entry in entries("permute", ["fp64"], work=4096):
        assert entry.scaled
        assert entry.case.elements <= 4096


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing",), "no suite is called 'nothing': there are tccg"),
        (("tccg", ["fp17"]), "no number types are called 'fp17': there are fp16_fp32"),
        (("beyond", ["fp64"]), "number types of their own"),
        (("tccg", [], ["49"]), "no case of 'tccg' is called 49"),
    ],
)
def test_names_that_do_not_exist(arguments: tuple, said: str) -> None:
    with pytest.raises(WeftError, match=said):
        entries(*arguments)
