"""Gradients of a cascade's gradients, and its transforms by torch.func."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from cascades.plain import BY_NAME, EQUATION, F64, auxiliary, bias_of, operands, plainly, results, softmax


@pytest.mark.parametrize("name", ["causal", "a loss", "standardized"])
def test_gradients_have_gradients(name: str) -> None:
    each = BY_NAME[name]
    inputs = [tensor.requires_grad_() for tensor in operands(h=2, q=5, k=6)]
    bias = bias_of(each, 5)
    inputs += [] if bias is None else [bias.requires_grad_()]

    def second(found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        total = sum(value.sin().sum() for value in found if value.requires_grad)
        firsts = torch.autograd.grad(total, inputs, create_graph=True)
        return torch.autograd.grad(sum(first.square().sum() for first in firsts), inputs)

    found = second(results(weft.cascade(EQUATION, *inputs[:3], between=each.function, **auxiliary(each, bias))))
    torch.testing.assert_close(found, second(plainly(each, *inputs[:3], bias, 1.0)), rtol=1e-8, atol=1e-10)


def windowed(s: Tensor, j: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    s = torch.where(j < 5, s + bias, -math.inf)
    return weft.softmax(s, "k"), weft.logsumexp(s, "k"), weft.argmax(s, "k")


@pytest.mark.parametrize("mapped", [(0, 0, 0, 0), (0, None, 1, None), (None, None, 0, None), (None, None, None, 0)])
def test_vmap_adds_a_mode(mapped: tuple[int | None, ...]) -> None:
    draw = torch.Generator().manual_seed(3)
    shapes = ((4, 3), (6, 3), (6, 2), (4,))
    tensors = [
        torch.randn(shape if at is None else (*shape[:at], 5, *shape[at:]), dtype=F64, generator=draw)
        for shape, at in zip(shapes, mapped, strict=True)
    ]

    def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return weft.cascade("qd,kd->qk, qk,ke->qe", q, k, v, between=windowed, indices={"j": "k"},
                            operands={"bias": ("q", bias)})  # fmt: skip

    def loss(*given: Tensor) -> Tensor:
        d, rows, _ = attention(*given)
        return d.square().sum() + rows.sin().sum()

    one_by_one = [
        [each if at is None else each.select(at, i) for each, at in zip(tensors, mapped, strict=True)] for i in range(5)
    ]
    found = torch.func.vmap(attention, mapped)(*tensors)
    expected = [torch.stack(each) for each in zip(*(attention(*each) for each in one_by_one), strict=True)]
    torch.testing.assert_close(found, tuple(expected))
    found = torch.func.vmap(torch.func.grad(loss, (0, 1, 2, 3)), mapped)(*tensors)
    for at in range(4):
        exact = [torch.autograd.grad(loss(*(x.requires_grad_() for x in each)), each)[at] for each in
                 ([x.clone() for x in each] for each in one_by_one)]  # fmt: skip
        torch.testing.assert_close(found[at], torch.stack(exact))


def test_second_gradients_of_torch_func_are_refused() -> None:
    q, k, v = (tensor[0] for tensor in operands())

    def loss(q: Tensor) -> Tensor:
        return weft.cascade("qd,kd->qk, qk,ke->qe", q, k, v, between=softmax).square().sum()

    with pytest.raises(weft.UnsupportedError, match=r"take them by torch\.autograd with create_graph"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(q)
    with pytest.raises(weft.UnsupportedError, match="a cascade has no forward mode"):
        torch.func.jvp(loss, (q,), (q,))


def test_a_factor_with_a_gradient_is_refused() -> None:
    q, k, v = (tensor[0] for tensor in operands())
    factor = torch.tensor(0.5, dtype=F64, requires_grad=True)

    def call(factor: Tensor) -> Tensor:
        return weft.cascade("qd,kd->qk, qk,ke->qe", q, k, v, between=softmax, alpha=factor)

    with pytest.raises(weft.UnsupportedError, match="alpha requires a gradient"):
        call(factor)
    with pytest.raises(weft.UnsupportedError, match="alpha is inside a transform"):
        torch.func.vmap(call)(factor.detach()[None])
    assert torch.equal(call(factor.detach()), weft.cascade(
        "qd,kd->qk, qk,ke->qe", q, k, v, between=softmax, alpha=0.5
    ))  # fmt: skip


def test_a_plan_is_transformed_and_traced_as_the_call_is() -> None:
    x, y, z = (torch.randn(5, 5, dtype=F64) for _ in range(3))
    bias = torch.randn(5, dtype=F64)
    words = {"between": windowed, "indices": {"j": "k"}}
    plan = weft.plan_cascade("qd,kd->qk, qk,ke->qe", x, y, z, **words, operands={"bias": ("q", bias)})

    def planned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plan(q, k, v, operands={"bias": bias})[0]

    def called(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return weft.cascade("qd,kd->qk, qk,ke->qe", q, k, v, **words, operands={"bias": ("q", bias)})[0]

    many = [torch.stack([each, 2 * each]) for each in (x, y, z)]
    for _ in range(3):
        torch.testing.assert_close(planned(x, y, z), called(x, y, z))
        torch.testing.assert_close(torch.func.vmap(planned)(*many), torch.func.vmap(called)(*many))
        grads = [torch.func.grad(lambda *given, call=call: call(*given).sum(), (0, 1, 2))(x, y, z)
                 for call in (planned, called)]  # fmt: skip
        torch.testing.assert_close(*grads)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert planned(*map(mode.from_tensor, (x, y, z))).shape == (5, 5)
    with pytest.raises(weft.ShapeError, match="the plan is for operands of shapes"):
        torch.func.vmap(planned)(*many[:2], torch.randn(2, 5, 4, dtype=F64))


def test_a_kept_plan_is_transformed() -> None:
    """`vmap`, `grad` and both of a plan, in later calls too; forward mode is refused, also that of dual tensors."""
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in ((5, 6), (7, 6), (7, 4), (7,))]
    seen = torch.ones(5, 7).tril().bool()

    def between(s: Tensor, bias: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        return weft.softmax(torch.where(j <= i, s + bias, -torch.inf), "j"), weft.logsumexp(s, "j")

    plan = weft.plan_cascade(
        "id,jd->ij, ij,je->ie", *tensors[:3], between=between, operands={"bias": ("j", tensors[3])},
        indices={"i": "i", "j": "j"},
    )  # fmt: skip

    def planned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
        return plan(q, k, v, operands={"bias": bias})

    def plainly(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
        s = q @ k.T
        return torch.softmax((s + bias).masked_fill(~seen, -torch.inf), -1) @ v, s.logsumexp(-1)

    def loss(call: Any) -> Any:
        return lambda *given: sum((each**2).sum() for each in call(*given))

    several, places = [torch.randn(3, 5, 6, dtype=torch.float64), *tensors[1:]], (0, None, None, None)
    transforms = [
        (tensors, lambda call: torch.func.grad(loss(call), (0, 1, 2, 3))),
        (several, lambda call: torch.func.vmap(call, places)),
        (several, lambda call: torch.func.vmap(torch.func.grad(loss(call), (0, 1, 2, 3)), places)),
    ]
    for _ in range(12):
        for given, transform in transforms:
            torch.testing.assert_close(transform(planned)(*given), transform(plainly)(*given))
    with pytest.raises(weft.UnsupportedError, match="no forward mode"):
        torch.func.jvp(planned, tuple(tensors), tuple(tensors))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(weft.UnsupportedError, match="no forward mode"):
        planned(torch.autograd.forward_ad.make_dual(tensors[0], tensors[0]), *tensors[1:])


@pytest.mark.parametrize("specialize", ["now", "never", "auto"])
@pytest.mark.parametrize("equation", ["id,jd->ij, ij,je->ie", "id,jd->ij, ij,je->ei"])
def test_results_are_written_to(equation: str, specialize: str) -> None:
    """As those of torch's operations; what is kept for gradients is not what the caller has."""
    for _ in range(12):
        q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 6), (7, 6), (7, 4)))
        d, row = weft.cascade(
            equation, q, k, v, between=lambda s: (weft.softmax(s, "j"), weft.logsumexp(s, "j")), specialize=specialize
        )
        d.mul_(2)
        row.mul_(3)
        s = q @ k.T
        plain = torch.softmax(s, -1) @ v
        right = [2 * (plain if equation.endswith("ie") else plain.T), 3 * s.logsumexp(-1)]
        found, wanted = (
            torch.autograd.grad((each[0] ** 2).sum() + each[1].exp().sum(), (q, k, v)) for each in ([d, row], right)
        )
        torch.testing.assert_close(found, wanted)
