"""Kernels of cascades on a GPU, forward and backward: odd extents, masks and operands against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from cascades.functions_between import FUNCTIONS, Between
from weft.planner import validity

pytestmark = pytest.mark.gpu

EQUATION = "hqd,hkd->hqk, hqk,hke->hqe"
SERVED = (
    "identity", "sigmoid", "softmax", "softmax and logsumexp", "over a sum", "causal", "rows masked out", "a window",
    "scaled behind",
)  # fmt: skip
RUN = [each for each in FUNCTIONS if each.name in SERVED]
BOUNDS = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-4, torch.float64: 1e-9}


def keywords(each: Between, q: int) -> dict[str, Any]:
    if not each.aux:
        return {}
    bias = torch.linspace(0.5, 1.5, 3 * q, device="cuda").reshape(3, q)
    return {"indices": {"i": "q", "j": "k"}, "operands": {"bias": ("hq", bias)}}


def both(each: Between, inputs: list[Tensor], backend: str, q: int) -> list[Tensor]:
    """Results and gradients."""
    found = weft.cascade(
        EQUATION, *inputs, alpha=0.3 * inputs[0].shape[-1] ** -0.5, between=each.function, backend=backend,
        **keywords(each, q),
    )  # fmt: skip
    values = list(found) if isinstance(found, tuple) else [found]
    total = sum((value.double() * torch.linspace(-1, 1, value.shape[-1], device="cuda")).sum() for value in values)
    return [*values, *torch.autograd.grad(total, inputs)]


def check(each: Between, dtype: torch.dtype, q: int, k: int, d: int, e: int) -> None:
    torch.manual_seed(q + k)
    inputs = [torch.randn(shape, device="cuda", dtype=dtype) for shape in ((3, q, d), (3, k, d), (3, k, e))]
    exact = both(each, [x.double().requires_grad_() for x in inputs], "reference", q)
    for found, right in zip(both(each, [x.requires_grad_() for x in inputs], "triton", q), exact, strict=True):
        scale = float(right[right.isfinite()].abs().max()) or 1.0
        torch.testing.assert_close(found.double() / scale, right / scale, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.parametrize("each", RUN, ids=lambda each: each.name)
def test_functions(each: Between) -> None:
    check(each, torch.float16, 257, 511, 64, 64)


@pytest.mark.parametrize(
    ("q", "k", "d", "e"), [(130, 1000, 128, 96), (64, 129, 24, 256), (40, 300, 40, 8)],
    ids=["128 and 96", "256", "short"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_types_and_sides(dtype: torch.dtype, q: int, k: int, d: int, e: int) -> None:
    check(next(each for each in RUN if each.name == "causal"), dtype, q, k, d, e)


def test_a_call_like_one_before_has_values_of_its_own_tensors() -> None:
    """Grouped heads, few queries and many: the second call of each only launches."""
    for q in (1, 200):
        plan: Any = None
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(2, 2, 4, q, 64, device="cuda", dtype=torch.float16)
            y, z = (torch.randn(2, 2, 3000, 64, device="cuda", dtype=torch.float16) for _ in range(2))
            plan = plan or weft.plan_cascade(
                "bhgqd,bhkd->bhgqk, bhgqk,bhke->bhgqe", x, y, z, between=lambda s: weft.softmax(s, "k"), alpha=0.125,
                backend="triton",
            )  # fmt: skip
            scores = torch.einsum("bhgqd,bhkd->bhgqk", x.double(), y.double()) * 0.125
            right = torch.einsum("bhgqk,bhke->bhgqe", scores.softmax(-1), z.double())
            torch.testing.assert_close(plan(x, y, z).double(), right, rtol=4e-3, atol=4e-3)


MASKS = {
    "nothing": lambda i, j: j >= 0,
    "causal": lambda i, j: j <= i,
    "columns left out": lambda i, j: (j < 100) | (j >= 300),
    "far away": lambda i, j: (i - j > 400) | (j - i > 400),
}


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("q", "k", "d"), [(700, 1000, 128), (1000, 300, 64)], ids=["128", "64"])
def test_gradients_of_a_call_like_one_before(mask: str, q: int, k: int, d: int) -> None:
    """D in another order than kernels have it, heads in groups: calls on tensors of their own, each made twice."""

    def function(s: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return weft.softmax(torch.where(MASKS[mask](i, j), s, -torch.inf), "k")

    plan: Any = None
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, 3, q, d, device="cuda", dtype=torch.float16).requires_grad_()
        y, z = (torch.randn(2, k, d, device="cuda", dtype=torch.float16).requires_grad_() for _ in range(2))
        grad = torch.randn(q, 2, 3, d, device="cuda", dtype=torch.float16)
        plan = plan or weft.plan_cascade(
            "hgqd,hkd->hgqk, hgqk,hke->qhge", x, y, z, between=function, alpha=d**-0.5, backend="triton",
            indices={"i": "q", "j": "k"},
        )  # fmt: skip
        found, again = (torch.autograd.grad(plan(x, y, z), (x, y, z), grad) for _ in range(2))
        wide = [each.detach().double().requires_grad_() for each in (x, y, z)]
        scores = torch.einsum("hgqd,hkd->hgqk", *wide[:2]) * d**-0.5
        i, j = torch.arange(q, device="cuda")[:, None], torch.arange(k, device="cuda")
        weights = torch.where(MASKS[mask](i, j), (scores - scores.detach().amax(-1, keepdim=True)).exp(), 0.0)
        p = weights / weights.sum(-1, keepdim=True).clamp(min=1e-100)
        right = torch.autograd.grad(torch.einsum("hgqk,hke->qhge", p, wide[2]), wide, grad.double())
        for one, other, exact in zip(found, again, right, strict=True):
            assert torch.equal(one, other)
            scale = float(exact.abs().max())
            torch.testing.assert_close(one.double() / scale, exact / scale, rtol=4e-3, atol=4e-3)


def test_gradients_of_gradients_of_a_call_like_one_before() -> None:
    x, y, z = (torch.randn(2, 200, 64, device="cuda", dtype=torch.float16).requires_grad_() for _ in range(3))
    plan = weft.plan_cascade(
        "hqd,hkd->hqk, hqk,hke->hqe", x, y, z, between=lambda s: weft.softmax(s, "k"), alpha=0.1, backend="triton"
    )
    found = []
    for _ in range(3):
        (first,) = torch.autograd.grad(plan(x, y, z).float().sin().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.float().square().sum(), y)[0])
    assert found[0].abs().max() > 0
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("grads", [False, True], ids=["values", "gradients"])
def test_the_kernel_takes_over_from_blocks(grads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled while blocks serve, for a cascade that is large enough; results stay what they are."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("blocks serve throughout")
    monkeypatch.setattr("weft.cascades.serving.PER_ELEMENT", 1e-6)
    validity.outdate()
    x, y, z = (torch.randn(1, 4, 2048, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    equation, function = "bhqd,bhkd->bhqk, bhqk,bhke->bhqe", lambda s: weft.softmax(s, "k")
    right = torch.nn.functional.scaled_dot_product_attention(x, y, z, scale=1.0)
    plan, served = weft.plan_cascade(equation, x, y, z, between=function, specialize="auto"), []
    for _ in range(5):
        found = plan(x.requires_grad_(grads), y, z)
        served.append(plan.launch is not None)
        torch.testing.assert_close(found, right, rtol=1e-2, atol=1e-2)
        if grads:
            (of_x,) = torch.autograd.grad(found.sum(), [x])
            assert of_x.isfinite().all()
    assert served == sorted(served)  # what has taken over stays
    assert served[-1] is True


SUMS = {
    "a sum": lambda s, p, q: torch.exp((2 * s - p - q) / 20),
    "a logsumexp": lambda s, p, q: weft.logsumexp(2 * s - p - q, "j"),
    "a softmax": lambda s, p, q: weft.softmax(2 * s - p - q, "j"),
    "a condition": lambda s, p, q: torch.where((p > 9) & (q > 9), s, 0.0),
}


def sums(x: Tensor, y: Tensor, c: Tensor, between: Any, second: bool, **more: Any) -> Tensor:
    equation, tensors = ("id,jd->ij, ij,j->i", (x, y, c)) if second else ("id,jd->ij", (x, y))
    given = {"p": ("i", x.square().sum(1)), "q": ("j", y.square().sum(1))}
    found: Tensor = weft.cascade(equation, *tensors, between=between, operands=given, **more)
    return found


@pytest.mark.parametrize("precision", ["ieee_bound", "tf32x3"])
@pytest.mark.parametrize(("rows", "columns", "k"), [(300, 1000, 20), (129, 64, 64), (64, 7, 100), (1000, 513, 12)])
@pytest.mark.parametrize("name", SUMS)
def test_sums_over_points_by_terms(name: str, rows: int, columns: int, k: int, precision: str) -> None:
    """As near to float64 as IEEE products are, but for a factor of 4."""
    torch.manual_seed(rows)
    x, y = torch.randn(rows, k, device="cuda"), torch.randn(columns, k, device="cuda")
    c, second = torch.randn(columns, device="cuda"), name != "a logsumexp"
    exact = sums(x.double(), y.double(), c.double(), SUMS[name], second, backend="reference")
    found, plain = (
        sums(x, y, c, SUMS[name], second, backend="triton", precision=each) for each in (precision, "ieee")
    )
    limit = 4 * (plain - exact).abs().amax() + 1e-6 * exact.abs().amax()
    assert ((found - exact).abs() <= limit).all(), ((found - exact).abs().max(), limit)


@pytest.mark.parametrize("value", [float("inf"), 3e38])
def test_values_that_terms_do_not_hold_are_multiplied_as_they_are(value: float) -> None:
    x, y = torch.rand(200, 20, device="cuda"), torch.rand(300, 20, device="cuda")
    c = torch.randn(300, device="cuda")
    x[3, 5] = value
    found, plain = (
        weft.cascade("id,jd->ij, ij,j->i", x, y, c, between=torch.atan, backend="triton", precision=each)
        for each in ("ieee_bound", "ieee")
    )
    torch.testing.assert_close(found, plain, rtol=0, atol=0)


KINDS = [(torch.float16, "ieee", 257), (torch.float32, "ieee_bound", 640)]


@pytest.mark.parametrize(("dtype", "precision", "q"), KINDS)
@pytest.mark.parametrize("backend", ["triton", "auto"])
@pytest.mark.parametrize("warmed", [False, True])
def test_a_graph_has_all_that_its_kernels_read(
    dtype: torch.dtype, precision: str, q: int, backend: str, warmed: bool
) -> None:
    """Tables and coordinates that are first made within a capture, and graphs that outlive their plan."""
    x, y = (torch.randn(q, 64, device="cuda", dtype=dtype) for _ in range(2))

    def causal(s: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return weft.logsumexp(torch.where(j <= i, s, -torch.inf), "j")

    plan = weft.plan_cascade(
        "ik,jk->ij", x, y, between=causal, indices={"i": "i", "j": "j"}, alpha=0.125, precision=precision,
        backend=backend,
    )  # fmt: skip
    scores = 0.125 * x.double() @ y.double().mT
    right = scores.masked_fill(~torch.ones_like(scores).tril().bool(), -torch.inf).logsumexp(1)
    if warmed:
        for _ in range(3):
            plan(x, y)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = plan(x, y)
    torch.testing.assert_close(plan(x, y).double(), right, rtol=1e-3, atol=1e-3)  # before any replay
    del plan
    validity.outdate()
    torch.cuda.empty_cache()
    filled = [torch.full((1 << 12,), -1, device="cuda", dtype=torch.int32) for _ in range(64)]
    captured.fill_(torch.nan)
    graph.replay()
    torch.testing.assert_close(captured.double(), right, rtol=1e-3, atol=1e-3)
    assert all(bool((each == -1).all()) for each in filled)
