"""Gradients against differences (`gradcheck`), against torch's of the same computation, and second ones."""

from __future__ import annotations

import weakref
from typing import Any
from unittest import mock

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft
from autograd.differentiated import ALGEBRAS, FUNCTIONS, FUSED, OTHERS, PRODUCTS, Case
from weft.autograd.product import Product
from weft.autograd.steps import GradientStep

F64, C128 = torch.float64, torch.complex128
CASES = [*PRODUCTS, *FUSED, *OTHERS, *FUNCTIONS, *ALGEBRAS]
ONLY_COMPLEX = ("parts of complex numbers", "a complex factor")
RUNS = [
    *[pytest.param(case, F64, id=case.name) for case in CASES if case.name not in ONLY_COMPLEX],
    *[pytest.param(case, C128, id=f"{case.name}, complex") for case in CASES if case.complex_too],
]
# Of activations, which `test_gradients_are_those_of_torch` holds each against torch's, a few are taken twice.
TWICE = ("gelu", "elu", "softplus", "hardtanh")


def differenced() -> list[Any]:
    seldom = {case.name for case in FUNCTIONS} - {*TWICE}
    slow = [pytest.mark.slow]
    return [pytest.param(*run.values, id=run.id, marks=slow if run.values[0].name in seldom else ()) for run in RUNS]


def results(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("case", "dtype"), differenced())
def test_gradients_are_those_of_differences(case: Case, dtype: torch.dtype) -> None:
    tensors = case.tensors(dtype)
    assert gradcheck(case.call, tensors, fast_mode=True)
    if case.twice:
        assert gradgradcheck(case.call, tensors, fast_mode=True, atol=1e-4)


@pytest.mark.parametrize(("case", "dtype"), [run for run in RUNS if run.values[0].expected is not None])
def test_gradients_are_those_of_torch(case: Case, dtype: torch.dtype) -> None:
    """Every element of each, with gradients of the results that differ from element to element."""
    assert case.expected is not None
    tensors = case.tensors(dtype)
    mine, theirs = results(case.call(*tensors)), results(case.expected(*tensors))
    grads = [torch.randn_like(each) for each in theirs]
    found = torch.autograd.grad(mine, tensors, grads)
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in tensors]
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(found, torch.autograd.grad(theirs, tensors, grads))


@pytest.mark.parametrize("algebra", ["max_plus", "min_plus", "max_times", "min_max", "max_min"])
def test_of_equal_elements_the_first_gets_the_gradient(algebra: str) -> None:
    a, b = torch.ones(2, 3, dtype=F64, requires_grad=True), torch.ones(3, 4, dtype=F64, requires_grad=True)
    value, where = weft.contract("mk,kn->mn", a, b, algebra=algebra, return_arg=True)
    assert not where.any()
    da, db = torch.autograd.grad(value.sum(), (a, b))
    assert torch.equal(da, torch.tensor([[4.0, 0, 0]] * 2, dtype=F64))
    expected = torch.zeros(3, 4, dtype=F64)
    expected[0] = 2.0 if algebra in ("max_plus", "min_plus", "max_times") else 0.0  # of a pair the first is selected
    assert torch.equal(db, expected)


@pytest.mark.parametrize(("extent", "dtype"), [(300, torch.int16), (2**15 + 1, torch.int32)])
def test_places_are_kept_in_as_few_bytes_as_hold_them(extent: int, dtype: torch.dtype) -> None:
    a, b = torch.zeros(2, extent, requires_grad=True), torch.zeros(extent, 1)
    with torch.no_grad():
        a[0, -1] = 1.0
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        found = weft.contract("mk,kn->mn", a, b, algebra="max_plus")
    assert [(x.dtype, tuple(x.shape)) for x in kept if not x.is_floating_point()] == [(dtype, (2, 1))]
    (grad,) = torch.autograd.grad(found.sum(), a)
    assert grad.nonzero().tolist() == [[0, extent - 1], [1, 0]]


@pytest.mark.parametrize("call", ["contract", "plan", "einsum", "compiled"])
def test_sums_are_kept_as_asked(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_REPLAY", "0")
    a, b = torch.randn(8, 600), torch.randn(600, 8, requires_grad=True)
    keywords = {"epilogue": torch.nn.functional.silu, "kept_dtype": "bf16"}
    calls = {
        "contract": lambda: weft.contract("mk,kn->mn", a, b, **keywords),
        "plan": lambda: weft.plan("mk,kn->mn", a, b, **keywords)(a, b),
        "einsum": lambda: weft.einsum("mk,kl,ln->mn", a, b, torch.eye(8), **keywords),
        "compiled": lambda: torch.compile(lambda: weft.matmul(a, b, **keywords), backend="eager", fullgraph=True)(),
    }
    kept = []
    with (
        mock.patch.object(Product, "_is_kept", return_value=True),
        torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.dtype), x)[1], lambda x: x),
    ):
        found = calls[call]()
    assert kept.count(torch.bfloat16) == 1
    (grad,) = torch.autograd.grad(found.sum(), b)
    sums = (a @ b).detach().bfloat16().float().requires_grad_()
    (slope,) = torch.autograd.grad(torch.nn.functional.silu(sums).sum(), sums)
    torch.testing.assert_close(grad, a.T @ slope, rtol=1e-3, atol=5e-2)


def test_sums_are_not_kept_in_what_has_no_place_for_them() -> None:
    a, b = torch.randn(2, 3, dtype=torch.complex64), torch.randn(3, 2, dtype=torch.complex64, requires_grad=True)
    with pytest.raises(weft.DTypeError, match="sums in complex64 are not kept in float32"):
        weft.contract("mk,kn->mn", a, b, kept_dtype="fp32")
    with pytest.raises(weft.DTypeError, match="sums in float32 are not kept in int32"):
        weft.contract("mk,kn->mn", a.real, b.real, kept_dtype=torch.int32)


def test_sums_that_are_made_again_are_gone_before_the_products() -> None:
    """What a backward pass makes for itself lives as long as a later step reads it."""
    a, b = (torch.randn(shape, requires_grad=True) for shape in ((65, 17), (17, 66)))
    again = mock.patch.object(Product, "_is_kept", return_value=False)
    stored = mock.patch.object(Product, "_cheaper", lambda rule, *asked: rule._made(*asked, stored=True))
    alive: list[int] = []
    made: list[weakref.ref[torch.Tensor]] = []
    run = GradientStep.run

    def watched(step: GradientStep, sources: Any, *given: Any) -> torch.Tensor:
        alive.append(sum(each() is not None for each in made))
        result = run(step, sources, *given)
        made.append(weakref.ref(result))
        return result

    with again, stored, mock.patch.object(GradientStep, "run", watched):
        found = weft.contract("mk,kn->mn", a, b, epilogue=torch.nn.functional.gelu)
        torch.autograd.grad(found.sum(), (a, b))
    assert alive == [0, 1, 1, 2]  # the sums; G, of the sums; dA, of G; dB, of G


def test_of_a_sum_and_an_equal_c_the_sum_gets_the_gradient() -> None:
    a, b, c = (torch.ones(1, 1, dtype=F64, requires_grad=True) for _ in range(3))
    d = weft.contract("mk,kn->mn", a, b, c=c + 1, algebra="max_plus")
    assert [x.item() for x in torch.autograd.grad(d, (a, b, c))] == [1, 1, 0]


def test_absent_edges_have_no_gradient() -> None:
    """Minus infinity in `log` and max-plus: nothing is NaN, also where all paths are absent."""
    a = torch.tensor([[0.5, -torch.inf], [-torch.inf, -torch.inf]], dtype=F64, requires_grad=True)
    b = torch.randn(2, 3, dtype=F64, requires_grad=True)
    for algebra in ("log", "max_plus"):
        da, db = torch.autograd.grad(weft.contract("mk,kn->mn", a, b, algebra=algebra)[0].sum(), (a, b))
        torch.testing.assert_close(da, torch.tensor([[3.0, 0], [0, 0]], dtype=F64))
        torch.testing.assert_close(db, torch.tensor([[1.0] * 3, [0] * 3], dtype=F64))


def test_log_is_safe_from_overflow() -> None:
    a = (1000 * torch.randn(5, 7, dtype=F64)).requires_grad_()
    b = (1000 * torch.randn(7, 6, dtype=F64)).requires_grad_()
    grad = torch.randn(5, 6, dtype=F64)
    found = torch.autograd.grad(weft.contract("mk,kn->mn", a, b, algebra="log"), (a, b), grad)
    expected = torch.autograd.grad((a[:, :, None] + b).logsumexp(1), (a, b), grad)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [(torch.float16, None), (torch.bfloat16, torch.float32), (torch.float32, None)]
)
def test_low_precision(dtype: torch.dtype, out_dtype: torch.dtype | None) -> None:
    """Gradients come in the operands' types, as exact as torch's own in that type, and no worse by more than half."""
    made = torch.Generator().manual_seed(3)
    x, w, u = (torch.randn(shape, generator=made) / 4 for shape in ((40, 30), (30, 20), (20,)))
    grad = torch.randn(40, 20, generator=made).to(out_dtype or dtype)

    def gradients(call: Any, kind: torch.dtype) -> tuple[torch.Tensor, ...]:
        tensors = [each.to(dtype).to(kind).requires_grad_() for each in (x, w, u)]
        found = call(*tensors)
        return torch.autograd.grad(found, tensors, grad.to(found.dtype))

    def mine(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> Any:
        return weft.contract(
            "mk,kn->mn", a, b, epilogue=lambda s, u: torch.nn.functional.gelu(s + u), operands={"u": ("n", bias)},
            out_dtype=out_dtype,
        )  # fmt: skip

    def theirs(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> Any:
        return torch.nn.functional.gelu(a @ b + bias)

    exact = gradients(theirs, F64)
    ours, eager = gradients(mine, dtype), gradients(theirs, dtype)
    for wide, have, torchs in zip(exact, ours, eager, strict=True):
        assert have.dtype == dtype
        scale = wide.abs().max() * torch.finfo(dtype).eps
        assert (have - wide).abs().max() <= 1.5 * (torchs - wide).abs().max() + scale


@pytest.mark.parametrize("hook", ["a_fn", "b_fn"])
@pytest.mark.parametrize("algebra", ["min_plus", "log"])
def test_a_function_of_one_half_is_wider_than_the_other_operand(algebra: str, hook: str) -> None:
    halves = [torch.randn(shape).half() for shape in ((6, 9), (9, 7))]
    given, wide = ([each.to(kind).requires_grad_() for each in halves] for kind in (torch.half, torch.float64))
    found = weft.contract("mk,kn->mn", *given, algebra=algebra, **{hook: torch.sin})
    a, b = (torch.sin(each) if name == hook else each for name, each in zip(("a_fn", "b_fn"), wide, strict=True))
    pairs = a[:, :, None] + b
    expected = pairs.amin(1) if algebra == "min_plus" else pairs.logsumexp(1)
    grad = torch.randn(6, 7).half()
    assert found.dtype is torch.half
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)
    of_found, of_expected = torch.autograd.grad(found, given, grad), torch.autograd.grad(expected, wide, grad.double())
    torch.testing.assert_close([each.double() for each in of_found], list(of_expected), rtol=2e-3, atol=2e-3)


def test_gradients_that_are_poisoned_reach_only_what_they_belong_to() -> None:
    """One NaN in dD: one row of dA, one column of dB, and every element beside them is right."""
    a, b = (torch.randn(shape, dtype=F64, requires_grad=True) for shape in ((5, 6), (6, 7)))
    grad = torch.ones(5, 7, dtype=F64)
    grad[2, 3] = torch.nan
    da, db = torch.autograd.grad(weft.contract("mk,kn->mn", a, b, epilogue=torch.tanh), (a, b), grad)
    want_a, want_b = torch.autograd.grad(torch.tanh(a @ b), (a, b), grad)
    assert torch.equal(da.isnan(), want_a.isnan())
    assert torch.equal(db.isnan(), want_b.isnan())
    torch.testing.assert_close((da, db), (want_a, want_b), equal_nan=True)


def test_only_what_is_asked_for_is_made_and_kept() -> None:
    """A frozen weight has no gradient, and what its own gradient would need is not held."""
    x, w = torch.randn(4, 5), torch.randn(5, 6, requires_grad=True)
    d = weft.contract("mk,kn->mn", x, w, epilogue=torch.relu)
    assert d.grad_fn is not None
    held = [each for each in d.grad_fn.saved_tensors if each is not None]
    assert [tuple(each.shape) for each in held] == [(4, 5), (4, 6)], "x and D: relu's derivative is read off D"
    d.sum().backward()
    assert w.grad is not None
    assert x.grad is None
    frozen = weft.contract("mk,kn->mn", w.detach().T, w, a_fn=torch.sin)
    frozen.sum().backward()


def test_sums_are_kept_or_made_again_as_costs_less() -> None:
    """A long sum is kept, a short one made again; and so is one that may not be kept."""
    kept, again = "the sums, 4.19 MB in float32", "nothing; the sums are made again"
    gelu = torch.nn.functional.gelu
    for k, limit, words in ((200, None, kept), (5, None, again), (200, 4_000_000, again)):
        x, w = torch.randn(1024, k, requires_grad=True), torch.randn(k, 1024, requires_grad=True)
        plan = weft.plan("mk,kn->mn", x, w, epilogue=gelu, workspace_limit=limit)
        assert words in plan.explain()
        expected = torch.autograd.grad(gelu(x @ w).sum(), (x, w))
        torch.testing.assert_close(torch.autograd.grad(plan(x, w).sum(), (x, w)), expected, rtol=1e-4, atol=1e-3)


def test_one_operand_reduced_by_log_has_the_gradient_of_logsumexp() -> None:
    """Also by an algebra that is like it, whose `vjp` is of pairs."""
    soft = weft.Algebra(
        torch.add, torch.logaddexp, "lowest", "soft", vjp=lambda x, y, s, g: (g * torch.exp(x + y - s),) * 2
    )
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(x.logsumexp(1).square().sum(), x)
    for algebra in ("log", soft):
        found = weft.einsum("ij->i", x, algebra=algebra)
        torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x)[0], expected)
    assert torch.autograd.gradgradcheck(lambda x: weft.einsum("ij->i", x, algebra="log"), (x,))
    absent = torch.full((2, 3), -torch.inf, requires_grad=True)
    assert not torch.autograd.grad(weft.einsum("ij->i", absent, algebra="log").sum(), absent)[0].any()
    odd = weft.Algebra(
        torch.mul, lambda p, q: p + q + p * q, 0, "odd", vjp=lambda x, y, s, g: (g * y, g * x)
    )
    with pytest.raises(weft.UnsupportedError, match="the algebra odd has no derivative"):
        weft.einsum("ij->i", x, algebra=odd)
