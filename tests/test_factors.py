"""`alpha` and `beta` of every call: 0 reads nothing, a tensor is a factor, and `beta` without C adds to `out`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from support import Backend

EQUATION = "ij,jk->ik"
NAN = float("nan")
EYE = torch.eye(3, dtype=torch.float64)
ZEROS: dict[str, Any] = {
    "int": 0, "float": 0.0, "tensor": torch.tensor(0.0), "double": torch.tensor(0.0, dtype=torch.float64),
}  # fmt: skip


def pair(on: Backend) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a = torch.arange(12.0, dtype=torch.float64, device=on.device).reshape(3, 4)
    return a, a.T.contiguous(), a @ a.T


def planned(equation: str, a: torch.Tensor, b: torch.Tensor, backend: str, **call: Any) -> Any:
    return weft.plan(equation, a, b, backend=backend)(a, b, **call)


CALLS: dict[str, Callable[..., Any]] = {
    "contract": lambda a, b, backend, **call: weft.contract(EQUATION, a, b, backend=backend, **call),
    "plan": lambda a, b, backend, **call: planned(EQUATION, a, b, backend, **call),
    "einsum": lambda a, b, backend, **call: weft.einsum(EQUATION, a, b, backend=backend, **call),
    "einsum of three": lambda a, b, backend, **call: weft.einsum(
        "ij,jk,kl->il", a, b, EYE.to(a.device), backend=backend, **call
    ),
    "matmul": lambda a, b, backend, **call: weft.matmul(a, b, backend=backend, **call),
    "tensordot": lambda a, b, backend, **call: weft.tensordot(a, b, 1, backend=backend, **call),
    "reference": lambda a, b, backend, **call: weft.reference.contract(EQUATION, a, b, **call),
}


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("call", [name for name in CALLS if name != "reference"])
class TestZero:
    def test_beta_does_not_read_c(self, call: str, zero: str, quick_backend: Backend) -> None:
        a, b, product = pair(quick_backend)
        c = torch.full_like(product, NAN)
        assert torch.equal(CALLS[call](a, b, quick_backend.name, c=c, beta=ZEROS[zero]), product)

    def test_alpha_does_not_read_a_and_b(self, call: str, zero: str, quick_backend: Backend) -> None:
        a, b, product = pair(quick_backend)
        a = torch.full_like(a, NAN)
        for _ in range(2):  # the second call is a known one
            assert torch.equal(CALLS[call](a, b, quick_backend.name, alpha=ZEROS[zero]), torch.zeros_like(product))
            found = CALLS[call](a, b, quick_backend.name, alpha=ZEROS[zero], c=product, beta=2.0)
            assert torch.equal(found, 2 * product)


def test_alpha_of_zero_in_every_backend(backend: Backend) -> None:
    """Functions and their operands see a sum of nothing, in every type."""
    for dtype in (torch.float32, torch.float16, torch.complex64):
        a = torch.full((2, 3), NAN, dtype=dtype, device=backend.device)
        bias = torch.tensor([1.0, -1.0, 2.0, 3.0], dtype=dtype, device=backend.device)
        found = weft.contract(
            "mk,nk->mn", a, a.new_ones(4, 3), alpha=0, a_fn=lambda v: v * 2, epilogue=lambda v, bias: v + bias,
            operands={"bias": ("n", bias)}, backend=backend.name,
        )  # fmt: skip
        assert torch.equal(found, bias.expand(2, 4))
    whole = torch.ones(2, 3, dtype=torch.int64, device=backend.device)
    assert not weft.contract("mk,nk->mn", whole, whole, alpha=0, backend=backend.name).any()


def test_alpha_of_zero_validated_bounded_and_refused() -> None:
    a, b, product = pair(Backend("cpu", "cpu"))
    a = torch.full_like(a, NAN)
    assert not weft.contract(EQUATION, a, b, alpha=0, validate=True).any()
    assert weft.error_bound(EQUATION, a, b, alpha=0).max() < 1e-300
    assert not weft.reference.contract(EQUATION, a, b, alpha=0).any()
    assert not weft.transpose_(torch.full((3, 3), NAN), alpha=0).any()
    with pytest.raises(weft.ShapeError, match="out has shape"):
        weft.contract(EQUATION, a, b, alpha=0, out=torch.empty(3, 4, dtype=torch.float64))
    out = torch.empty_like(product)
    assert weft.plan(EQUATION, a, b)(a, b, alpha=0, out=out) is out
    assert not out.any()


def test_gradients_of_zero() -> None:
    """Nothing that is not read has a gradient that is NaN."""
    a, b, product = pair(Backend("cpu", "cpu"))
    a = torch.full_like(a, NAN).requires_grad_()
    b, c = b.requires_grad_(), product.clone().requires_grad_()
    weft.contract(EQUATION, a, b, c=c, alpha=0.0, beta=3.0, epilogue=torch.sin).sum().backward()
    assert not a.grad.any()  # type: ignore[union-attr]
    assert not b.grad.any()  # type: ignore[union-attr]
    assert torch.allclose(c.grad, 3 * torch.cos(3 * product))  # type: ignore[arg-type]


@pytest.mark.parametrize("out_given", [False, True])
def test_factors_of_a_plan_as_tensors(out_given: bool, quick_backend: Backend) -> None:
    a, b, product = pair(quick_backend)
    out = torch.empty_like(product) if out_given else None
    plan = weft.plan(EQUATION, a, b, epilogue=torch.relu, backend=quick_backend.name)
    factors = {"alpha": torch.tensor(0.5, device=a.device), "beta": torch.tensor(-2.0, device=a.device)}
    found = plan(a, b, c=product, out=out, **factors)
    assert torch.allclose(found, torch.relu(0.5 * product - 2 * product))
    assert out is None or found is out


def test_gradients_of_a_plans_factors() -> None:
    a, b, product = pair(Backend("cpu", "cpu"))
    alpha, beta = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (2.0, 0.0))
    plan = weft.plan(
        EQUATION, a, b, epilogue=weft.functions.bias, operands={"bias": ("k", torch.ones(3, dtype=torch.float64))}
    )
    plan(a, b, c=product, alpha=alpha, beta=beta, operands={"bias": EYE[0]}).sum().backward()
    assert torch.equal(alpha.grad, product.sum())  # type: ignore[arg-type]
    assert torch.equal(beta.grad, product.sum())  # type: ignore[arg-type]
    with pytest.raises(weft.ShapeError, match="alpha has shape"):
        plan(a, b, alpha=torch.ones(2), operands={"bias": EYE[0]})


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.0, 2, torch.tensor(0.5)], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_beta_without_c_adds_to_out(call: str, beta: Any, quick_backend: Backend) -> None:
    a, b, product = pair(quick_backend)
    for _ in range(2):  # the second call is a known one
        out = torch.full_like(product, 10.0)
        found = CALLS[call](a, b, quick_backend.name, alpha=2.0, beta=beta, out=out)
        assert found is out
        assert torch.equal(out, 2 * product + float(beta) * 10)
        CALLS[call](a, b, quick_backend.name, alpha=2.0, out=out)  # without beta it is written
        assert torch.equal(out, 2 * product)


def test_beta_without_c_elsewhere() -> None:
    a, _, product = pair(Backend("cpu", "cpu"))
    out = torch.full((4, 3), 10.0, dtype=torch.float64)
    assert torch.equal(weft.permute(a, "ij->ji", beta=2.0, out=out), a.T + 20)
    out.fill_(10)
    assert torch.equal(weft.plan_permute(a, "ij->ji")(a, beta=1.0, out=out), a.T + 10)
    assert torch.equal(weft.plan_permute(a, "ij->ji")(a, out=out), a.T)
    out = torch.full_like(product, 10.0)
    assert torch.equal(weft.inner(a, a, beta=1.0, out=out), product + 10)
    assert torch.equal(weft.einsum("ij->i", a, c=torch.ones(3, dtype=torch.float64), beta=3.0), a.sum(1) + 3)
    total = torch.tensor(10.0, dtype=torch.float64)
    assert weft.trace(product, beta=1.0, out=total) == product.trace() + 10
    largest = torch.full_like(product, 9.0)
    weft.contract(EQUATION, a, a.T, algebra="max_plus", beta=1.0, out=largest)
    assert torch.equal(largest, (a[:, None] + a[None]).amax(-1).clamp(min=9))


@pytest.mark.parametrize("call", [name for name in CALLS if name != "reference"])
def test_beta_with_nothing_to_multiply(call: str) -> None:
    a, b, product = pair(Backend("cpu", "cpu"))
    for beta in (1.0, 0.0):  # the error is that of a known call
        assert torch.equal(CALLS[call](a, b, "cpu", beta=beta), product)
        with pytest.raises(weft.ShapeError, match=r"beta=0.5 has no c to multiply: pass c, or c=out"):
            CALLS[call](a, b, "cpu", beta=0.5)


def test_beta_of_several_results() -> None:
    a, b, product = pair(Backend("cpu", "cpu"))
    out = (torch.zeros_like(product), torch.zeros_like(product))
    with pytest.raises(weft.ArgumentError, match="out is several tensors"):
        weft.contract(EQUATION, a, b, epilogue=lambda v: (v, v), beta=1.0, out=out)


def test_compiled() -> None:
    a, b, product = pair(Backend("cpu", "cpu"))

    def step(out: torch.Tensor) -> torch.Tensor:
        weft.contract(EQUATION, a, b, beta=1.0, out=out)
        return weft.contract(EQUATION, a * NAN, b, alpha=0.0) + out

    out = torch.full_like(product, 10.0)
    assert torch.equal(torch.compile(step, backend="eager")(out), product + 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_a_plan_without_workspace_makes_sums_of_nothing_in_place(dtype: torch.dtype) -> None:
    a, b = torch.full((3, 4), NAN).to(dtype), torch.full((4, 5), NAN).to(dtype)
    out = torch.full((5, 3), NAN).to(dtype).T
    plan, nothing = weft.plan("mk,kn->mn", a, b, workspace_limit=0), torch.zeros(3, 5, dtype=dtype)
    assert torch.equal(plan(a, b, alpha=0), nothing)
    assert torch.equal(plan(a, b, alpha=0, out=out), nothing)
    assert torch.equal(weft.contract("mk,kn->mn", a[:, :0], b[:0], workspace_limit=0, out=out.fill_(NAN)), nothing)


@pytest.mark.parametrize("planned", [False, True])
def test_factors_of_a_permutation_as_tensors(planned: bool, quick_backend: Backend) -> None:
    a, _, _ = pair(quick_backend)
    (m, k), name = a.shape, quick_backend.name
    c, out = torch.ones(k, m, dtype=a.dtype, device=a.device), torch.full((k, m), NAN, dtype=a.dtype, device=a.device)
    plan = weft.plan_permute(a, "ij->ji", fn=torch.square, backend=name)

    def call(x: torch.Tensor, **given: Any) -> torch.Tensor:
        found = plan(x, **given) if planned else weft.permute(x, "ij->ji", fn=torch.square, backend=name, **given)
        assert isinstance(found, torch.Tensor)
        return found

    for alpha, beta in ((0.5, -2.0), (0.0, 3.0), (1.0, 0.0)):
        factors = {"alpha": torch.tensor(alpha, device=a.device), "beta": torch.tensor(beta, device=a.device)}
        expected = alpha * a.square().T + beta
        assert torch.allclose(call(a, c=c, **factors), expected)
        assert call(a, c=c, out=out, **factors) is out
        assert torch.allclose(out, expected)
    assert not call(torch.full_like(a, NAN), alpha=torch.tensor(0.0, device=a.device)).any()
    with pytest.raises(weft.ShapeError, match="alpha has shape"):
        call(a, alpha=torch.ones(2, device=a.device))


def test_gradients_of_a_permutations_factors() -> None:
    a = pair(Backend("cpu", "cpu"))[0].clone().requires_grad_()
    alpha, beta = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (2.0, 0.5))
    c = torch.rand(a.shape[::-1], dtype=torch.float64, requires_grad=True)
    given = (a, c, alpha, beta)
    plan = weft.plan_permute(a.detach(), "ij->ji", fn=torch.sin)
    expected = torch.autograd.grad((alpha * a.sin().T + beta * c).square().sum(), given)
    for found in (
        weft.permute(a, "ij->ji", fn=torch.sin, c=c, alpha=alpha, beta=beta), plan(a, c=c, alpha=alpha, beta=beta),
    ):  # fmt: skip
        torch.testing.assert_close(torch.autograd.grad(found.square().sum(), given), expected)
    several = torch.tensor([2.0, 0.0], dtype=torch.float64)
    found = torch.func.vmap(lambda factor: weft.permute(a.detach(), "ij->ji", alpha=factor))(several)
    torch.testing.assert_close(found, several[:, None, None] * a.detach().T)
