"""The one list of cases: what it covers, and that a case says what it is."""

from __future__ import annotations

import math

import pytest
import torch

from weft.testing import LAYOUTS
from weft_bench import cases
from weft_bench.cases import Case

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
    suite = cases.beyond()
    assert len(suite) >= 40
    tags = set().union(*(case.tags for case in suite))
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
