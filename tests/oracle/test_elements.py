"""Single elements by index against the whole result by the other oracle, `weft.reference`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import weft
from tune_problems import CPU, contraction_of, described, problem_of, reference_plan
from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.oracle.bounds import expectation
from weft.oracle.elements import Expected, applied, every_index, expected, offsets, result_modes
from weft.oracle.judgement import error_over_bound
from weft.oracle.problem import Problem, flat, is_empty
from weft.planner import validity
from weft.spec import Layout
from weft.spec.permutation import Permutation
from weft_bench import cases
from weft_bench.cases import Case

GENERAL = [case for case in cases.general() if case.work <= 1 << 16]


def all_coordinates(problem: Problem) -> torch.Tensor:
    extents = [mode.extent for mode in result_modes(problem.description)]
    return every_index(extents, 0, torch.Size(extents).numel(), CPU)


def off(there: Expected, have: torch.Tensor) -> torch.Tensor:
    """Which elements are past their bound."""
    return error_over_bound(have, *there) > 1


@pytest.mark.parametrize("case", GENERAL, ids=str)
def test_every_element_is_what_the_reference_says(case: Case) -> None:
    contraction = contraction_of(case)
    if is_empty(contraction):
        pytest.skip("nothing to look at")
    problem = problem_of(contraction)
    operands = problem.operands(1)
    problem.call(reference_plan(case)._first().launch)(*operands)
    (there,) = expected(problem, operands, all_coordinates(problem))
    have = flat(operands.d)[offsets(result_modes(problem.description), all_coordinates(problem), 3)]
    assert not bool(off(there, have).any())
    assert bool(there.bound.isfinite().any())


def test_an_element_off_by_more_than_its_rounding_is_wrong() -> None:
    contraction = described("ik,jk->ij", (20, 30), (10, 30))
    problem = problem_of(contraction)
    operands = problem.operands(1)
    (there,) = expected(problem, operands, all_coordinates(problem))
    right = there.value.to(torch.float32)
    assert not bool(off(there, right).any())
    for at, change in ((3, 1e-2), (199, float("nan")), (0, float("inf"))):
        spoilt = right.clone()
        spoilt[at] += change
        assert off(there, spoilt).nonzero().flatten().tolist() == [at]
    assert float(there.bound.max()) < 1e-3


def test_long_sums_are_taken_in_pieces_that_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    contraction = described("ik,jk->ij", (3, 500), (2, 500))
    problem = problem_of(contraction)
    operands = problem.operands(1)
    (whole,) = expected(problem, operands, all_coordinates(problem))
    monkeypatch.setattr("weft.oracle.elements._GATHERED", {"cpu": 64})
    (pieces,) = expected(problem, operands, all_coordinates(problem))
    assert torch.allclose(whole.value, pieces.value, rtol=1e-14)
    assert torch.allclose(whole.bound, pieces.bound, rtol=1e-10)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.complex64], ids=str)
def test_permutations(dtype: torch.dtype, added: bool) -> None:
    x = torch.zeros(5, 6, 7, dtype=dtype)
    out = torch.zeros(7, 6, 5, dtype=dtype) if added else None
    scalars = {"alpha": 2, "beta": 1} if added else {}
    plan = weft.plan_permute(x, "abc->cba", out=out, backend="reference", **scalars)
    problem = problem_of(plan.permutation)
    operands = problem.operands(1)
    (there,) = expected(problem, operands, all_coordinates(problem))
    problem.call(plan._first().launch)(*operands)
    have = flat(operands.d)[offsets(result_modes(problem.description), all_coordinates(problem), 3)]
    assert not bool(off(there, have).any())
    moved = flat(operands.d)[offsets(result_modes(problem.description), all_coordinates(problem).roll(1, 0), 3)]
    assert bool(off(there, moved).any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_operands_coordinates_and_further_outputs(dtype: torch.dtype) -> None:
    a, b, bias = (torch.randn(shape, dtype=dtype) for shape in ((6, 5), (7, 5), (7,)))

    def both(s, bias, i):
        return s + bias, s * i

    plan = weft.plan(
        "ik,jk->ij", a, b, epilogue=both, operands={"bias": ("j", bias)}, indices={"i": "i"}, backend="reference"
    )
    problem = problem_of(plan.contraction)
    operands = problem.operands(1)
    problem.call(plan._first().launch)(*operands)
    found = expected(problem, operands, all_coordinates(problem))
    assert len(found) == 2
    for (at, tensor), there in zip(problem.results(operands), found, strict=True):
        have = flat(tensor)[offsets(result_modes(problem.description), all_coordinates(problem), at)]
        assert not bool(off(there, have).any())
        assert bool(off(there, have + 1).all())


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    ("algebra", "dtype"),
    [
        *((name, torch.float32) for name in ("max_plus", "min_plus", "max_times", "min_max", "max_min", "log")),
        ("max_plus", torch.int32),
        ("or_and", torch.bool),
        ("gf2", torch.int32),
    ],
    ids=str,
)
def test_algebras(algebra: str, dtype: torch.dtype, added: bool) -> None:
    a, b = (torch.zeros(shape, dtype=dtype) for shape in ((6, 9), (7, 9)))
    c = torch.zeros(6, 7, dtype=dtype) if added else None
    validity.outdate()
    plan = weft.plan("ik,jk->ij", a, b, c=c, algebra=algebra, backend="reference")
    problem = problem_of(plan.contraction)
    operands = problem.operands(1)
    problem.call(plan._first().launch)(*operands)
    (there,) = expected(problem, operands, all_coordinates(problem))
    have = flat(operands.d)[offsets(result_modes(problem.description), all_coordinates(problem), 3)]
    assert not bool(off(there, have).any())
    assert bool(off(there, have ^ True if dtype is torch.bool else have + 1).all())


def test_misaligned_and_strided_operands_lie_as_described() -> None:
    contraction = described("ik,jk->ij", (6, 5), (7, 5))
    odd = replace(contraction, a=Layout((6, 5), (10, 2), torch.float32, alignment=4))
    a = problem_of(odd).operands(1).a
    assert (a.stride(), a.data_ptr() % 8) == ((10, 2), 4)


def test_the_bits_of_a_move_are_the_bits() -> None:
    permutation = weft.plan_permute(torch.zeros(4, 5), "ab->ba", backend="reference").permutation
    assert isinstance(permutation, Permutation)
    problem = problem_of(permutation)
    (there,) = expected(problem, problem.operands(1), all_coordinates(problem))
    assert float(there.bound.max()) == 0.0


def test_a_triton_function_of_several_values_is_not_checked() -> None:
    class Foreign(Pointwise):
        identity, inputs, dtypes, result = "foreign", ("x", "y"), (torch.float32,) * 2, torch.float32
        flops = elementary = 0
        source = ""
        jit = None

        def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
            raise UnsupportedError("it runs on the Triton backend only")

    with pytest.raises(UnsupportedError, match="nothing is tuned with it"):
        applied(Foreign(), torch.ones(3), torch.ones(3))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "tf32"},
        {"dtype": torch.float16, "out_dtype": torch.float32},
        {"dtype": torch.complex64},
        {"dtype": torch.float8_e4m3fn, "precision": torch.float8_e4m3fn, "out_dtype": torch.float16},
        {"dtype": torch.int8, "out_dtype": torch.int32},
    ],
    ids=str,
)
def test_the_tuner_and_validation_have_one_bound(options: dict) -> None:
    contraction = described("ik,jk->ij", (6, 40), (5, 40), **options)
    problem = problem_of(contraction)
    operands = problem.operands(1)
    alpha, _ = problem.scalars
    (there,) = expected(problem, operands, all_coordinates(problem))
    given = {name: value for name, value in options.items() if name != "dtype"}
    exact, bound = expectation("ik,jk->ij", operands.a, operands.b, alpha=alpha, **given)
    torch.testing.assert_close(there.value.reshape(6, 5), exact, rtol=1e-13, atol=0)
    torch.testing.assert_close(there.bound.reshape(6, 5), bound, rtol=1e-12, atol=0)
