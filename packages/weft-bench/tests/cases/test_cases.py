"""The one list of cases: what it covers, and that a case says what it is."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from permuting import same_bits
from weft.errors import WeftError
from weft.testing import LAYOUTS, assert_close, expectation
from weft_bench import cases
from weft_bench.cases import Case, layout, operands, scaled
from weft_bench.dense_thesis import counted_how, published_counters, published_times
from weft_bench.peers.registry import PEERS
from weft_bench.problems import PROBLEMS
from weft_bench.scaling import SCALING
from weft_bench.suites import MOVED, PAIRS, SUITES, entries

# M, N and K as the paper's Table I prints them, for all 48 contractions in order.
LADDER = (6144, 6144, 24)
PRINTED = [
    (97344, 24, 312), (92352, 24, 312), *[(373248, 24, 72)] * 3, (2359296, 24, 32), (2359296, 24, 48),
    (2359296, 24, 32), *[(72, 373248, 72)] * 3, (5136, 5120, 5136), (312, 296, 92352), (312, 296, 97344),
    (92352, 296, 312), (312, 92352, 296), (92352, 312, 296), (92352, 296, 312), (5184, 72, 5184),
    *[(5184, 5184, 5184)] * 11, (9216, 4096, 24), LADDER, LADDER, (9216, 4096, 24), LADDER, LADDER,
    (9216, 4096, 24), LADDER, LADDER, LADDER, LADDER, (4096, 9216, 24), LADDER, LADDER, (4096, 9216, 24),
    LADDER, LADDER, (4096, 9216, 24),
]  # fmt: skip


def mnk(case: Case) -> tuple[int, int, int]:
    a, b = (set(term) for term in case.notation.inputs)
    d = set(case.notation.output)
    m, n, k = a & d - b, b & d - a, a & b - d
    return tuple(math.prod(case.extents[label] for label in group) for group in (m, n, k))  # type: ignore[return-value]


def test_names_are_unique() -> None:
    names = [case.name for case in cases.every()]
    assert len(names) == len(set(names))


def test_tccg() -> None:
    suite = cases.tccg()
    assert len(suite) == 48
    assert suite[6].equation == "afbce,df->edcba"  # column-major ecbfa,fd->abcde
    assert suite[6].dtypes == (torch.float16, torch.float16, torch.float32)
    doubles = cases.tccg(torch.float64, torch.float64)
    assert {case.dtypes for case in doubles} == {(torch.float64,) * 3}
    assert [mnk(case) for case in suite] == PRINTED
    for case in suite:  # every mode is m, n or k
        assert math.prod(mnk(case)) == case.work


def test_beyond_has_what_tccg_lacks() -> None:
    suite, found = cases.beyond(), entries("beyond")
    assert len(suite) >= 40
    assert [entry.case for entry in found] == list(suite)
    for tags in (set().union(*(case.tags for case in suite)), {entry.group for entry in found}):
        assert tags >= {"batch", "diagonal", "lone", "complex", "double", "tf32", "small", "odd", "strided", "large"}
    large = [case for case in suite if "large" in case.tags]
    for case in suite:
        most = max(math.prod(shape) for shape in (*case.shapes, case.d_shape))
        assert (most > 1 << 31) == (case in large), case.name


def test_functions_with_operands_algebras_and_numbers() -> None:
    plain, relu, biased, as_c = cases.epilogues()
    assert plain.work == relu.work == 4096**3
    assert (biased.c_as, as_c.c_as, biased.c_ones) == ("bias", "", (0,))
    assert cases.operands(cases.scaled(biased, 1000)).c.shape[0] == 1
    assert "algebra" not in plain.options()
    named = {case.name: case for case in cases.algebras()}
    assert named["max-plus"].options()["algebra"] == "max_plus"
    assert named["log-direct"].options()["algebra"].name == "log_direct"
    assert {case.algebra for case in named.values()} <= cases.ALGEBRAS.keys()


def test_tiny_cases_are_tiny() -> None:
    assert all(case.work <= 1 << 14 for case in cases.tiny())
    assert any(case.epilogue for case in cases.tiny())


def test_general_covers() -> None:
    """Every tag, layout, function and number type that tests are to meet."""
    suite = cases.general()
    tags = set().union(*(case.tags for case in suite))
    assert tags >= {
        "empty", "odd", "class", "batch", "lone", "diagonal", "ellipsis", "broadcast", "labels", "type", "complex",
        "integer", "scalar", "layout", "function",
    }  # fmt: skip
    for side in range(3):
        assert {case.layouts[side] for case in suite} == set(LAYOUTS)
    used = {name for case in suite for name in (case.a_fn, case.b_fn, case.c_fn, case.epilogue) if name}
    assert used == set(cases.FUNCTIONS)
    scalars = {(case.alpha, case.beta) for case in suite if case.add}
    assert scalars >= {(alpha, beta) for alpha in (0, 1, -0.5) for beta in (0, 1, 2.5)}
    assert all(case.work < 1 << 17 for case in suite)


@pytest.mark.parametrize("case", cases.every(), ids=str)
def test_scaled(case: Case) -> None:
    small = cases.scaled(case, 4096)
    assert small.work <= 4096
    assert small.notation == case.notation
    for shape, original in zip(small.shapes, case.shapes, strict=True):
        for extent, before in zip(shape, original, strict=True):
            assert min(before, 1) <= extent <= before
    if case.work > 4096:
        shrunk = max(case.extents, key=case.extents.__getitem__)
        assert small.extents[shrunk] < case.extents[shrunk] or case.extents[shrunk] == 2
    # Modes of extent 2 become 1 only where nothing longer is left.
    assert set(small.extents.values()) <= {0, 1, 2} or all(
        small.extents[label] >= min(extent, 2) for label, extent in case.extents.items()
    )
    assert cases.scaled(case, case.work) == case


@pytest.mark.parametrize("case", cases.general(), ids=str)
def test_operands(case: Case) -> None:
    first, second = (cases.operands(case, seed=3) for _ in range(2))
    for x, y in zip(first, second, strict=True):
        assert x is None or torch.equal(x, y)
    assert (first.a.shape, first.b.shape) == case.shapes
    assert (first.a.dtype, first.b.dtype) == case.dtypes[:2]
    assert (first.a.is_conj(), first.b.is_conj()) == case.conjugate
    assert (first.c is not None) == case.add


TYPES = (torch.float16, torch.float32, torch.float64, torch.complex128)


def test_permutations() -> None:
    suite = layout.permutations()
    assert len(suite) == 31
    assert len({case.name for case in suite}) == 31
    ranks = [len(case.shape) for case in suite]
    assert set(ranks) == {*range(2, 9), 25}
    assert suite[-1].shape == (2,) * 25
    assert suite[-1].dims == tuple(reversed(range(25)))
    for case in suite:
        assert 0.9 <= case.elements / 2**25 <= 1.1, case
        assert case.bytes == 8 * case.elements
    assert sorted(dtype.itemsize for dtype in TYPES) == [2, 4, 8, 16]


def test_thesis_shapes() -> None:
    names = {case.name for case in layout.dense()}
    for name in ("square-100x100x100", "square-10000x10000x10000", "wide-1300x650x1300", "tall-2500x5000x2500"):
        assert f"dense-{name}" in names
    for name in ("growth-260x1040x780", "thin-inside-12x1200x12", "thin-outside-5000x50x5000", "thin-inside-1x100x1"):
        assert f"dense-{name}" in names
    assert {case.equation for case in layout.dense_states()} == {"mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->mn"}
    shapes = {case.shape for case in layout.transpositions()}
    assert {(100, 100), (10000, 10000), (2500, 5000), (10000, 5000), (5000, 50), (10000, 100), (100, 1)} <= shapes
    in_place = {case.shape for case in layout.in_place()}
    assert in_place == {*((n, n) for n in (4096, 5000, 8192, 10000, 16384)), (1000, 9000), (10000, 300), (4096, 12288)}


def test_fused_cases() -> None:
    found = layout.fused()
    ranks = {len(case.shape) for _, case in found}
    assert ranks == {*range(2, 9), 25}
    assert {name for name, _ in found} == {"relu", "cast"}
    for name, case in found:
        plain = next(each for each in layout.permutations() if each.name == case.name)
        assert (case.equation, case.shape) == (plain.equation, plain.shape)
        assert (case.fn, case.d_dtype) == (("relu", torch.float32) if name == "relu" else (None, torch.float16))
        assert case.bytes == case.elements * (8 if name == "relu" else 6)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("index", range(31))
def test_permutation_on_the_cpu(index: int, dtype: torch.dtype) -> None:
    """Each case of the suite, shrunk to a size at which blocks are cut already."""
    case = layout.shrunk(layout.permutations(dtype)[index], 60_000)
    assert 1000 < case.elements <= 60_000
    x, d = case.operand(), case.result()
    assert weft.permute(x, case.equation, out=d) is d
    assert same_bits(d, x.permute(case.dims))


@pytest.mark.parametrize("case", layout.transpositions(torch.float64)[::3], ids=str)
def test_transposition_on_the_cpu(case: layout.PermuteCase) -> None:
    case = layout.shrunk(case, 40_000)
    x = case.operand()
    assert same_bits(weft.permute(x, case.equation), x.T)


@pytest.mark.parametrize("case", layout.in_place(), ids=str)
def test_in_place_on_the_cpu(case: layout.PermuteCase) -> None:
    case = layout.shrunk(case, 200_000)
    assert math.prod(case.d_shape) == case.elements
    x = case.operand()
    expected = x.T.clone()
    assert same_bits(weft.transpose_(x), expected)


@pytest.mark.parametrize("case", [*layout.dense()[::3], *layout.dense_states(extent=130)], ids=str)
def test_dense_on_the_cpu(case: Case) -> None:
    """By `weft.matmul`, which takes the equation's transposition state as flags."""
    case = scaled(case, 1 << 17)
    given = operands(case)
    assert isinstance(case.equation, str)
    first, second = case.equation.partition("->")[0].split(",")
    result = weft.matmul(given.a, given.b, transpose_a=first == "km", transpose_b=second == "nk")
    assert_close(result, *expectation(case.equation, given.a, given.b))


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
