"""float32 products of shorter terms: values, layouts, range, and who is served so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft.library.split import SplitProducts
from weft.library.split_family import SplitLaunch
from weft.planner.split_schemes import BF16X6, FP16X3, SplitScheme, U, is_worth

SCHEMES = pytest.mark.parametrize("scheme", [BF16X6, FP16X3], ids=lambda scheme: scheme.name)


def products(scheme: SplitScheme, batched: bool = False) -> SplitProducts:
    """Products by one scheme, of halves that the CPU multiplies in float32."""

    def add(addend: Any, left: Any, right: Any, *, beta: float, alpha: float, out: torch.Tensor) -> None:
        found = torch.matmul(left.float(), right.float()) * alpha
        out.copy_(found + addend if beta else found)

    found = SplitProducts(batched, "cpu", 64)
    found._add = dict.fromkeys((torch.bfloat16, torch.float16), add)
    found._is_large = lambda left, right: scheme is FP16X3  # type: ignore[method-assign]
    return found


def matrices(
    shape: tuple[int, ...], n: int, turned: tuple[bool, bool] = (False, False), scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    *batch, _, k = shape
    draw = torch.Generator().manual_seed(k)
    pair = torch.randn(shape, generator=draw) * scale, torch.randn((*batch, k, n), generator=draw)
    return tuple(x.mT.contiguous().mT if turn else x for x, turn in zip(pair, turned, strict=True))  # type: ignore[return-value]


@SCHEMES
@pytest.mark.parametrize(
    ("shape", "turned", "scale", "alpha"),
    [
        ((17, 64), (False, False), 1.0, 1.0),
        ((17, 63), (True, False), 1e-6, 0.5),
        ((3, 17, 45), (False, True), 1.0, -2e-20),
        ((5, 2500), (True, True), 1e3, 1.0),
    ],
)
def test_products_of_terms_are_within_the_bound(
    scheme: SplitScheme, shape: tuple[int, ...], turned: tuple[bool, bool], scale: float, alpha: float
) -> None:
    a, b = matrices(shape, 23, turned, scale)
    found = products(scheme, len(shape) == 3).made(a, b, alpha).double()
    x, y = a.double(), b.double()
    bound = abs(alpha) * scheme.loss(shape[-1]) * U * (x.abs() @ y.abs()) + 2 * U * found.abs()
    assert ((found - alpha * (x @ y)).abs() <= bound).all()


def test_infinities_and_nan_come_out_as_of_ieee_products() -> None:
    a, b = matrices((9, 64), 7)
    a[1, 3], a[2, 5], a[4, 0] = torch.inf, -torch.inf, torch.nan
    b[:, 2] = 1.0  # whose lower terms are 0
    found, exact = products(BF16X6).made(a, b), a @ b
    special = ~exact.isfinite()
    assert special.sum() == 21
    assert torch.equal(found[special], exact[special]) or torch.equal(found[special].isnan(), exact[special].isnan())
    assert torch.equal(found.isinf(), exact.isinf())
    assert torch.equal(found.sign()[exact.isinf()], exact.sign()[exact.isinf()])
    assert found[~special].isfinite().all()


def test_zero_as_alpha_leaves_zeros() -> None:
    a, b = matrices((9, 64), 7)
    assert torch.equal(products(BF16X6).made(a, b, 0), torch.zeros(9, 7))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a.mul_(torch.linspace(-40, 0, 9).exp2()[:, None]), "a row far below the largest value"),
        (lambda a: a[:, ::2].zero_(), "half of a row is zero"),
        (lambda a: a[0].mul_(1e30), "values that are too large"),
        (lambda a: a[0, :1].fill_(torch.nan), "NaN"),
        (lambda a: a.zero_(), "nothing but zeros"),
    ],
)
def test_float16_terms_are_refused_where_they_would_lose_too_much(change: Any, reason: str) -> None:
    a, b = matrices((9, 256), 7)
    chosen = products(FP16X3)._of_float16
    assert chosen(a, b) is not None
    change(a)
    assert chosen(a, b) is None, reason
    assert chosen(b.mT, a.mT) is None, reason
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    off = (products(FP16X3).made(a, b) - exact).abs()
    assert (off <= BF16X6.loss(256) * U * size)[exact.isfinite()].all()


def test_terms_serve_large_products_alone() -> None:
    assert is_worth(1, 4096, 4096, 4096)
    assert not is_worth(1, 64, 64, 64)
    assert not is_worth(1, 8192, 8192, 4)  # a short sum


@pytest.mark.gpu
@pytest.mark.parametrize("equation", ["mk,kn->mn", "kam,bkn->nbam"])
def test_a_gpu_is_served_by_terms_within_the_ieee_bound(equation: str) -> None:
    extents = {"m": 1800, "n": 1700, "k": 1601, "a": 1, "b": 2}
    terms = equation.split("->")[0].split(",")
    a, b = (torch.randn([extents[label] for label in term], device="cuda") for term in terms)
    for specialize in ("library", "now"):
        plan = weft.plan(equation, a, b, precision="ieee_bound", epilogue=torch.relu, specialize=specialize)
        assert "shorter terms" in plan.explain()
        for _ in range(2):
            plan(a, b, validate=True)


def test_a_step_sees_intermediates_that_are_rows_of_elements() -> None:
    a, b = matrices((9, 64), 7)
    contraction = weft.plan("mk,kn->mn", a, b, backend="reference").contraction
    seen: list[torch.Size] = []
    launch = SplitLaunch(contraction, lambda x, y, c, d, *rest: seen.extend([x.shape, y.shape, d.shape]))  # type: ignore[arg-type]
    launch(a.flatten(), b, None, torch.empty(63), 1.0, 1.0)
    assert seen == [(9, 64), (64, 7), (9, 7)]
