"""The one product that torch takes from cuBLAS by a switch of the whole process only: float32 in TF32.

To turn `torch.backends.cuda.matmul.allow_tf32` on for a call would make other threads' products, the user's own among
them, less exact than they were asked for. Here the call itself says what it wants, on torch's own handle, with its
stream and workspace. Names and values are those of ``cublas_api.h``, the same in CUDA 11, 12 and 13.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_longlong, c_void_p
from functools import lru_cache
from threading import local
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.gpu.common.driver import aside_of_capture, note

COMPUTE_32F_FAST_TF32 = 77  # cublasComputeType_t
REAL_32F = 0  # cudaDataType_t
DEFAULT = -1  # cublasGemmAlgo_t
AS_IT_LIES, TRANSPOSED = 0, 1  # cublasOperation_t

_OPERAND = (c_void_p, c_int, c_int, c_longlong)  # address, type, leading dimension, elements from matrix to matrix
_ARGUMENTS = (
    c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p, *_OPERAND, *_OPERAND, c_void_p, *_OPERAND, c_int, c_int,
    c_int,
)  # fmt: skip


class CublasMatrix(NamedTuple):
    """A stack of matrices in cuBLAS's words, whose columns are contiguous: ours are transposed for it."""

    operation: int
    leading: int
    step: int  # from matrix to matrix


_ready = local()  # the devices that a thread has torch's handle for


def make_ready(device: torch.device) -> None:
    """Let torch make this thread's handle of the library, once. Made within a capture it would end that."""
    if device.type != "cuda":
        return
    known: set[torch.device] = _ready.__dict__.setdefault("devices", set())
    if device not in known:
        with aside_of_capture(), torch.cuda.device(device):
            torch.cuda.current_blas_handle()
        known.add(device)


@lru_cache
def multiply() -> Any:
    """`cublasGemmStridedBatchedEx` of the cuBLAS that torch works with; None where there is none."""
    if torch.version.cuda is None:
        return None
    try:
        call = ctypes.CDLL(f"libcublas.so.{torch.version.cuda.split('.')[0]}").cublasGemmStridedBatchedEx
    except (OSError, AttributeError):
        return None
    call.argtypes, call.restype = _ARGUMENTS, c_int
    return call


def seen(shape: tuple[int, ...], strides: tuple[int, ...]) -> CublasMatrix:
    """Matrices (batch, rows, columns) in cuBLAS's words; one of the two dims is contiguous."""
    _, rows, columns = shape
    step, down, along = strides
    if (along == 1 or columns == 1) and (down >= columns or rows == 1):
        return CublasMatrix(AS_IT_LIES, max(down, columns, 1), step)
    return CublasMatrix(TRANSPOSED, max(along, rows, 1), step)


def tf32(left: Tensor, right: Tensor, result: Tensor, alpha: float, beta: float) -> None:
    """result = alpha * left @ right + beta * result for stacks of float32 matrices, result contiguous along columns.

    Products are made in TF32 and added in float32. Raises `RuntimeError` where cuBLAS reports an error.
    """
    make_ready(result.device)
    note(None)
    batch, rows, columns = result.shape
    # What is contiguous along rows here is contiguous along columns there: the transpose is computed, from the right.
    b, a, d = (seen(x.shape, x.stride()) for x in (left, right, result))
    with torch.cuda.device(result.device):
        status = multiply()(
            torch.cuda.current_blas_handle(), a.operation, b.operation, columns, rows, left.shape[2],
            byref(c_float(alpha)), right.data_ptr(), REAL_32F, a.leading, a.step,
            left.data_ptr(), REAL_32F, b.leading, b.step, byref(c_float(beta)),
            result.data_ptr(), REAL_32F, d.leading, d.step, batch, COMPUTE_32F_FAST_TF32, DEFAULT,
        )  # fmt: skip
    if status != 0:
        raise RuntimeError(f"cuBLAS returned status {status} for a product of {rows}x{left.shape[2]}x{columns}")
