"""Activations by few instructions: how exact they are, densely over their ranges, and that they are the ones in use."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.fn import Pointwise, trace

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from weft.fn.triton import device_math  # noqa: E402  (needs Triton)

N = 1 << 15
DEVICES = [pytest.param("cpu", id="interpreter"), pytest.param("cuda", id="gpu", marks=pytest.mark.gpu)]
HALF = [torch.float16, torch.bfloat16]


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * torch.special.erfc(-x / math.sqrt(2))


def gelu_by_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "elu": (F.elu, F.elu),
    "selu": (F.selu, F.selu),
    "celu": (lambda x: F.celu(x, alpha=0.7), lambda x: F.celu(x, alpha=0.7)),
    "elu halved": (lambda x: F.elu(x, 0.5), lambda x: F.elu(x, 0.5)),
    "celu upside down": (lambda x: F.celu(x, alpha=-0.7), lambda x: F.celu(x, alpha=-0.7)),
    "leaky_relu": (F.leaky_relu, F.leaky_relu),
    "expm1": (torch.expm1, torch.expm1),
    "sigmoid": (torch.sigmoid, torch.sigmoid),
    "silu": (F.silu, F.silu),
    "tanh": (torch.tanh, torch.tanh),
    "gelu": (F.gelu, gelu),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), gelu_by_tanh),
}


@triton.jit
def _apply(x, out, FN: tl.constexpr, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + i, FN(tl.load(x + i)))


def launched(function: Pointwise, x: torch.Tensor, device: str) -> torch.Tensor:
    """The emitted function's results, on the device."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    there = x.to(device)
    out = torch.full_like(there, torch.nan)
    options = {"enable_reflect_ftz": False} if device == "cuda" else {}
    _apply[(x.numel() // 4096,)](there, out, function.jit, 4096, **options)
    return out


def both(name: str, dtype: torch.dtype, low: float, high: float, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The emitted function's results and the function in float64, on even steps."""
    fn, truth = FUNCTIONS[name]
    x = torch.linspace(low, high, N, dtype=torch.float64).to(dtype)
    return launched(trace(fn, (dtype,)), x, device).cpu().double(), truth(x.double())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "low", "high", "bits"), [
    ("elu", -20.0, 3.0, 21.5),
    ("selu", -20.0, 3.0, 21.0),
    ("celu", -20.0, 3.0, 21.5),
    ("elu halved", -20.0, 3.0, 21.5),
    ("celu upside down", -2.0, 3.0, 21.0),
    ("expm1", -20.0, 80.0, 22.0),
    ("sigmoid", -80.0, 20.0, 21.5),
    ("silu", -80.0, 20.0, 21.0),
    ("tanh", -20.0, 20.0, 21.0),
    ("tanh", -1.0, 1.0, 21.0),
    ("tanh", -1e-6, 1e-6, 22.0),
    ("gelu", -1.0, 6.0, 20.5),
    ("gelu", -3.0, -1.0, 18.5),
    ("gelu", -6.0, -3.0, 17.0),
    ("gelu tanh", -1.0, 6.0, 20.5),
    ("gelu tanh", -9.0, -1.0, 16.0),
])  # fmt: skip
def test_relative_error_in_single_precision(name: str, low: float, high: float, bits: float, device: str) -> None:
    out, truth = both(name, torch.float32, low, high, device)
    assert ((out - truth).abs() <= 2**-bits * truth.abs()).all(), ((out - truth).abs() / truth.abs()).max()


@pytest.mark.parametrize("device", DEVICES)
def test_far_in_the_negative_tail_a_gelu_is_next_to_nothing(device: str) -> None:
    out, truth = both("gelu", torch.float32, -90.0, -6.0, device)
    assert ((out - truth).abs() <= 1e-12).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALF, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["elu", "expm1", "sigmoid", "tanh", "gelu", "gelu tanh"])
def test_a_half_result_is_off_by_three_quarters_of_a_unit_at_most(name: str, dtype: torch.dtype, device: str) -> None:
    """Half a unit for rounding, a quarter for the value that is rounded."""
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("the interpreter truncates to bfloat16")
    out, truth = both(name, dtype, -6.0, 6.0, device)
    unit = torch.finfo(dtype).eps * 2 ** truth.abs().clamp(min=torch.finfo(dtype).tiny).log2().floor()
    assert ((out - truth).abs() <= 0.75 * unit).all(), ((out - truth).abs() / unit).max()


def test_an_elu_knows_that_its_exponential_sees_nothing_positive() -> None:
    for fn in (F.elu, F.selu, lambda x: F.celu(x, alpha=0.7)):
        source = trace(fn, (torch.float32,)).source
        assert source.count("device_math.exp2") == 1
    for fn in (torch.expm1, lambda x: F.celu(x, alpha=-0.7)):
        assert "device_math" not in trace(fn, (torch.float32,)).source


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy remarks on what overflows in the interpreter
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALF, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["elu", "selu", "sigmoid", "silu", "tanh", "leaky_relu"])
def test_every_half_value(name: str, dtype: torch.dtype, device: str) -> None:
    """Subnormals, infinities and NaN included."""
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("the interpreter truncates to bfloat16")
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    out, eager = launched(trace(FUNCTIONS[name][0], (dtype,)), x, device), FUNCTIONS[name][0](x).double()
    out, truth = out.cpu().double(), FUNCTIONS[name][1](x.double())
    info = torch.finfo(dtype)
    finite = truth.abs() <= info.max
    assert torch.equal(out[~finite].nan_to_num(0.5), eager[~finite].nan_to_num(0.5))
    unit = info.eps * 2 ** truth[finite].abs().clamp(min=info.tiny).log2().floor()
    error = (out - truth)[finite].abs()
    # What float32 has only as a subnormal may be zero, and so is what a factor x brings back from there.
    lost = torch.finfo(torch.float32).tiny * x.double()[finite].abs().clamp(1, 2**7)
    assert ((error <= 0.75 * unit) | (error <= lost)).all(), (error / unit).max()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy remarks on what overflows in the interpreter
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("slope", [0.01, 0.25, 1.0, 1.7, 0.0, -0.5])
def test_a_leaky_relu_of_half_precision_is_torchs(slope: float, device: str) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    out = launched(trace(lambda x: F.leaky_relu(x, slope), (torch.float16,)), x, device)
    torch.testing.assert_close(out.cpu(), F.leaky_relu(x, slope), rtol=0, atol=0, equal_nan=True)


def test_an_elu_of_half_values_takes_them_two_at_a_time() -> None:
    for dtype in HALF:
        for fn in (F.elu, torch.nn.ELU(), lambda x: F.elu(x.clone())):
            source = trace(fn, (dtype,)).source
            assert "device_math.elu" in source
            assert "float32" not in source
        # Factors and further steps are computed in single precision, and so is what has been computed there.
        for fn in (F.selu, lambda x: F.elu(x) * 2, lambda x: F.elu(x + 1)):
            assert "device_math.elu" not in trace(fn, (dtype,)).source


@pytest.mark.parametrize("dtype", HALF, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_an_elu_of_every_half_value_bears_an_exponential_that_is_off(dtype: torch.dtype, sign: int) -> None:
    """Its instructions in float64, with the constants that stand there: exponentials are off by 8.3e-8 near 1, the most
    that was seen on an H200, and by 2^-22 of their value elsewhere, always to one side."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).double()
    x = x[x.isfinite()]
    factor, bound = (_constant(f"{name}.f32 x, (?:x, )?0f(\\w+)") for name in ("mul.rn", "sub.rn.sat"))
    exact, grain = torch.exp2((x * factor).float().double()), 2.0**-24
    off = torch.where(x.abs() < 2**-8, 8.3e-8, 2**-22 * exact)
    near = torch.ceil((exact - off) / grain) if sign < 0 else torch.floor((exact + off) / grain)
    exponential = torch.where(exact < 1, (near * grain).clamp(max=1), exact)
    below = (bound - exponential).float().clamp(0, 1).to(dtype).double()
    info, truth = torch.finfo(dtype), F.elu(x)
    unit = info.eps * 2 ** truth.abs().clamp(min=info.tiny).log2().floor()
    error = (torch.maximum(x, -below) - truth).abs() / unit
    assert (error <= 0.75).all(), (error.max(), x[error.argmax()])


def _constant(pattern: str) -> float:
    """A number of the ELU's instructions."""
    (bits,) = re.findall(pattern, device_math._TWO)
    return struct.unpack(">f", bytes.fromhex(bits))[0]


def test_a_tanh_has_no_branch() -> None:
    for dtype in (torch.float32, *HALF):
        assert "libdevice" not in trace(torch.tanh, (dtype,)).source
    out = launched(trace(torch.tanh, (torch.float32,)), torch.tensor([-0.0] * 4096), "cpu")
    assert out.signbit().all()


def test_what_picks_among_half_values_computes_in_half() -> None:
    for fn in (torch.relu, F.relu6, lambda x: torch.clamp(x, -0.5, 2).clamp(max=1), lambda x: torch.relu(F.elu(x))):
        assert "float32" not in trace(fn, (torch.float16,)).source
    # One of them may have been computed; it is rounded first.
    assert "tl.float16)" in trace(F.leaky_relu, (torch.float16,)).source.partition("tl.maximum")[0]
    assert "tl.float16)" not in trace(lambda x: (x + 1).maximum(x * 3), (torch.float16,)).source.partition("maximum")[0]
    # 0.1 is no float16, the sum is rounded, and bfloat16 has no such instructions everywhere.
    for fn in (lambda x: x.clamp(min=0.1), lambda x: torch.relu(x) + x, lambda x: torch.relu(x) * 3):
        assert "float32" in trace(fn, (torch.float16,)).source
    assert "float32" in trace(torch.relu, (torch.bfloat16,)).source
