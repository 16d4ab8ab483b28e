"""Intermediates of float16 that leave its range, where operands and results are within."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from support import Backend

EQUATION = "ij,jk,kl->il"


def operands(dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    parts = [torch.rand(shape, generator=made) + 0.5 for shape in ((5, 8), (8, 6), (6, 7))]
    return [(part * size).to(dtype) for part, size in zip(parts, (100, 1000, 1e-4), strict=True)]


def expected(given: list[torch.Tensor]) -> torch.Tensor:
    return torch.einsum(EQUATION, *(each.double() for each in given))


CALLS: dict[str, Callable[..., Any]] = {
    "einsum": lambda *given: weft.einsum(EQUATION, *given),
    "reference": lambda *given: weft.einsum(EQUATION, *given, backend="reference"),
    "network": lambda *given: weft.network(EQUATION, *given)(*given),
    "sliced": lambda *given: weft.network(EQUATION, *given, slices="j")(*given),
    "with a limit": lambda *given: weft.network(EQUATION, *given, memory_limit=600)(*given),
    "constants": lambda *given: weft.network(EQUATION, *given, constants=(0, 1))(given[2]),
    "reuse": lambda *given: weft.network(EQUATION, *given, reuse=True)(*given),
    "a function": lambda *given: weft.network(EQUATION, *given, functions={3: torch.relu})(*given),
    "an epilogue": lambda *given: weft.einsum(EQUATION, *given, epilogue=torch.relu),
    "two results": lambda *given: weft.einsum(EQUATION, *given, epilogue=lambda v: (v, torch.relu(v)))[0],
    "C": lambda *given: weft.einsum(EQUATION, *given, c=torch.zeros(5, 7, dtype=torch.float16)),
    "out": lambda *given: weft.einsum(EQUATION, *given, out=torch.empty(5, 7, dtype=torch.float16)),
    "compiled": lambda *given: torch.compile(lambda *each: weft.einsum(EQUATION, *each), backend="eager")(*given),
    "chain": lambda *given: weft.chain("ij,bjk,kl->bil", given[0], given[1][None], given[2])[0],
    "operator_sum": lambda *given: weft.operator_sum(
        [(None, given[0][:5, :5], given[2].T[:6])], given[1][None, :5]
    )[0],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_results_are_within_range(name: str) -> None:
    given = operands()
    wanted = expected(given)
    if name == "operator_sum":
        wanted = given[0][:5, :5].double() @ given[1][:5].double() @ given[2][:, :6].double()
    for _ in range(2):
        found = CALLS[name](*given)
        assert found.dtype == torch.float16
        torch.testing.assert_close(found.double(), wanted, rtol=2e-3, atol=0)


@pytest.mark.parametrize("name", ["einsum", "network", "with a limit", "an epilogue", "C", "chain"])
def test_gradients_are_within_range(name: str) -> None:
    given = [each.requires_grad_() for each in operands()]
    plain = [each.detach().double().requires_grad_() for each in given]
    weight = torch.full((5, 7), 1e-3)  # by which gradients of the intermediates are less than a half holds
    found = torch.autograd.grad(CALLS[name](*given), given, weight.half())
    wanted = torch.autograd.grad(expected(plain), plain, weight.half().double())
    assert [each.dtype for each in found] == [torch.float16] * 3
    torch.testing.assert_close([each.double() for each in found], list(wanted), rtol=4e-3, atol=0)


def test_powers_of_two_are_taken_off() -> None:
    given = operands()
    mantissa, exponent = weft.network(EQUATION, *given, strip_exponent=True)(*given)
    torch.testing.assert_close(mantissa.double() * 10**exponent, expected(given), rtol=2e-3, atol=0)


def test_it_is_told() -> None:
    told = "intermediates of float16 are kept in float32, whose range they do not leave, and multiplied as tf32"
    given = operands()
    assert told in weft.network(EQUATION, *given).explain()
    assert "intermediates of float16" not in weft.network(EQUATION, *operands(torch.float32)).explain()
    assert [step["result_bytes"] for step in weft.network(EQUATION, *given).report()["steps"]][-1] == 2 * 5 * 7


def test_results_are_within_their_bound() -> None:
    given = operands()
    net = weft.network(EQUATION, *given)
    assert ((net(*given).double() - expected(given)).abs() <= net.error_bound(*given)).all()


@pytest.mark.parametrize("precision", [None, "ieee", torch.float32])
def test_mixed_operands(precision: Any) -> None:
    a, b, c = operands()
    found = weft.einsum(EQUATION, a, b, c.float(), promote=True, precision=precision)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected([a, b, c]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("b_fn", [None, torch.sin])
def test_gradients_of_a_longer_result_and_of_shortened_products(b_fn: Any) -> None:
    made = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=made) for shape in ((5, 8), (8, 6)))
    for first, keywords in ((a.half(), {}), (a, {"promote": True, "precision": "tf32", "out_dtype": torch.float16})):
        pair = [first.clone().requires_grad_(), b.half().requires_grad_()]
        found = weft.contract("mk,kn->mn", *pair, b_fn=b_fn, **{"out_dtype": torch.float32, **keywords})
        grads = torch.autograd.grad(found.sum(), pair)
        plain = [each.detach().double().requires_grad_() for each in pair]
        wanted = torch.autograd.grad((plain[0] @ (b_fn(plain[1]) if b_fn else plain[1])).sum(), plain)
        torch.testing.assert_close([each.double() for each in grads], list(wanted), rtol=1e-2, atol=1e-2)


def test_every_backend(backend: Backend) -> None:
    given = [each.to(backend.device) for each in operands()]
    found = weft.einsum(EQUATION, *given, backend=backend.name)
    torch.testing.assert_close(found.double(), expected(given), rtol=2e-3, atol=0)
