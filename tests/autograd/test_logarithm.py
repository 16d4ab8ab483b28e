"""Gradients of the algebra `log` at every scale of values, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import weft

SCALES = (1e-8, 1.0, 30.0, 1e3, 1e5, 1e7, 1e9)


def operands(scale: float, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = (12, 70), (70, 9), (12, 9)
    a, b, grad = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [(a * scale).to(dtype), (b * scale).to(dtype), grad.to(dtype)]


def exact(a: Tensor, b: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    a, b = (each.double().requires_grad_() for each in (a, b))
    pairs = a[:, :, None] + b
    return torch.autograd.grad((torch.softmax(pairs.detach(), 1) * pairs).sum(1), (a, b), grad.double())


def bound(scale: float, dtype: torch.dtype) -> float:
    """What docs/gradients.md states, of values of up to four times the scale and a dozen gradients added up."""
    wide = 4 * 2.0**-52 * 3 * 4 * scale
    return 12 * 4 * (torch.finfo(dtype).eps + wide)


@pytest.mark.parametrize("specialize", ["auto", "now"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", SCALES)
def test_at_every_scale(scale: float, dtype: torch.dtype, specialize: str) -> None:
    a, b, grad = operands(scale, dtype)
    right = exact(a, b, grad)
    for _ in range(12):
        x, y = (each.clone().requires_grad_() for each in (a, b))
        d = weft.contract("mk,kn->mn", x, y, algebra="log", specialize=specialize)
        for found, wanted in zip(torch.autograd.grad(d, (x, y), grad), right, strict=True):
            assert (found - wanted).abs().max() <= bound(scale, dtype)


@pytest.mark.parametrize("temperature", [1.0, 1e-3, 1e-6, 1e-8])
def test_marginals_of_a_chain_sum_to_one(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, moves = (torch.rand(*shape, generator=generator) / temperature for shape in ((4, 80), (80, 80)))
    for _ in range(3):
        given = scores.clone().requires_grad_()
        state = given[0]
        for own in given[1:]:
            state = weft.contract("i,ij->j", state, moves, algebra="log") + own
        (marginals,) = torch.autograd.grad(state.double().logsumexp(0), given)
        assert (marginals.double().sum(1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_second_derivatives_and_tangents(scale: float) -> None:
    """Of float32 values that are exact in float64: differences of the weights decide, and no digit of the values."""

    def marginals(dtype: torch.dtype, log: Any) -> list[Tensor]:
        generator = torch.Generator().manual_seed(2)
        a, b, u = (torch.randn(*s, generator=generator).to(dtype) for s in ((5, 7), (7, 4), (5, 7)))
        a, b = (each.add_(round(scale)).requires_grad_() for each in (a, b))
        (first,) = torch.autograd.grad(log(a, b).sum(), a, create_graph=True)
        second = torch.autograd.grad((first * u).sum(), (a, b))
        (_, tangent) = torch.func.jvp(lambda x: log(x, b.detach()), (a.detach(),), (u,))
        return [first.detach(), *second, tangent]

    wanted = marginals(torch.float32, lambda a, b: (a.double()[:, :, None] + b.double()).logsumexp(1))
    found = marginals(torch.float32, lambda a, b: weft.contract("mk,kn->mn", a, b, algebra="log"))
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other.double()).abs().max() < 2e-5


def test_equal_terms_share_a_large_sum() -> None:
    """Where ln 2 is less than the rounding of the sum, two equal terms still have a half each."""
    for shape in ((2, 2), (40, 64)):
        a = torch.full(shape, 1e9).requires_grad_()
        b = torch.full((shape[1], 3), -3e8)
        (grad,) = torch.autograd.grad(weft.contract("mk,kn->mn", a, b, algebra="log").sum(), a)
        assert torch.allclose(grad, torch.full(shape, 3 / shape[1]))
