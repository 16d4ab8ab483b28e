"""Kernels of tiles by Triton: on a GPU, or in Triton's interpreter where there is none.

Triton reads whether to interpret when a kernel is made, its own among them, so import all of Triton from here.
"""

from __future__ import annotations

import os
import sys

import torch

from weft.errors import UnsupportedError

if not torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ:
    if "triton" in sys.modules:
        raise ImportError("Triton was imported to compile, and there is no GPU: set TRITON_INTERPRET=1 beforehand")
    os.environ["TRITON_INTERPRET"] = "1"

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["TensorDescriptor", "grouped_tile", "need_aligned_rows", "need_dot", "tile_count", "tl", "triton"]

_TMA_BYTES = 16  # what the Tensor Memory Accelerator wants rows to be a multiple of


@triton.jit
def grouped_tile(number, rows, columns, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row and column of a tile: programs that run at once stand in `GROUP` rows, and share what the L2 holds."""
    in_group = GROUP * columns
    first = number // in_group * GROUP
    height = min(rows - first, GROUP)
    return first + number % in_group % height, number % in_group // height


def tile_count(extent: int, tile: int) -> int:
    """Tiles that cover `extent`."""
    return -(-extent // tile)


def need_dot(a: torch.Tensor) -> None:
    """Raises `UnsupportedError` for a type whose tiles cannot be multiplied here."""
    if a.dtype is torch.bfloat16 and not a.is_cuda:
        raise UnsupportedError("Triton's interpreter does not multiply bfloat16: run this rung on a GPU")


def need_aligned_rows(*tensors: torch.Tensor) -> None:
    """Raises `UnsupportedError` for a matrix that no tensor map describes."""
    for tensor in tensors:
        row = tensor.stride(0) * tensor.element_size()
        if row % _TMA_BYTES or tensor.stride(1) != 1 or 0 in tensor.shape:
            shape = " x ".join(map(str, tensor.shape))
            raise UnsupportedError(
                f"TMA loads rows of a multiple of {_TMA_BYTES} bytes; those of the {shape} matrix of {tensor.dtype} "
                f"lie {row} bytes apart"
            )
