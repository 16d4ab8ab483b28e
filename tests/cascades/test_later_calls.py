"""Calls of a cascade's plan on other views, and within other surroundings, than those it was made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import weft
from weft.planner import validity

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


@pytest.mark.parametrize("few", [True, False], ids=["at once", "by blocks"])
def test_operands_are_told_by_name(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order a later call has them; and calls that differ in one thing alone are told apart."""
    if not few:
        monkeypatch.setattr("weft.cascades.plan.FEW", 0)
        validity.outdate()
    a, b = torch.randn(8, 4), torch.randn(8, 4)
    tensors = {"g": torch.randn(8, 8), "h": torch.randn(8, 8).mT}

    def between(s: Tensor, g: Tensor, h: Tensor) -> Tensor:
        return weft.sum(s * g - h, "j")

    named = {name: ("ij", each) for name, each in tensors.items()}
    plan = weft.plan_cascade("ik,jk->ij", a, b, between=between, operands=named)
    for _ in range(3):
        for names in (("g", "h"), ("h", "g")):
            for alpha in (1.0, -2.0):
                expected = (alpha * (a @ b.T) * tensors["g"] - tensors["h"]).sum(1)
                found = weft.cascade(
                    "ik,jk->ij", a, b, between=between, alpha=alpha, operands={name: named[name] for name in names}
                )
                torch.testing.assert_close(found, expected)
            found = plan(a, b, operands={name: tensors[name] for name in names})
            torch.testing.assert_close(found, (a @ b.T * tensors["g"] - tensors["h"]).sum(1))
        a, b = torch.randn(8, 4), torch.randn(8, 4)


def test_known_calls_look_at_what_may_change() -> None:
    """Gradients, autocast, layouts, what torch may round, and forward mode."""
    a, b, c = tensors = _tensors()
    wanted = torch.softmax(a @ b.T, 1) @ c

    def called(*given: Tensor) -> Tensor:
        found: Tensor = weft.cascade(EQUATION, *given, between=lambda s: weft.softmax(s, "j"))
        return found

    for _ in range(3):
        torch.testing.assert_close(called(a, b, c), wanted)
        torch.testing.assert_close(called(a.T.contiguous().T, b, c), wanted)
        leaves = [each.clone().requires_grad_() for each in tensors]
        grads = torch.autograd.grad(called(*leaves).square().sum(), leaves)
        plain = torch.autograd.grad((torch.softmax(leaves[0] @ leaves[1].T, 1) @ leaves[2]).square().sum(), leaves)
        torch.testing.assert_close(grads, plain)
        with torch.no_grad():
            assert not called(*leaves).requires_grad
        with torch.autocast("cpu", torch.bfloat16):
            assert called(a, b, c).dtype == torch.bfloat16
        with pytest.raises(weft.UnsupportedError, match="forward mode"), torch.autograd.forward_ad.dual_level():
            called(torch.autograd.forward_ad.make_dual(a, torch.ones_like(a)), b, c)
        with pytest.raises(weft.ShapeError):
            called(a[:, :3], b, c)
        before = torch.get_float32_matmul_precision()
        try:
            torch.set_float32_matmul_precision("medium")
            torch.testing.assert_close(called(a, b, c), wanted)
        finally:
            torch.set_float32_matmul_precision(before)


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
