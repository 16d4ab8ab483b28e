"""The launch of the kernel: output tiles as large as the dims, within what registers hold."""

from __future__ import annotations

import torch
import triton

from weft.errors import UnsupportedError
from weft.fn.algebra import TracedAlgebra
from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.launch import TRITON_TYPES
from weft.gpu.selection.kernel import selection_kernel
from weft.spec.dtypes import dtype_name

LONGEST, SHORTEST = 64, 16  # of a tile: 64 x 64 values and indices are 96 registers a thread of 128


def select(
    a: torch.Tensor, b: torch.Tensor, algebra: TracedAlgebra, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 indices (batch, m, n) of contiguous `a` (batch, k, m) and `b` (batch, k, n), none of them empty.

    `UnsupportedError` for types that Triton has not.
    """
    (batch, k, m), n = a.shape, b.shape[2]
    if a.dtype not in TRITON_TYPES:
        raise UnsupportedError(f"{dtype_name(a.dtype)} has no Triton type here")
    values = torch.empty((batch, m, n), dtype=a.dtype, device=a.device)
    places = torch.empty((batch, m, n), dtype=torch.int64, device=a.device)
    tile_m, tile_n = (max(SHORTEST, min(LONGEST, power_of_two(extent))) for extent in (m, n))
    grid = (batch * triton.cdiv(m, tile_m) * triton.cdiv(n, tile_n),)
    with torch.cuda.device(a.device if a.device.type == "cuda" else -1):
        selection_kernel[grid](
            a, b, values, places, m, n, k, algebra.combine.jit, largest, TRITON_TYPES[a.dtype].meant, tile_m, tile_n,
            num_warps=4,
        )  # fmt: skip
    return values, places
