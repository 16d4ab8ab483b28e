"""Calls of a cascade's plan on other views, and within other surroundings, than those it was made of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import weft
from weft.cascades.replay import layouts_of

EQUATION = "ik,jk->ij, ij,je->ie"


def _tensors() -> list[Tensor]:
    return [torch.randn(33, 16), torch.randn(70, 16), torch.randn(70, 5)]


def _expected(a: Tensor, b: Tensor, c: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(a.double() @ b.double().mT + bias.double(), 1) @ c.double()


def _biased(s: Tensor, bias: Tensor) -> Tensor:
    return weft.softmax(s + bias, "j")


@pytest.mark.parametrize("specialize", ["now", "never", "auto"])
def test_operands_may_be_negative_views(specialize: str) -> None:
    row = torch.randn(70)
    plan = weft.plan_cascade(
        EQUATION, *_tensors(), between=_biased, operands={"bias": ("j", row)}, specialize=specialize
    )
    for _ in range(3):
        tensors, bias = _tensors(), torch._neg_view(torch.randn(70))
        assert bias.is_neg()
        found = plan(*tensors, operands={"bias": bias})
        torch.testing.assert_close(found.double(), _expected(*tensors, bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("specialize", ["now", "never"])
def test_autocast_casts_nothing_between_the_contractions_of_a_plan(specialize: str) -> None:
    tensors, bias = _tensors(), torch.randn(70)
    plan = weft.plan_cascade(
        EQUATION, *tensors, between=_biased, operands={"bias": ("j", bias)}, specialize=specialize
    )
    for _ in range(2):
        wide = [each.double().requires_grad_() for each in tensors]
        given = [each.clone().requires_grad_() for each in tensors]
        with torch.autocast("cpu", torch.bfloat16):
            found = plan(*given, operands={"bias": bias})
            grads = torch.autograd.grad(found.sum(), given)
        expected = _expected(*wide, bias)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        wanted = torch.autograd.grad(expected.sum(), wide)
        torch.testing.assert_close([each.double() for each in grads], list(wanted), rtol=1e-4, atol=1e-4)


class OnADevice(Tensor):
    """A tensor that says it is on a GPU, for what only looks at layouts."""


def _layouts(names: Sequence[str], operands: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr("weft.cascades.replay._PLAIN", (OnADevice,))
    monkeypatch.setattr(OnADevice, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    return layouts_of([], {name: each.as_subclass(OnADevice) for name, each in operands.items()}, names)


def test_layouts_of_operands_are_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = torch.zeros(8, 8), torch.zeros(8, 8).mT
    first = _layouts(("g", "h"), {"g": rows, "h": columns}, monkeypatch)
    assert first == _layouts(("g", "h"), {"h": columns, "g": rows}, monkeypatch)
    assert first != _layouts(("g", "h"), {"h": rows, "g": columns}, monkeypatch)


SCALE = [1.0]


def _scaled(s: Tensor) -> Tensor:
    return weft.softmax(s * SCALE[0], "j")


@pytest.mark.parametrize("specialize", ["now", "never"])
def test_plans_follow_their_functions(specialize: str) -> None:
    SCALE[0] = 1.0
    plan = weft.plan_cascade(EQUATION, *_tensors(), between=_scaled, specialize=specialize)
    other = weft.plan_cascade(EQUATION, *_tensors(), between=lambda s: weft.softmax(s * 1.0, "j"))
    for scale in (1.0, 2.0, 2.0, -1.0, 1.0):
        SCALE[0] = scale
        a, b, c = (each.requires_grad_() for each in _tensors())
        for found, factor in ((plan(a, b, c), scale), (other(a, b, c), 1.0)):
            wide = [each.detach().double().requires_grad_() for each in (a, b, c)]
            expected = torch.softmax(wide[0] @ wide[1].mT * factor, 1) @ wide[2]
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
            grads = torch.autograd.grad(found.square().sum(), (a, b, c))
            wanted = torch.autograd.grad(expected.square().sum(), wide)
            torch.testing.assert_close([each.double() for each in grads], list(wanted), rtol=1e-4, atol=1e-4)
