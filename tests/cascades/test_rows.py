"""Compiled loops of cascades on a CPU: values in float32 and float64, threads, NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from cascades.functions_between import FUNCTIONS, Between
from weft.cpu import row_call
from weft.planner import validity

EQUATION = "hqd,hkd->hqk, hqk,hke->hqe"
COMPILED = [
    each for each in FUNCTIONS if each.name in ("softmax and logsumexp", "standardized", "a window", "scaled behind")
]


@pytest.fixture(autouse=True)
def loops_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops, not torch's operations on few elements."""
    monkeypatch.setattr("weft.cascades.plan.FEW", 0)
    validity.outdate()


LOOPS = "loops       in loops that are compiled for this function"


def operands(h: int, q: int, k: int, d: int, e: int, dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(h + 3 * q + 7 * k)
    return [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in
            ((h, q, d), (h, k, d), (h, k, e))]  # fmt: skip


def run(equation: str, *tensors: Tensor, **keywords: Any) -> tuple[Tensor, ...]:
    """Results of compiled loops."""
    plan = weft.plan_cascade(equation, *tensors, **keywords)
    assert LOOPS in plan.explain()
    given = {name: tensor for name, (_, tensor) in (keywords.get("operands") or {}).items()}
    found = plan(*tensors, operands=given)
    return found if isinstance(found, tuple) else (found,)


def exactly(equation: str, *tensors: Tensor, **keywords: Any) -> tuple[Tensor, ...]:
    """Results of the reference, of operands in float64."""
    named = {name: (modes, each.double()) for name, (modes, each) in (keywords.pop("operands", None) or {}).items()}
    wide = [tensor.double() for tensor in tensors]
    found = weft.cascade(equation, *wide, backend="reference", operands=named or None, **keywords)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.one_of(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("each", COMPILED, ids=lambda each: each.name)
def test_values_are_those_of_all_of_s(each: Between, dtype: torch.dtype) -> None:
    """Few and many terms of S, few and many columns of C, and several blocks along rows and columns."""
    several = each.aux and dtype == torch.float32
    for d, e, limit in ((6, 9, 1 << 14), (2, 9, None), (6, 1, 1 << 15), (2, 2, 1 << 14))[: 4 if several else 1]:
        tensors = operands(3, 70, 90, d, e, dtype)
        keywords: dict[str, Any] = {"between": each.function, "alpha": 0.6}
        if each.aux:
            keywords["indices"] = {"i": "q", "j": "k"}
            keywords["operands"] = {"bias": ("q", torch.linspace(0.5, 1.5, 70, dtype=dtype))}
        found = run(EQUATION, *tensors, workspace_limit=limit, **keywords)
        tolerance = 3e-5 if dtype == torch.float32 else 1e-11
        for one, exact in zip(found, exactly(EQUATION, *tensors, **keywords), strict=True):
            scale = float(exact.nan_to_num(0.0, 0.0, 0.0).abs().max())
            torch.testing.assert_close(one.double(), exact, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


@pytest.mark.parametrize("terms", [1, 3, 6])
@pytest.mark.parametrize("modes", ["qk", "hqk", "hk"])
def test_reductions_over_modes_of_a(modes: str, terms: int) -> None:
    """A has an element of its own in each column, where S is made of few products, too."""
    a, b, _ = operands(3, 20, 70, terms, 1, torch.float64)
    bias = torch.linspace(-1, 1, 1400, dtype=torch.float64).reshape(20, 70)

    def between(s: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return weft.logsumexp(s + bias, modes), weft.amax(s * bias, modes)

    s, dims = a @ b.mT, ["hqk".index(mode) for mode in modes]
    for limit in (None, 1 << 14):
        found = weft.cascade("hqd,hkd->hqk", a, b, between=between, operands={"bias": ("qk", bias)},
                             workspace_limit=limit, specialize="now")  # fmt: skip
        torch.testing.assert_close(found, ((s + bias).logsumexp(dims), (s * bias).amax(dims)))


@pytest.mark.parametrize("shape", [(20, 1, 1), (1, 1, 1), (1, 70, 1), (20, 70, 1)])
def test_operands_that_broadcast_along_columns(shape: tuple[int, ...]) -> None:
    a, b, _ = operands(1, 20, 140, 6, 1, torch.float64)
    s, bias = (a[0] @ b[0].mT).reshape(20, 70, 2), torch.linspace(-1, 1, math.prod(shape)).double().reshape(shape)
    found = run("qd,kld->qkl", a[0], b[0].reshape(70, 2, 6), between=lambda s, bias: weft.logsumexp(s * bias, "kl"),
                operands={"bias": ("qkl", bias)})  # fmt: skip
    torch.testing.assert_close(found[0], (s * bias).logsumexp((1, 2)))


def test_rows_that_overlap_in_memory() -> None:
    line, b, c = (torch.linspace(-1, 1, count).double().sin() for count in (25, 198, 132))
    b, c = b.reshape(33, 6), c.reshape(33, 4)
    for a in (line[:6].expand(20, 6), line.unfold(0, 6, 1), line[:20, None].expand(20, 6)):
        (found,) = run("qd,kd->qk, qk,ke->qe", a, b, c, between=lambda s: weft.softmax(s, "k"))
        torch.testing.assert_close(found, torch.softmax(a @ b.T, 1) @ c)
    a = torch.linspace(-1, 1, 120).double().reshape(20, 6)
    (found,) = run("qd,kd->qk, qk,ke->qe", a, b[:1].expand(33, 6), c[:1].expand(33, 4), between=torch.sigmoid)
    torch.testing.assert_close(found, torch.sigmoid(a @ b[:1].T) * 33 * c[:1])


def test_shared_heads_operands_in_any_order_and_threads() -> None:
    """Results are the same in one thread and in several."""
    draw = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(shape, generator=draw) for shape in ((2, 90, 2, 3, 16), (2, 130, 2, 16), (2, 16, 130, 2)))
    bias = torch.randn(130, 90, 3, generator=draw)

    def between(s: Tensor, i: Tensor, j: Tensor, bias: Tensor, cap: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.where(j <= i + 20, cap * torch.tanh(s / cap) + bias, -math.inf)
        return weft.softmax(s, "k"), weft.argmax(s, "k")

    keywords: dict[str, Any] = {
        "between": between, "alpha": 0.25, "indices": {"i": "q", "j": "k"},
        "operands": {"bias": ("kqg", bias), "cap": ("h", torch.tensor([20.0, 30.0]))},
    }  # fmt: skip
    equation = "bqhgd,bkhd->bqhgk, bqhgk,bekh->bqhge"
    runs, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            runs.append(run(equation, q, k, v, **keywords))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    d, places = exactly(equation, q, k, v, **keywords)
    torch.testing.assert_close(runs[0][0].double(), d, rtol=1e-4, atol=1e-5)
    assert torch.equal(runs[0][1], places)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_stays_where_it_is(value: float) -> None:
    """Extremes, places, sums and counts of rows that hold it are those of torch."""
    x, y = torch.randn(9, 8), torch.randn(40, 8)
    extra = torch.zeros(9, 40)
    extra[2, 7], extra[2, 33], extra[4], extra[6, :20] = value, value, value, -value

    def between(s: Tensor, extra: Tensor) -> tuple[Tensor, ...]:
        t = s + extra
        return (
            weft.amax(t, "j"), weft.amin(t, "j"), weft.argmax(t, "j"), weft.argmin(t, "j"), weft.sum(t > 0, "j"),
            weft.logsumexp(t, "j"), weft.amax(s > 0, "j"),
        )  # fmt: skip

    found = run("id,jd->ij", x, y, between=between, operands={"extra": ("ij", extra)}, workspace_limit=1 << 13)
    t = x @ y.T + extra
    expected = (t.amax(1), t.amin(1), t.argmax(1), t.argmin(1), (t > 0).sum(1), t.logsumexp(1), (x @ y.T > 0).amax(1))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("blas", [True, False], ids=["BLAS", "no BLAS"])
def test_what_is_no_product_of_matrices_runs_by_blocks(blas: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """C lacks the mode of heads, or torch does not say where its BLAS is: explained, and as right."""
    if not blas:
        monkeypatch.setattr(row_call, "address", lambda dtype: 0)
    a, b, c = operands(3, 70, 90, 6, 9, torch.float64)
    given = (a, b, c[0]) if blas else (a, b, c)
    equation = "hqd,hkd->hqk, hqk,ke->hqe" if blas else EQUATION
    plan = weft.plan_cascade(equation, *given, between=lambda s: weft.softmax(s, "k"), workspace_limit=1 << 14)
    assert "loops       in torch's operations: products are not of matrices" in plan.explain()
    torch.testing.assert_close(plan(*given), torch.softmax(a @ b.mT, -1) @ given[2])


def test_rows_that_are_stored() -> None:
    """A softmax of halves is stored as halves, and a mask of whole rows gives 0."""
    x, w = torch.randn(50, 24).half(), torch.randn(70, 24).half()

    def between(s: Tensor, i: Tensor) -> Tensor:
        return weft.softmax(torch.where(i == 3, -math.inf, s), "n")

    (found,) = run("md,nd->mn", x, w, between=between, indices={"i": "m"})
    expected = torch.softmax(x.float() @ w.float().T, -1)
    expected[3] = 0
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=1e-4)


def test_gradients_behind_compiled_loops() -> None:
    q, k, v = (each.requires_grad_() for each in operands(2, 30, 40, 5, 6, torch.float64))
    slope = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)

    def between(s: Tensor, j: Tensor, slope: Tensor) -> Tensor:
        return weft.softmax(s + slope * j, "k")

    keywords: dict[str, Any] = {"between": between, "indices": {"j": "k"}, "operands": {"slope": ("", slope)}}
    (d,) = run(EQUATION, q, k, v, **keywords)
    plain = torch.softmax(q @ k.mT + slope * torch.arange(40), -1) @ v
    inputs = (q, k, v, slope)
    torch.testing.assert_close(
        torch.autograd.grad(d.square().sum(), inputs), torch.autograd.grad(plain.square().sum(), inputs)
    )


def test_calls_begin_with_torch_and_loops_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call compiles nothing; results of later ones differ by roundings alone."""
    monkeypatch.delenv("WEFT_TIERS", raising=False)
    x, y = torch.randn(60, 8), torch.randn(70, 8)

    def between(s: Tensor) -> Tensor:
        return weft.logsumexp(1.25 * s, "j")

    run("id,jd->ij", x, y, between=between)  # the code is at hand
    found = [weft.cascade("id,jd->ij", x, y, between=between) for _ in range(3)]
    never = [weft.cascade("id,jd->ij", x, y, between=between, specialize="never") for _ in range(3)]
    assert torch.equal(found[0], never[0])
    assert torch.equal(found[1], found[2])
    torch.testing.assert_close(found[1], never[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("terms", [2, 24])
def test_s_itself_is_reduced_beside_what_takes_its_place(terms: int) -> None:
    """What meets C is written where S was, and S is reduced in all ways."""
    x, y, c = torch.randn(20, terms), torch.randn(300, terms), torch.randn(300, 6)

    def between(s: Tensor) -> tuple[Tensor, ...]:
        return torch.sigmoid(s), weft.amax(s, "j"), weft.sum(s, "j"), weft.argmin(s, "j"), weft.amin(s.abs(), "j")

    found = run("id,jd->ij, ij,je->ie", x, y, c, between=between, workspace_limit=1 << 14)
    s = x @ y.T
    expected = (torch.sigmoid(s) @ c, s.amax(1), s.sum(1), s.argmin(1), s.abs().amin(1))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
