"""Matrices transposed in place on the GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from weft.kernels.launch import TRITON_TYPES, KernelLaunch
from weft.plan.schedule import Scalar, Target
from weft.plan.target import target_of
from weft.spec import Layout

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TILE = {1: 64, 2: 64, 4: 32, 8: 32}  # rows and columns of a tile, by bytes of an element


def square_(matrices: torch.Tensor, alpha: Scalar = 1.0) -> None:
    """Transpose square matrices (batch, n, n) where they lie, any strides, scaled by `alpha`; no workspace.

    Each element is read once and written once. Scaling complex matrices is not supported on the GPU yet.
    """
    dtype = matrices.dtype if alpha != 1 else _word(matrices.dtype)
    if dtype.itemsize < matrices.dtype.itemsize:  # 16-byte elements: two interleaved matrices of 8-byte words
        words = torch.view_as_real(matrices)
        square_(words[..., 0], alpha)
        square_(words[..., 1], alpha)
        return
    seen = matrices.view(dtype)
    target = target_of("triton", matrices.device)
    _square_launch(tuple(seen.shape), seen.stride(), Layout.of(seen), alpha != 1, target)(seen, alpha, 0)


@lru_cache(maxsize=512)
def _square_launch(
    shape: tuple[int, ...], strides: tuple[int, ...], layout: Layout, scaled: bool, target: Target
) -> KernelLaunch:
    from weft.kernels.transpose_kernel import square_kernel

    batch, n, _ = shape
    tile = _TILE[layout.dtype.itemsize]
    tiles = -(-n // tile)
    tiles += tiles % 2
    scale = torch.float64 if layout.dtype is torch.float64 else torch.float32
    if not layout.dtype.is_floating_point:
        scale = torch.int64
    constants: dict[str, Any] = {
        "N": n,
        "TILES": tiles,
        "TILE": tile,
        "STRIDES": strides,
        "SCALE": TRITON_TYPES[scale] if scaled else None,
        "WIDE": sum(stride * (extent + tile) for stride, extent in zip(strides, shape, strict=True)) >= 2**31,
    }
    programs = batch * (tiles // 2) * (tiles + 1)
    return KernelLaunch(square_kernel, (layout,), constants, scale.is_floating_point, target, programs, 4, stages=1)


def _word(dtype: torch.dtype) -> torch.dtype:
    return _WORDS[min(dtype.itemsize, 8)]
