"""Calls on a CPU that are written in torch's operations promise what all calls do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tuning
import weft

A, B = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)


@pytest.fixture(autouse=True)
def tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library tier nothing is handed over."""
    monkeypatch.setenv("WEFT_TIERS", "1")


def scaled(value: torch.Tensor, scale: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tanh(value * scale) + row, torch.sign(scale)


def _several(a: torch.Tensor, b: torch.Tensor, **how: Any) -> torch.Tensor:
    first, second = weft.contract(
        "mk,kn->nm", a, b, epilogue=scaled, operands={"scale": ("m", a[:, 0])}, indices={"row": "n"}, **how
    )
    return first * second


FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "turned": lambda a, b, **how: weft.contract("mk,kn->nm", a, b, epilogue=torch.exp, **how),
    "operand, coordinate, several results": _several,
    "C of fewer modes": lambda a, b, **how: weft.contract(
        "mk,kn->mn", a, b, c=b[:1].expand(6, 5), c_fn=torch.sin, b_fn=torch.cos, **how
    ),
    "bias": lambda a, b, **how: weft.contract(
        "mk,kn->mn", a, b, epilogue=lambda value, bias: torch.relu(value + bias), operands={"bias": ("n", b[0])}, **how
    ),
    "a result without the value": lambda a, b, **how: weft.contract(
        "mk,kn->mn", a, b, epilogue=lambda value, bias: bias * 2, operands={"bias": ("n", b[0])}, **how
    ),
    "nothing summed": lambda a, b, **how: weft.contract("mk,nl->lm", a, b.T, a_fn=torch.sin, **how),
    "selected": lambda a, b, **how: weft.contract(
        "mk,kn->nm", a, b, algebra="min_plus", a_fn=torch.sin, epilogue=torch.exp, **how
    ),
    "log": lambda a, b, **how: weft.contract("mk,kn->nm", a, b, algebra="log", epilogue=torch.exp, **how),
    "moved": lambda a, b, **how: weft.permute(a, "mk->km", fn=torch.sin, **how) + b[0, 0],
}  # fmt: skip


def differentiated(form: str, **how: Any) -> list[torch.Tensor]:
    """A result, its gradients, and their gradients."""
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    result = FORMS[form](a, b, **how)
    assert result.is_contiguous()
    first = torch.autograd.grad(result.square().sum(), (a, b), create_graph=True, materialize_grads=True)
    second = torch.autograd.grad(sum(each.sin().sum() for each in first), (a, b), materialize_grads=True)
    return [result, *first, *second]


@pytest.mark.parametrize("form", FORMS)
def test_derivatives_are_those_of_weft_s_own_rules(form: str) -> None:
    torch.testing.assert_close(differentiated(form), differentiated(form, specialize="library"))


@pytest.mark.parametrize("form", FORMS)
def test_calls_without_gradients_stay_as_they_are(form: str) -> None:
    for _ in range(12):  # few elements are written so once a call is known to come again
        a, b = torch.randn_like(A), torch.randn_like(B)
        torch.testing.assert_close(FORMS[form](a, b), FORMS[form](a, b, specialize="library"))


#: Functions of which two results, or one and the value, are one memory as torch has them; of real or complex values.
SHARING: dict[str, tuple[Callable[..., tuple[torch.Tensor, ...]], torch.dtype]] = {
    "twice": (lambda value: (value, value), torch.float64),
    "clone": (lambda value: (value, value.clone()), torch.float64),
    "detached": (lambda value: (value.detach(), value, torch.exp(value)), torch.float64),
    "bits": (lambda value: (value, value.view(torch.int64)), torch.float64),
    "a step twice": (lambda value: (lambda found: (found, found.detach(), found))(torch.sin(value)), torch.float64),
    "a real part of real values": (lambda value: (value.real, value.real, value.conj()), torch.float64),
    "parts": (lambda value: (value, value.real, value.imag), torch.complex128),
    "a part": (lambda value: (value.real, value.abs()), torch.complex128),
}


def _whole(shape: torch.Size, kind: torch.dtype) -> torch.Tensor:
    """Numbers whose products have no rounding and no part of 0."""
    return torch.randint(1, 5, shape).to(kind) * (1 + 2j if kind.is_complex else 1)


def _are_their_own(call: Callable[..., Any], a: torch.Tensor, b: torch.Tensor, right: tuple[torch.Tensor, ...]) -> None:
    """Results have their values and strides, and keep them when others are overwritten."""
    results = [each.detach() for each in call(a, b)]
    for at, (found, wanted) in enumerate(zip(results, right, strict=True)):
        assert found.is_contiguous()
        assert not found.is_conj()
        assert not found.is_neg()
        torch.testing.assert_close(found, wanted.resolve_conj())
        found.zero_()
        assert all(bool(each.any()) for each in results[at + 1 :])


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize(
    ("function", "algebra"),
    [(name, each) for name, (_, kind) in SHARING.items() for each in ("sum", "max_plus")[: 2 - kind.is_complex]],
)
def test_every_result_is_memory_of_its_own(function: str, algebra: str, grads: bool) -> None:
    epilogue, kind = SHARING[function]
    how = {} if algebra == "sum" else {"algebra": algebra}
    for _ in range(12):
        a, b = (_whole(each.shape, kind).requires_grad_(grads) for each in (A, B))
        total = (a @ b if algebra == "sum" else (a[:, :, None] + b).amax(1)).mT.contiguous().detach()
        _are_their_own(partial(weft.contract, "mk,kn->nm", epilogue=epilogue, **how), a, b, epilogue(total))


@pytest.mark.parametrize("grads", [False, True])
def test_every_result_of_a_compiled_call_is_memory_of_its_own(grads: bool) -> None:
    epilogue, kind = SHARING["parts"]
    torch._dynamo.reset()
    call = torch.compile(lambda a, b: weft.contract("mk,kn->mn", a, b, epilogue=epilogue), backend="aot_eager")
    for _ in range(12):
        a, b = (_whole(each.shape, kind).requires_grad_(grads) for each in (A, B))
        _are_their_own(call, a, b, epilogue((a @ b).detach()))


def test_results_of_the_reference_are_memory_of_their_own() -> None:
    first, second = weft.reference.contract("mk,kn->mn", A, B, epilogue=lambda value: (value, value))
    first.zero_()
    torch.testing.assert_close(second, A @ B)


@pytest.mark.parametrize("rows", [5, 40, 200])
def test_of_what_is_absent_log_has_no_gradient(rows: int) -> None:
    """Rows of minus infinity alone, and pairs so far apart that products of exponentials vanish."""
    a, b = torch.randn(rows, 30), torch.randn(30, 7)
    a[0], a[2, 3:], b[:, 1] = -torch.inf, -torch.inf, -torch.inf
    a[4], b[:, 2] = torch.linspace(-300, 300, 30), torch.linspace(300, -300, 30)
    x, y = a.double().requires_grad_(), b.double().requires_grad_()
    pairs = x[:, :, None] + y
    there = ~torch.isneginf(pairs).all(1, keepdim=True)
    expected = torch.where(there, torch.where(there, pairs, 0).logsumexp(1, keepdim=True), -torch.inf)[:, 0]
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, y), grad)
    for kind in (torch.float64, torch.float32):
        given = [each.to(kind).requires_grad_() for each in (a, b)]
        found = weft.contract("mk,kn->mn", *given, algebra="log")
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        grads = torch.autograd.grad(found, given, grad.to(kind))
        torch.testing.assert_close([each.double() for each in grads], list(wanted), rtol=1e-3, atol=1e-4)


INDEPENDENT: dict[str, Callable[..., Any]] = {
    "of A and B": lambda a, b, c, how: weft.contract("mk,kn->mn", a, b, epilogue=torch.ones_like, **how),
    "of A": lambda a, b, c, how: weft.contract("mk,kn->mn", a, b, a_fn=lambda value: value > 0, **how),
    "of C": lambda a, b, c, how: weft.contract("mk,kn->mn", a, b, c=c, c_fn=torch.zeros_like, **how),
    "of an operand that is compared": lambda a, b, c, how: weft.contract(
        "mk,kn->mn", a, b, epilogue=lambda value, c: torch.where(value > c, value, 0), operands={"c": ("mn", c)}, **how
    ),
    "of others, each result": lambda a, b, c, how: weft.contract(
        "mk,kn->mn", a, b, epilogue=lambda value, c: (value * 2, c * 2, value > c), operands={"c": ("mn", c)}, **how
    ),
    "of A, in an algebra": lambda a, b, c, how: weft.contract(
        "mk,kn->mn", a, b, algebra="log", a_fn=torch.zeros_like, **how
    ),
    "of X": lambda a, b, c, how: weft.permute(a, "mk->km", fn=torch.ones_like, **how),
}  # fmt: skip


@pytest.mark.parametrize("form", INDEPENDENT)
def test_gradients_of_what_a_result_does_not_depend_on_are_zeros(form: str) -> None:
    """As of every operation of torch whose derivative is zero, whichever way a call takes."""
    found = []
    for how in ({}, {}, {"specialize": "library"}):
        given = [each.clone().requires_grad_() for each in (A, B, A @ B)]
        results = INDEPENDENT[form](*given, how)
        results = [each for each in (results if isinstance(results, tuple) else (results,)) if each.dtype is A.dtype]
        found.append([torch.autograd.grad(each.sum(), given, allow_unused=True, retain_graph=True) for each in results])
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])
    assert any(grad is not None and not grad.any() for grads in found[0] for grad in grads)


@pytest.fixture
def medium() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("medium")
def test_products_are_of_float32_whatever_torch_may_round() -> None:
    a, b = torch.randn(64, 512), torch.randn(64, 512, requires_grad=True)
    layer = weft.nn.Linear(512, 64, bias=False)
    for found, weight in ((weft.contract("mk,nk->mn", a, b), b), (layer(a), layer.weight)):
        (grad,) = torch.autograd.grad(found.sum(), weight)
        torch.testing.assert_close(found.double(), a.double() @ weight.double().T, rtol=1e-5, atol=2e-4)
        torch.testing.assert_close(grad.double(), a.double().sum(0).expand(64, 512), rtol=1e-5, atol=1e-4)


def test_autocast_has_its_types() -> None:
    layer, x = weft.nn.Linear(16, 8, activation="relu"), torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert weft.contract("mk,nk->mn", x, layer.weight).dtype == torch.bfloat16


def test_a_schedule_that_was_tuned_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tuning.begin(monkeypatch, tmp_path)
    a, b = torch.randn(16, 24, requires_grad=True), torch.randn(24, 8)

    def product() -> torch.Tensor:
        return weft.contract("ik,kj->ij", a, b)

    before = product()
    assert type(before.grad_fn).__name__ == "MmBackward0"
    weft.nn.tune(product)
    after = product()
    assert type(after.grad_fn).__name__ == "DifferentiatedBackward"
    torch.testing.assert_close(after, before)
