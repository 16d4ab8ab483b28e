"""A call that comes a dozen times gives each time what its tensors say, whatever serves it by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

CALLS = 12  # the tenth is the first that is written in torch's operations, where few elements are


@pytest.fixture(autouse=True)
def tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls begin with the library, and change to what is better, as they do for users."""
    monkeypatch.setenv("WEFT_TIERS", "1")


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-4, 5, shape).to(dtype)


def positive(value: torch.Tensor) -> torch.Tensor:
    return value > 0


def scaled(value: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(value * gain) + bias


@pytest.mark.parametrize("names", [("bias", "scale", "gain"), ("gain", "bias", "scale"), ("scale", "gain", "bias")])
def test_operands_come_in_any_order(names: tuple[str, ...]) -> None:
    for _ in range(CALLS):
        a, b, vectors = _numbers(6, 6), _numbers(6, 6), {name: _numbers(6) for name in ("bias", "scale", "gain")}
        given = {name: ("m" if name == "scale" else "n", vectors[name]) for name in names}
        found = weft.contract(
            "mk,kn->mn", a, b, a_fn=lambda value, scale: value * scale, epilogue=scaled, operands=given
        )
        products = (a * vectors["scale"][:, None]).double() @ b.double()
        assert torch.equal(found.double(), scaled(products, vectors["gain"].double(), vectors["bias"].double()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("algebra", ["plus_times", "max_plus", "min_plus"])
def test_functions_of_whole_numbers_and_truth_values(algebra: str, dtype: torch.dtype) -> None:
    reduce: Callable[..., Any] = {"plus_times": torch.sum, "max_plus": torch.amax, "min_plus": torch.amin}[algebra]
    combine = torch.mul if algebra == "plus_times" else torch.add
    for _ in range(CALLS):
        a, b = _numbers(5, 4, dtype=dtype), _numbers(4, 3, dtype=dtype)
        found = weft.contract("mk,kn->nm", a, b, algebra=algebra, a_fn=positive, epilogue=torch.square)
        pairs = combine((a > 0).double()[:, :, None], b.double())
        assert torch.equal(found.double(), reduce(pairs, dim=1).T.square())
        bare = weft.contract("mk,kn->nm", a, b, algebra=algebra)
        assert torch.equal(bare.double(), reduce(combine(a.double()[:, :, None], b.double()), dim=1).T)


def test_functions_of_truth_values_have_no_gradient_and_leave_that_of_the_other() -> None:
    for _ in range(3):
        a, b = _numbers(5, 4), _numbers(4, 3).requires_grad_()
        (grad,) = torch.autograd.grad(weft.contract("mk,kn->mn", a, b, a_fn=positive).sum(), b)
        assert torch.equal(grad, (a > 0).float().sum(0)[:, None].expand(4, 3))
