"""The emitted Triton functions, run for real (in the interpreter, or on a GPU with -m gpu) against float64."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fn.function_cases import CASES, Case
from weft.fn import trace

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

N = 512
DEVICES = [pytest.param("cpu", id="interpreter"), pytest.param("cuda", id="gpu", marks=pytest.mark.gpu)]
RUNS = [pytest.param(case, dtype, id=f"{case}-{dtype}") for case in CASES for dtype in case.dtypes]


@triton.jit
def _unary(x, out, FN: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.reshape(FN(tl.load(x + i)), (SIZE,)))


@triton.jit
def _binary(x, y, out, FN: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.reshape(FN(tl.load(x + i), tl.load(y + i)), (SIZE,)))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """NumPy remarks on every overflow and NaN that the interpreter meets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def run(function: Any, *tensors: torch.Tensor, device: str = "cpu") -> torch.Tensor:
    """The function's block of results, each lane stored by a kernel that poisoned nothing: all are written."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    out = torch.full((N,), 77, device=device).to(function.result)
    kernel = _unary if len(tensors) == 1 else _binary
    options = {"enable_reflect_ftz": False} if device == "cuda" else {}  # as weft launches its own kernels
    kernel[(1,)](*(tensor.to(device) for tensor in tensors), out, function.jit, N, **options)
    return out.cpu()


def in_double(case: Case, inputs: list[torch.Tensor], eager: torch.Tensor) -> torch.Tensor:
    """The function of the same elements in float64; where the dtype is part of the function, what torch gives."""
    if not inputs[0].dtype.is_floating_point:
        return eager.double()
    result = (case.truth or case.fn)(*(tensor.double() for tensor in inputs))
    return result.double() if isinstance(result, torch.Tensor) else eager.double()


@pytest.mark.one_of(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("case", "dtype"), RUNS)
def test_every_operation_against_double_precision(case: Case, dtype: torch.dtype, device: str) -> None:
    """Special values included: signed zeros, subnormals, infinities, NaN, the largest numbers."""
    function, inputs = case.trace(dtype), case.inputs(dtype)
    out, eager = run(function, *inputs, device=device), function(*inputs)
    assert out.dtype == eager.dtype == function.result
    if not function.result.is_floating_point:
        torch.testing.assert_close(out, eager, rtol=0, atol=0)
        return
    truth = in_double(case, inputs, eager)
    info = torch.finfo(function.result)
    terms = torch.stack([truth.abs()] + [x.double().abs() for x in inputs if case.cancels]).nan_to_num(0).amax(0)
    ulp = (terms * info.eps).clamp(min=info.tiny * info.eps)
    ulps = 1 if dtype == torch.float16 else 4 if device == "cpu" else 8
    bound = ulps * ulp + 2 * (eager.double() - truth).abs().nan_to_num(0)
    close = (out.double() - truth).abs() <= bound
    same = (out == eager) | (out.double() == truth) | (out.isnan() & (eager.isnan() | truth.isnan()))
    unseen = torch.zeros(N, dtype=torch.bool)
    for x in inputs:
        unseen |= x.abs() > case.reach
    if "bfloat16" in f"{dtype} {case}" and device == "cpu":
        # The interpreter truncates to bfloat16 and gets its subnormals wrong.
        close |= (out.double() - truth).abs() <= torch.finfo(torch.bfloat16).eps * truth.abs() * 1.01
        unseen |= (truth.abs() < 2**-120) | (truth.abs() > 3.39e38)
        unseen |= torch.stack([x.abs() < 2**-120 for x in inputs]).any(0)
    elif device == "cuda":  # subnormals of float32 are flushed, also those that a factor x brings back
        tiny = torch.finfo(torch.float32).tiny
        factor = torch.stack([x.double().abs() for x in inputs]).nan_to_num(0, 0).amax(0)
        close |= (out.double() - truth).abs() <= tiny * factor.clamp(max=2**7)
        unseen |= truth.abs() < tiny
        unseen |= torch.stack([x.abs() < torch.finfo(torch.float32).tiny for x in inputs]).any(0)
    wrong = ~(close | same | unseen)
    assert not wrong.any(), [
        f"f{tuple(x[i].item() for x in inputs)} = {out[i].item()}, torch {eager[i].item()}, truth {truth[i].item()}"
        for i in wrong.nonzero().flatten()[:4].tolist()
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_negative_zero_keeps_its_sign(device: str) -> None:
    x = torch.zeros(N)
    x[0] = -0.0
    flipped = run(trace(lambda x: -x, (torch.float32,)), x, device=device)
    assert torch.equal(torch.signbit(flipped), ~torch.signbit(x))
    constant = run(trace(lambda x: torch.where(x == 0, -0.0, x), (torch.float32,)), x, device=device)
    assert torch.signbit(constant).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_extrema_with_negative_zero(dtype: torch.dtype, device: str) -> None:
    x = torch.linspace(-2, 2, N).to(dtype)
    clamped = run(trace(lambda x: torch.maximum(x, torch.full_like(x, -0.0)), (dtype,)), x, device=device)
    assert torch.equal(clamped, x.clamp(min=0))


@pytest.mark.parametrize("device", DEVICES)
def test_a_slope_that_single_precision_does_not_hold_leaves_infinity(device: str) -> None:
    x = torch.full((N,), float("inf"))
    assert torch.equal(
        run(trace(lambda x: torch.nn.functional.leaky_relu(x, 1e-50), (torch.float32,)), x, device=device), x
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["maximum", "minimum", "relu", "clamp"])
def test_extrema_hand_nan_on(name: str, device: str) -> None:
    """Triton's maximum returns NaN in the interpreter and the number on a GPU; torch always returns NaN."""
    fn = {
        "maximum": lambda x, y: torch.maximum(x, y),
        "minimum": lambda x, y: torch.minimum(x, y),
        "relu": lambda x, y: torch.relu(x) + torch.relu(y),
        "clamp": lambda x, y: torch.clamp(x, -1, 1) + torch.clamp(x, min=y),
    }[name]
    x, y = torch.ones(N), torch.ones(N)
    x[::3], y[1::3] = torch.nan, torch.nan
    out = run(trace(fn, (torch.float32,) * 2, names=("y",)), x, y, device=device)
    assert torch.equal(out.isnan(), x.isnan() | y.isnan())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e-320, 1.0000000000000002, -5e-324, 1e300, 2.0**-1074])
def test_float64_constants_are_not_rounded_to_float32(number: float, device: str) -> None:
    x = torch.ones(N, dtype=torch.float64)
    x[::2] = -1
    out = run(trace(lambda x: torch.where(x > 0, x * 0 + number, number), (torch.float64,)), x, device=device)
    assert (out == number).all()


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_is_rounded_once(device: str) -> None:
    """Inside an emitted function fp16 is float32: 60000 + 60000 does not overflow on the way to 60000."""
    x = torch.full((N,), 60000.0, dtype=torch.float16)
    out = run(trace(lambda x: (x + x) * 0.5, (torch.float16,)), x, device=device)
    assert torch.equal(out, x)


@pytest.mark.parametrize("device", DEVICES)
def test_an_explicit_cast_rounds_where_it_stands(device: str) -> None:
    x = torch.full((N,), 1 + 2**-12)
    out = run(trace(lambda x: x.half().float() - 1, (torch.float32,)), x, device=device)
    assert (out == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_comparison_with_a_number_rounds_the_number_as_torch_does(device: str) -> None:
    x = torch.full((N,), 0.1, dtype=torch.float16)
    fn = trace(lambda x: torch.where(x >= 0.1, 1.0, 0.0), (torch.float16,))
    assert torch.equal(run(fn, x, device=device), fn(x))
    assert fn(x)[0] == 1


@triton.jit
def _pair(x, first, second, FN: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    a, b = FN(tl.load(x + i))
    tl.store(first + i, a)
    tl.store(second + i, b)


@pytest.mark.parametrize("device", DEVICES)
def test_a_tuple_of_results(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    function = trace(lambda x: (x * 2, x > 0), (torch.float16,))
    assert function.result == (torch.float16, torch.bool)
    x = torch.randn(N, dtype=torch.float16, device=device)
    doubled, positive = torch.empty_like(x), torch.zeros(N, dtype=torch.bool, device=device)
    _pair[(1,)](x, doubled, positive, function.jit, N)
    assert torch.equal(doubled, x * 2)
    assert torch.equal(positive, x > 0)


@triton.jit
def _tile(x, bias, out, FN: tl.constexpr, M: tl.constexpr, SIZE: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, SIZE)[None, :]
    tl.store(out + i * SIZE + j, tl.reshape(FN(tl.load(x + i * SIZE + j), tl.load(bias + j)), (M, SIZE)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fn", [lambda x, b: x + b, lambda x, b: b * 2, lambda x, b: x * 2, lambda x, b: 3.5])
def test_operands_are_broadcast_whichever_the_function_reads(fn: Any, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    function = trace(fn, (torch.float32, torch.float32), names=("b",))
    x, b = torch.randn(4, 16, device=device), torch.randn(16, device=device)
    out = torch.full_like(x, torch.nan)
    _tile[(1,)](x, b, out, function.jit, 4, 16)
    assert torch.equal(out.cpu(), function(x.cpu(), b.cpu()))
