"""Functions of complex values as functions of their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft.errors import UnsupportedError
from weft.fn import trace

FUNCTIONS: list[Callable[..., Any]] = [
    lambda z: z + z,
    lambda z: z - 2 * z.conj(),
    lambda z: z * (1 + 2j) + 3,
    lambda z: 1j * z,
    lambda z: 2 - z,
    lambda z: z * z.real,
    lambda z: z / (z + 3 - 1j),
    lambda z: z / abs(z),
    lambda z: 1 / z,
    lambda z: z / 2j,
    lambda z: z**2,
    lambda z: z**-3,
    lambda z: z**0,
    torch.neg,
    torch.conj,
    torch.abs,
    torch.angle,
    torch.exp,
    torch.log,
    torch.sqrt,
    torch.square,
    torch.reciprocal,
    lambda z: (z * z.conj()).real,
    lambda z: z.conj().imag,
    lambda z: torch.complex(z.imag, z.real),
    lambda z: torch.polar(z.abs(), z.angle()),
    lambda z: torch.where(z.real > 0, z, -0.5 * z),
    lambda z: torch.where(z == z.conj(), z, 0),
    lambda z: torch.relu(z.real) + 1j * torch.tanh(z.imag),
    lambda z: torch.zeros_like(z) + 1j,
    lambda z: z.to(torch.complex128).exp().to(torch.complex64),
    lambda z: z != 1j,
    lambda z: z,
    *(torch.sin, torch.cos, torch.tan, torch.sinh, torch.cosh, torch.tanh, torch.sigmoid, torch.sgn, torch.rsqrt),
    *(torch.expm1, torch.log1p, torch.log2, torch.log10, torch.exp2, torch.atan, torch.atanh),
    lambda z: z**0.5,
    lambda z: z ** (1 - 2j),
    lambda z: 2**z,
    lambda z: z ** z.conj(),
    torch.nn.functional.silu,
]


def joined(parts: Any, shape: torch.Size) -> torch.Tensor:
    if isinstance(parts, tuple):
        return torch.complex(*(part.expand(shape).contiguous() for part in parts))
    return parts


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_agrees_with_torch(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    function = trace(fn, (dtype,))
    z = torch.randn(500, dtype=dtype, generator=torch.Generator().manual_seed(0))
    z[:6] = torch.tensor([0.5, 1j, -1j, -2, 1 + 1j, -3 - 4j])
    expected = function(z)
    found = joined(function.split_complex(z.real.contiguous(), z.imag.contiguous()), z.shape)
    assert found.dtype == expected.dtype == function.result
    if found.dtype is torch.bool:
        assert torch.equal(found, expected)
    else:
        wide = torch.promote_types(dtype, torch.complex64)
        torch.testing.assert_close(
            found.to(wide), expected.to(wide), rtol=2e-5 if dtype is torch.complex64 else 1e-12, atol=1e-6
        )
    assert function.split_complex.source.startswith("@triton.jit")


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_nothing_overflows_on_the_way(size: float) -> None:
    """Squares of these do not fit float32; quotients, roots and moduli do."""
    z = torch.tensor([3 + 4j, -4 + 3j, 1j], dtype=torch.complex64) * size
    for fn in (lambda z: z / (2 * z), torch.abs, torch.sqrt):
        function = trace(fn, (torch.complex64,))
        found = joined(function.split_complex(z.real.contiguous(), z.imag.contiguous()), z.shape)
        torch.testing.assert_close(found, fn(z), rtol=1e-6, atol=0)


def test_operands_of_both_kinds() -> None:
    """A real value beside the complex one stays one value."""
    function = trace(lambda z, scale: z * scale, (torch.complex64, torch.float32), names=("scale",))
    parts = function.split_complex
    assert parts.dtypes == (torch.float32,) * 3
    z, scale = torch.randn(9, dtype=torch.complex64), torch.randn(9)
    assert torch.equal(joined(parts(z.real.contiguous(), z.imag.contiguous(), scale), z.shape), z * scale)


def test_several_results() -> None:
    """Parts stand one after the other; what is real has one."""
    function = trace(lambda z, s: (z * s, z.real, s, z != z, 2j * s), (torch.complex64, torch.float64), names=("s",))
    z, s = torch.randn(9, dtype=torch.complex64), torch.randn(9, dtype=torch.float64)
    re, im, real, scale, unequal, zero, twice = function.split_complex(z.real.contiguous(), z.imag.contiguous(), s)
    expected = function(z, s)
    assert torch.equal(torch.complex(re, im), expected[0])
    assert torch.equal(real, expected[1])
    assert torch.equal(scale, expected[2])
    assert torch.equal(unequal, expected[3])
    assert torch.equal(torch.complex(zero.expand(9), twice.expand(9)), expected[4])
    dtypes = tuple(part.dtype for part in (re, im, real, scale, unequal, zero, twice))
    assert tuple(function.split_complex.result) == dtypes


@pytest.mark.parametrize(
    ("fn", "at", "right"),
    [
        (torch.tanh, [200 + 1j, -200 - 2j, 1e-20 + 1e-20j, 1e-4 + (torch.pi / 2) * 1j], None),
        (torch.tan, [1 + 200j, 2 - 200j, 1e-20j], None),
        (torch.sigmoid, [200 + 1j, -80 + 2j], None),
        (torch.sin, [200j, -300j], [complex(0, torch.inf), complex(0, -torch.inf)]),
        (torch.cosh, [200, -200], [complex(torch.inf, 0), complex(torch.inf, 0)]),
        (torch.expm1, [1e-12 + 1e-13j], None),
        (torch.log1p, [1e-12 + 1e-13j, -1e-9j], None),
    ],
)
def test_large_and_small_arguments(fn: Callable[..., Any], at: list[complex], right: list[complex] | None) -> None:
    """Against double precision, where nothing of this overflows or cancels, or what is known."""
    z = torch.tensor(at, dtype=torch.complex64)
    found = joined(trace(fn, (torch.complex64,)).split_complex(z.real.contiguous(), z.imag.contiguous()), z.shape)
    exact = torch.tensor(right) if right is not None else fn(z.to(torch.complex128))
    for own, wide in ((found.real, exact.real), (found.imag, exact.imag)):
        torch.testing.assert_close(own, wide.float(), rtol=2e-5, atol=1e-37)


@pytest.mark.parametrize("fn", [torch.tanh, torch.sin, torch.sigmoid])
def test_gradients_of_complex_functions_in_triton(fn: Callable[..., Any], triton_backend: Backend) -> None:
    device, generator = triton_backend.device, torch.Generator().manual_seed(3)
    a, b = (torch.randn(4, 4, dtype=torch.complex64, generator=generator).to(device) for _ in range(2))
    a.requires_grad_()
    found = weft.contract("mk,kn->mn", a, b, a_fn=fn, epilogue=fn, backend="triton")
    right = fn(fn(a) @ b)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
    grads = [torch.autograd.grad(value.abs().sum(), a)[0] for value in (found, right)]
    torch.testing.assert_close(*grads, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("fn", "word"), [(torch.asin, "asin"), (torch.acosh, "acosh")])
def test_what_has_no_form_in_real_values(fn: Callable[..., Any], word: str) -> None:
    with pytest.raises(UnsupportedError, match=word):
        _ = trace(fn, (torch.complex64,)).split_complex
