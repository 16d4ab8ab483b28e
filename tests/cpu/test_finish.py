"""alpha, beta, C, the four functions, and D's memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft
from cpu.problems import Problem, all_ways, check, operands
from weft.testing import poisoned

EXTENTS = {"a": 5, "b": 3, "c": 3, "d": 4, "m": 9, "n": 7, "k": 11}
EQUATIONS = ["abk,kcd->cadb", "bmk,bkn->bmn", "bm,bn->mbn", "mk,k->m"]


@pytest.mark.parametrize("alpha", [0, 1, -0.5])
@pytest.mark.parametrize("beta", [0, 1, 2.5])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_alpha_and_beta(equation: str, alpha: float, beta: float) -> None:
    a, b = operands(equation, EXTENTS)
    c = torch.randn(Problem(equation, a, b).shape)
    check(Problem(equation, a, b, c=c, alpha=alpha, beta=beta), every=alpha != 1)
    check(Problem(equation, a, b, alpha=alpha), every=beta == 0)


def test_complex_scalars() -> None:
    a, b = operands("mk,kn->nm", EXTENTS, torch.complex64)
    c = torch.randn(EXTENTS["n"], EXTENTS["m"], dtype=torch.complex64)
    check(Problem("mk,kn->nm", a, b, c=c, alpha=0.5 - 1j, beta=2j))


def test_conjugate_view_of_c() -> None:
    a, b = operands("mk,kn->nm", EXTENTS, torch.complex64, integers=True)
    c = torch.arange(63).reshape(EXTENTS["m"], EXTENTS["n"]).to(torch.complex64).t().mul(1 - 2j).conj()
    found = weft.contract("mk,kn->nm", a, b, c=c, beta=2, backend="cpu")
    assert torch.equal(found, torch.einsum("mk,kn->nm", a, b) + 2 * c)


def test_integer_scalars() -> None:
    a, b = operands("mk,kn->nm", EXTENTS, torch.int32)
    c = torch.arange(EXTENTS["m"] * EXTENTS["n"], dtype=torch.int32).reshape(EXTENTS["n"], EXTENTS["m"])
    check(Problem("mk,kn->nm", a, b, c=c, alpha=-3, beta=2))


@pytest.mark.parametrize("c_fn", [None, torch.exp])
def test_beta_zero_does_not_read_c(c_fn: Callable[..., torch.Tensor] | None) -> None:
    a, b = operands("mk,kn->nm", EXTENTS)
    c = torch.full((EXTENTS["n"], EXTENTS["m"]), torch.nan)
    functions = {"c_fn": c_fn} if c_fn else {}
    check(Problem("mk,kn->nm", a, b, c=c, beta=0, functions=functions))


def test_alpha_zero_multiplies() -> None:
    """alpha = 0 is a factor like any other: NaN in a sum stays NaN."""
    a, b = operands("mk,kn->nm", EXTENTS)
    a[3, 2] = torch.nan
    for _, d in Problem("mk,kn->nm", a, b, alpha=0).results():
        assert d[:, 3].isnan().all()
        assert torch.equal(d[:, :3], torch.zeros(EXTENTS["n"], 3))


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("c_dtype", [torch.float16, torch.float32, torch.int32])
def test_broadcast_c_of_other_types(equation: str, c_dtype: torch.dtype) -> None:
    a, b = operands(equation, EXTENTS)
    shape = Problem(equation, a, b).shape
    c = (3 * torch.randn(1, *shape[1:])).to(c_dtype)
    check(Problem(equation, a, b, c=c.expand(shape), beta=0.5))


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("layout", ["contiguous", "permuted", "strided"])
def test_c_in_place(equation: str, dtype: torch.dtype, layout: str) -> None:
    """D is C's own memory: each element is read before it is written."""
    a, b = operands(equation, EXTENTS, dtype, integers=True)
    shape = Problem(equation, a, b).shape
    start = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape) % 11
    expected = torch.einsum(equation, a.double(), b.double()) * 2 - 3 * start
    guarded = poisoned(shape, dtype, layout=layout)
    problem = Problem(equation, a, b, c=guarded.tensor, alpha=2, beta=-3)
    for schedule in all_ways(problem.contraction(guarded.tensor)):
        guarded.tensor.copy_(start)
        problem.launch(schedule, guarded.tensor)
        guarded.check_guards()
        assert torch.equal(guarded.tensor, expected.to(dtype)), schedule


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_functions(equation: str, dtype: torch.dtype) -> None:
    a, b = operands(equation, EXTENTS, dtype)
    c = torch.randn(Problem(equation, a, b).shape).to(dtype)
    functions = {
        "a_fn": torch.nn.functional.elu,
        "b_fn": lambda x: torch.where(x > 0, x, 0.25 * x),
        "c_fn": torch.tanh,
        "epilogue": torch.sin,
    }
    check(Problem(equation, a, b, c=c, alpha=0.5, functions=functions))


@pytest.mark.parametrize("function", [lambda x: x, lambda x: torch.ones_like(x), lambda x: x.to(torch.float64) / 3])
def test_functions_that_return_views_constants_and_other_types(function: Callable[..., torch.Tensor]) -> None:
    a, b = operands("mk,kn->nm", EXTENTS)
    functions = {"a_fn": function, "b_fn": function, "epilogue": function}
    check(Problem("mk,kn->nm", a, b, functions=functions))


def test_functions_see_their_types() -> None:
    """a_fn and b_fn see the product type, the epilogue the accumulator's; products of half are not rounded."""
    a = torch.full((3, 2), 2048.0)
    b = torch.full((2, 4), 1.0)
    plus = {"a_fn": lambda x: x + 1, "epilogue": lambda x: x + 1}
    problem = Problem("mk,kn->mn", a, b, precision=torch.float16, functions=plus)
    for schedule, d in problem.results():
        # 2048 + 1 rounds to 2048 in fp16, and 4096 + 1 is exact in fp32.
        assert torch.equal(d, torch.full((3, 4), 4097.0)), schedule


def test_nonlinear_epilogue_once() -> None:
    """triton#643: an epilogue that is not linear must see the whole sum, however many blocks k takes."""
    a, b = operands("mk,kn->mn", EXTENTS, integers=True)
    expected = (a.double() @ b.double()).square().float()
    for schedule, d in Problem("mk,kn->mn", a, b, functions={"epilogue": torch.square}).results():
        assert torch.equal(d, expected), schedule


def test_function_of_values_summed_alone() -> None:
    """A function applies to values before they are summed over a mode of their own."""
    a, b = operands("mka,kn->mn", EXTENTS, integers=True)
    expected = torch.einsum("mka,kn->mn", a.double().square(), b.double()).float()
    for schedule, d in Problem("mka,kn->mn", a, b, functions={"a_fn": torch.square}).results():
        assert torch.equal(d, expected), schedule
