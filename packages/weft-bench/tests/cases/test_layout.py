"""The suites' cases: what they cover, that they say what they are, and that weft gets them right."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from permuting import same_bits
from weft.testing import assert_close, expectation
from weft_bench.cases import Case, layout, operands, scaled

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
