"""The Triton kernel of cascades: its values in Triton's interpreter, its code for GPUs that are not here."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import weft
from cascades.functions_between import FUNCTIONS, Between
from weft.cascades import arguments, kernel
from weft.cascades.serving import CascadeTile
from weft.planner import validity

EQUATION = "hqd,hkd->hqk, hqk,hke->hqe"
SERVED = (
    "identity", "sigmoid", "softmax", "softmax by hand", "softmax and logsumexp", "over a sum", "causal",
    "rows masked out", "a window", "scaled behind",
)  # fmt: skip
RUN = [each for each in FUNCTIONS if each.name in SERVED]

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off")


def operands(dtype: torch.dtype = torch.float32, q: int = 19, k: int = 70, d: int = 5, e: int = 3) -> list[Tensor]:
    draw = torch.Generator().manual_seed(q + k)
    return [torch.randn(shape, generator=draw).to(dtype) for shape in ((2, q, d), (2, k, d), (2, k, e))]


def keywords(each: Between) -> dict[str, Any]:
    if not each.aux:
        return {}
    return {"indices": {"i": "q", "j": "k"}, "operands": {"bias": ("hq", torch.linspace(0.5, 1.5, 38).reshape(2, 19))}}


@pytest.mark.parametrize("each", RUN, ids=lambda each: each.name)
def test_the_kernel_has_the_values_of_the_reference(each: Between) -> None:
    tensors = operands()
    found, exact = (
        weft.cascade(EQUATION, *tensors, between=each.function, alpha=0.4, backend=backend, **keywords(each))
        for backend in ("triton", "reference")
    )
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("aux", [False, True], ids=["by kernels", "of operands by blocks"])
@pytest.mark.parametrize("each", RUN, ids=lambda each: each.name)
def test_gradients(each: Between, aux: bool) -> None:
    given = keywords(each)
    aux = aux and bool(given)
    inputs = [tensor.requires_grad_() for tensor in operands()]
    if aux:
        modes, bias = given["operands"]["bias"]
        inputs.append(bias.clone().requires_grad_())
        given["operands"] = {"bias": (modes, inputs[-1])}
    grads = []
    for backend in ("triton", "reference"):
        found = weft.cascade(EQUATION, *inputs[:3], alpha=0.4, between=each.function, backend=backend, **given)
        d, *more = found if isinstance(found, tuple) else (found,)
        total = d.square().sum() + sum(0.3 * value.cos().sum() for value in more)
        grads.append(torch.autograd.grad(total, inputs))
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


def test_gradients_go_to_the_largest_and_the_smallest() -> None:
    """Blocks of torch make products that are rounded otherwise than the kernel's."""
    grads = []
    for backend in ("triton", "reference"):
        a, b, c = (tensor.requires_grad_() for tensor in operands())
        d = weft.cascade(EQUATION, a, b, c, between=lambda s: weft.amax(s, "k") - weft.amin(s, "k"), backend=backend)
        grads.append(torch.autograd.grad(d.square().sum(), (a, b, c)))
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 1, 70), (2, 19, 1), (1, 1, 1)])
def test_operands_that_broadcast_along_their_modes(shape: tuple[int, ...]) -> None:
    scale = torch.linspace(0.5, 1.5, math.prod(shape)).reshape(shape)
    found, exact = (
        weft.cascade(EQUATION, *operands(), between=lambda s, scale: weft.softmax(s * scale, "k") * scale,
                     operands={"scale": ("hqk", scale)}, backend=backend)
        for backend in ("triton", "reference")
    )  # fmt: skip
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("modes", ["q", "k"])
def test_gradients_of_operands_that_broadcast_along_rows_or_columns(modes: str) -> None:
    grads = []
    for backend in ("triton", "reference"):
        x, y, c = (each[0].requires_grad_() for each in operands())
        bias = torch.full((1,), 0.7, requires_grad=True)
        d = weft.cascade("qd,kd->qk, qk,ke->qe", x, y, c, between=lambda s, bias: torch.tanh(s * bias),
                         operands={"bias": (modes, bias)}, backend=backend)  # fmt: skip
        grads.append(torch.autograd.grad(d.square().sum(), (x, y, c, bias)))
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


OF_POINTS = {
    "a sum": lambda s, p, q: torch.exp((2 * s - p - q) / 5),
    "a softmax": lambda s, p, q: weft.softmax(s / p - q, "k"),
    "several": lambda s, p, q: (weft.softmax(s * p, "k") * q, weft.sum(torch.sin(s + q), "k")),
}


@pytest.mark.parametrize("second", [True, False], ids=["and C", "alone"])
@pytest.mark.parametrize("name", OF_POINTS)
def test_gradients_of_operands_of_rows_and_of_columns(name: str, second: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kernels: no block of S is made again by torch."""
    between = OF_POINTS[name] if second else lambda s, p, q: weft.logsumexp(OF_POINTS["a sum"](s, p, q) + q, "k")
    grads = []
    for backend in ("reference", "triton"):
        x, y, c = (each[0].requires_grad_() for each in operands())
        given = {"p": ("q", 1 + x.square().sum(1)), "q": ("k", y.square().sum(1))}
        terms = ("qd,kd->qk, qk,ke->qe", x, y, c) if second else ("qd,kd->qk", x, y)
        if backend == "triton":
            monkeypatch.setattr("weft.cascades.backward.Gradients.through_block", None)
        found = weft.cascade(*terms, between=between, operands=given, alpha=0.3, backend=backend)
        values = found if isinstance(found, tuple) else (found,)
        grads.append(torch.autograd.grad(sum(each.square().sum() for each in values), (x, y, c)[: len(terms) - 1]))
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bghqd,bhkd->bghqk, bghqk,bhke->bghqe", [(2, 3, 2, 5, 4), (2, 2, 40, 4), (2, 2, 40, 3)]),
        ("bhgqd,bhkd->bhgqk, bhgqk,bhke->bhgqe", [(2, 2, 2, 65, 4), (2, 2, 40, 4), (2, 2, 40, 3)]),
        ("dkh,dqh->khq, hke,khq->eqh", [(3, 7, 2), (3, 5, 2), (2, 7, 4)]),
        ("qd,kd->qk, qk,k->q", [(33, 4), (70, 4), (70,)]),
        ("qxd,kd->qxk", [(3, 5, 4), (33, 4)]),
    ],
    ids=["grouped heads", "grouped heads of many rows", "other orders", "one column", "no second"],
)
def test_modes_of_the_kernel(equation: str, shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.randn(shape).requires_grad_() for shape in shapes]
    word = weft.softmax if len(tensors) == 3 else weft.logsumexp
    found, exact = (
        weft.cascade(equation, *tensors, between=lambda s: word(s, "k"), backend=backend)
        for backend in ("triton", "reference")
    )
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)
    grads = [torch.autograd.grad(value.square().sum(), tensors) for value in (found, exact)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["softmax and logsumexp", "causal", "rows masked out", "a window", "over a sum"])
def test_shares_of_the_columns_are_joined(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As few queries of many keys have it: three programs for each row."""
    each = next(each for each in RUN if each.name == name)
    monkeypatch.setattr("weft.cascades.serving.tile_of", lambda *_: CascadeTile(16, 16, 4, 2, splits=3))
    found, exact = (
        weft.cascade(EQUATION, *operands(), between=each.function, alpha=0.3, backend=backend, **keywords(each))
        for backend in ("triton", "reference")
    )
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "d", "e", "bound"),
    [(torch.float64, 5, 3, 1e-12), (torch.float64, 20, 70, 1e-12), (torch.float32, 300, 270, 1e-4)],
    ids=["few terms in double", "double", "long sides"],
)
def test_other_sides_and_types(dtype: torch.dtype, d: int, e: int, bound: float) -> None:
    tensors = operands(dtype, d=d, e=e)
    found, exact = (
        weft.cascade(EQUATION, *tensors, alpha=0.1, backend=backend, between=lambda s: _two(weft.softmax(s, "k"), s))
        for backend in ("triton", "reference")
    )
    assert found[0].dtype == dtype
    torch.testing.assert_close(found, exact, rtol=bound, atol=bound)


def _two(p: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    return p, weft.sum(torch.exp(-s.square()), "k")


def points(rows: int, columns: int, k: int) -> list[Tensor]:
    """Points, some of whose coordinates are large and some small."""
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randn(each, k, generator=draw) * 1e-4 for each in (rows, columns))
    x[:, ::2] *= 1e7
    y[:, 1::2] *= 1e7
    return [x, y, torch.randn(columns, generator=draw)]


def test_single_precision_by_three_products_of_halves() -> None:
    """As near as single precision where values are large and small; nothing is lost to their range."""
    x, y, c = points(40, 90, 20)
    found, exact = (
        weft.cascade("id,jd->ij, ij,j->i", x, y, c, alpha=0.1, between=torch.sin, backend=each, precision="tf32x3")
        for each in ("triton", "reference")
    )
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("k", [12, 20, 64, 128])
def test_terms_of_a_bound_as_of_ieee_sums(k: int) -> None:
    """Their products, added up in single precision, are within K u sum |x| |y| of the sum."""
    x, y, _ = points(40, 90, k)
    (left, _), (right, _) = arguments.terms_of(x, 40, arguments.BOUND), arguments.terms_of(y, 90, arguments.BOUND)
    found = torch.zeros(40, 90)
    for of_a, of_b in kernel.products(arguments.BOUND):
        found += left[of_a].float() @ right[of_b].float().T
    exact, bound = x.double() @ y.double().T, k * 2.0**-24 * x.double().abs() @ y.double().abs().T
    assert ((found.double() - exact).abs() <= bound).all()
    assert arguments.terms_for("ieee_bound", k) == arguments.BOUND


def test_short_sums_have_no_terms_of_such_a_bound() -> None:
    assert arguments.terms_for("ieee_bound", 9) == 0
    assert arguments.terms_for("ieee", 64) == 0


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
def test_values_that_terms_do_not_hold_are_known(value: float) -> None:
    x, y, _ = points(40, 90, 20)
    assert arguments.held(x, y)
    x[3, 5] = value
    assert not arguments.held(x, y)


def test_halves_are_summed_in_single_precision() -> None:
    tensors = operands(torch.float16, q=33, k=64, d=16, e=16)
    found, exact = (
        weft.cascade(EQUATION, *tensors, between=lambda s: weft.softmax(s, "k"), backend=backend)
        for backend in ("triton", "reference")
    )
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, exact, rtol=3e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (lambda s: (s, weft.amax(s, "q")), "not over the columns of S alone"),
        (lambda s: (s, weft.argmax(s, "k")), "the kernel has no 'argmax'"),
        (lambda s: s - weft.mean(s, "k"), "the form is 'whole'"),
    ],
    ids=["rows", "places", "whole"],
)
def test_what_it_does_not_serve_is_said(between: Any, message: str) -> None:
    with pytest.raises(weft.UnsupportedError, match=message):
        weft.cascade(EQUATION, *operands(), between=between, backend="triton")


COMPILED = """
import json, sys, torch, weft
from triton.backends.compiler import GPUTarget
from triton.compiler import compile
from triton.experimental.gluon._runtime import GluonASTSource
from weft.cascades.backward_launch import BackwardLaunch
from weft.cascades.launch import CascadeLaunch
from weft.cascades.serving import tile_of

case = sys.argv[1]
if case in ("ieee_bound", "tf32x3"):
    q, k, v = torch.empty(1024, 64), torch.empty(1000, 64), torch.empty(1000, 1)
    plan = weft.plan_cascade("id,jd->ij, ij,je->ie", q, k, v, between=torch.exp, precision=case)
else:
    q, k, v = (torch.empty(1, 2, 1024, 128, dtype=torch.float16) for _ in range(3))
    plan = weft.plan_cascade("bhqd,bhkd->bhqk, bhqk,bhke->bhqe", q, k, v, indices={"i": "q", "j": "k"},
        between=lambda s, i, j: weft.softmax(torch.where(j <= i, s, -float("inf")), "k"))
plan.frame.products.product = q.dtype  # as on a GPU
values = dict(zip(plan.between.inputs[1:], plan.coordinates))
if case != "backward":
    launch = CascadeLaunch(plan.program, tile_of(plan.frame, 132, hopper=True))
    calls = launch.launches((q, k, v.mT), values, False).calls
else:
    launch = BackwardLaunch(plan.program, hopper=True)
    for node in (*launch.functions.stage.peaks, *(each.gives for each in launch.functions.sums)):
        values[node] = torch.empty(plan.frame.shape(plan.between.modes[node]))
    calls = launch.alone((q, k, v.mT), (True,) * 3, torch.empty_like(q), torch.empty_like(q), values).calls
(kernel, _, every), = (each for each in calls if each.kernel.is_gluon())
named = {each.name: every[each.name] for each in kernel.params if each.is_constexpr}
types = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32"}
given = {name: every[name] for name in kernel.arg_names if name not in named}
signature, constants, aligned = {}, dict(named), {}
for at, (name, value) in enumerate(given.items()):
    if isinstance(value, torch.Tensor) and not hasattr(value, "block_shape"):
        signature[name], aligned[at,] = "*" + types[value.dtype], [["tt.divisibility", 16]]
    elif hasattr(value, "block_shape"):
        signature[name] = f"tensordesc<{types[value.base.dtype]}{list(value.block_shape)},{value.layout!r}>"
    elif value == 1:
        signature[name], constants[name] = "constexpr", 1
    else:
        signature[name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, int) and value % 16 == 0:
            aligned[at,] = [["tt.divisibility", 16]]
signature |= dict.fromkeys(named, "constexpr")
made = compile(GluonASTSource(kernel, signature, constants, aligned), target=GPUTarget("cuda", 90, 32),
    options={"num_warps": launch.tile.warps})
ptx = made.asm["ptx"]
print(json.dumps([ptx.count(each) for each in sys.argv[2:]] + [made.metadata.shared]))
"""


@pytest.mark.slow
def test_hopper_multiplies_both_products_in_wgmma() -> None:
    """Each consumer: scores of the first tile, both products in two loops, the last product with C."""
    wgmma, loads, shared = compiled("forward", "wgmma.mma_async", "cp.async.bulk.tensor")
    assert wgmma == 2 * 3 * (128 // 16 + 128 // 16)
    assert loads > 0
    assert shared <= 227 * 1024


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "products"), [("ieee_bound", 6), ("tf32x3", 3)])
def test_hopper_multiplies_terms_in_wgmma(precision: str, products: int) -> None:
    """Each consumer: scores of the first tile, and of the next one in two loops."""
    wgmma, loads, shared = compiled(precision, "wgmma.mma_async", "cp.async.bulk.tensor")
    assert wgmma == 2 * 3 * products * (64 // 16)
    assert loads > 0
    assert shared <= 227 * 1024


@pytest.mark.slow
def test_gradients_on_hopper_take_five_products() -> None:
    """Each consumer in each of two loops: S, dP and dA from all of K, dB and dC from 64 rows; dA added by fours."""
    wgmma, added, shared = compiled("backward", "wgmma.mma_async", "add.v4.f32")
    assert wgmma == 2 * 2 * (3 * 128 // 16 + 2 * 64 // 16)
    assert added == 2 * 2 * 8
    assert shared <= 227 * 1024


def compiled(*arguments: str) -> list[int]:
    """What the code has of some words, and its bytes of shared memory."""
    command = [sys.executable, "-W", "ignore", "-c", COMPILED, *arguments]
    ran = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: list[int] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_a_checkpoint_pairs_what_a_kernel_saves_with_what_blocks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel takes over between a call and the checkpoint's second one."""
    monkeypatch.setattr("weft.cascades.plan.FEW", 0)
    validity.outdate()
    inputs = [tensor.requires_grad_() for tensor in operands()]
    (between,) = (each.function for each in RUN if each.name == "softmax")

    def call(backend: str) -> Any:
        return weft.cascade(EQUATION, *inputs, between=between, backend=backend)

    expected = torch.autograd.grad(call("reference").square().sum(), inputs)
    for backends in (["auto", "triton"], ["triton", "auto"], ["triton", "triton"]):
        turns = iter(backends)
        found = checkpoint(lambda: call(next(turns)), use_reentrant=False)  # noqa: B023
        torch.testing.assert_close(torch.autograd.grad(found.square().sum(), inputs), expected, rtol=1e-3, atol=1e-4)
