"""One careful permutation: elements of any bit pattern in, poison around the result, bits compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft.testing import poisoned

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
# Where every element of the result has an address of its own.
OUT_LAYOUTS = ("contiguous", "permuted", "padded", "strided", "offset")


def ready(backend: Backend) -> None:
    """Skip where the kernels of a backend are not there."""
    if backend.name == "triton":
        pytest.importorskip("weft.gpu.permute.family")


def any_bits(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int, *, layout: str = "contiguous", device: str = "cpu"
) -> torch.Tensor:
    """Elements of any bits, NaN of every kind among them, in poisoned memory laid out as `weft.testing` names it."""
    generator = torch.Generator().manual_seed(seed)
    tensor = poisoned(shape, dtype, layout=layout).tensor
    target = tensor
    if layout in ("expanded", "overlapping") and tensor.numel():
        reach = sum(stride * (extent - 1) for stride, extent in zip(tensor.stride(), shape, strict=True)) + 1
        target = tensor.as_strided((reach,), (1,), tensor.storage_offset())
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (target.numel() * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    target.copy_(raw.view(dtype).view(target.shape))
    return tensor if device == "cpu" else moved_to(tensor, device)


def moved_to(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The same values and strides on another device."""
    there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if tensor.numel():
        reach = sum(s * (e - 1) for s, e in zip(tensor.stride(), tensor.shape, strict=True)) + 1
        there.as_strided((reach,), (1,)).copy_(tensor.as_strided((reach,), (1,), tensor.storage_offset()))
    return there


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of all elements in order."""
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.cpu())
    return torch.view_as_real(dense).reshape(-1).view(torch.uint8) if dense.is_complex() else dense.reshape(-1).view(
        torch.uint8
    )  # fmt: skip


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(bits(x), bits(y))


def permuted(
    x: torch.Tensor,
    equation: Any,
    backend: Backend,
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype | None = None,
    layout: str = "contiguous",
    **options: Any,
) -> torch.Tensor:
    """The result of one call, written over poison; checks that nothing else was written."""
    before = bits(x.resolve_conj())
    guarded = poisoned(shape, dtype or x.dtype, layout=layout, device=backend.device)
    result = weft.permute(x, equation, out=guarded.tensor, backend=backend.name, **options)
    assert result is guarded.tensor
    guarded.check_guards()
    assert torch.equal(bits(x.resolve_conj()), before), "x was written"
    return guarded.tensor
