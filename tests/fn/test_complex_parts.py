"""Functions of complex values as functions of their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

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


@pytest.mark.parametrize(("fn", "word"), [(torch.tanh, "tanh"), (torch.sgn, "sgn")])
def test_what_has_no_form_in_real_values(fn: Callable[..., Any], word: str) -> None:
    with pytest.raises(UnsupportedError, match=word):
        _ = trace(fn, (torch.complex64,)).split_complex
