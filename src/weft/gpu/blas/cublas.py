"""Products by cuBLAS past torch, whose operations take the host longer than the launch does; and the one that torch
makes by a switch of the whole process only, float32 in TF32.

To turn `torch.backends.cuda.matmul.allow_tf32` on for a call would make other threads' products, the user's own among
them, less exact than they were asked for. Here the call itself says what it wants, on torch's own handle, with its
stream and workspace. Names and values are those of ``cublas_api.h``, the same in CUDA 11, 12 and 13.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_double, c_float, c_int, c_longlong, c_void_p
from functools import lru_cache
from threading import local
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.gpu.common.driver import aside_of_capture

COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77  # cublasComputeType_t
REAL_32F = 0  # cudaDataType_t
_SINGLES = COMPUTE_32F, (c_float * 2)(1, 0), (c_float * 2)(0, 0)
_DOUBLES = COMPUTE_64F, (c_double * 2)(1, 0), (c_double * 2)(0, 0)
#: By the types of factors and result, of products that are summed in the type that is stored: cudaDataType_t of both,
#: cublasComputeType_t, and 1 and 0 in it.
PLAIN_TYPES: dict[tuple[torch.dtype, torch.dtype], tuple[int, int, int, Any, Any]] = {
    (torch.float32, torch.float32): (REAL_32F, REAL_32F, *_SINGLES),
    (torch.float16, torch.float32): (2, REAL_32F, *_SINGLES),
    (torch.bfloat16, torch.float32): (14, REAL_32F, *_SINGLES),
    (torch.float64, torch.float64): (1, 1, *_DOUBLES),
    (torch.complex64, torch.complex64): (4, 4, *_SINGLES),
    (torch.complex128, torch.complex128): (5, 5, *_DOUBLES),
}
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


MatrixView: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides

_ready = local()  # the devices that a thread has torch's handle for, by their numbers


def make_ready(device: torch.device) -> None:
    """Let torch make this thread's handle of the library, once. Made within a capture it would end that."""
    if device.type != "cuda":
        return
    known: set[int] = _ready.__dict__.setdefault("ordinals", set())
    ordinal = device.index if device.index is not None else torch.cuda.current_device()
    if ordinal not in known:
        with aside_of_capture(), torch.cuda.device(ordinal):
            torch.cuda.current_blas_handle()
        known.add(ordinal)


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


class Product:
    """An IEEE product of matrices whose shapes are known: a call takes addresses alone, and launches on torch's stream.

    D lies along its columns; the transposes are multiplied, from the right, as cuBLAS's matrices lie along their rows.
    """

    def __init__(
        self, left: MatrixView, right: MatrixView, result: MatrixView, dtypes: tuple[torch.dtype, torch.dtype],
        ordinal: int,
    ) -> None:  # fmt: skip
        factors, kind, compute, one, zero = PLAIN_TYPES[dtypes]
        self._call, self._ordinal, self._kept = multiply(), ordinal, (one, zero)
        b, a, d = (seen(*_stacked(each)) for each in (left, right, result))
        (batch, rows, columns), depth = _stacked(result)[0], left[0][-1]
        self._sizes = a.operation, b.operation, columns, rows, depth, byref(one)
        self._of_a, self._of_b = (factors, a.leading, a.step), (factors, b.leading, b.step, byref(zero))
        self._rest = kind, d.leading, d.step, batch, compute, DEFAULT
        self._text = f"{rows}x{depth}x{columns}"

    @classmethod
    def of(
        cls, left: MatrixView, right: MatrixView, result: MatrixView, dtypes: tuple[torch.dtype, torch.dtype],
        ordinal: int,
    ) -> Product | None:  # fmt: skip
        """The product of matrices, or stacks of them, of these shapes and strides; `dtypes`: of factors and result.

        None where torch makes it.
        """
        (*_, columns), (*_, along) = result
        if dtypes not in PLAIN_TYPES or (along != 1 and columns != 1) or multiply() is None:
            return None
        if max(max(shape) for shape, _ in (left, right, result)) >= 2**31:
            return None
        return cls(left, right, result, dtypes, ordinal)

    def __call__(self, left: int, right: int, result: int) -> None:
        if torch._C._cuda_getDevice() == self._ordinal:
            self._run(left, right, result)
        else:
            with torch.cuda.device(self._ordinal):
                self._run(left, right, result)

    def _run(self, left: int, right: int, result: int) -> None:
        if self._ordinal not in _ready.__dict__.get("ordinals", ()):
            make_ready(torch.device("cuda", self._ordinal))
        handle = torch._C._cuda_getCurrentBlasHandle()
        status = self._call(
            handle, *self._sizes, right, *self._of_a, left, *self._of_b, result, *self._rest
        )  # fmt: skip
        if status != 0:
            raise RuntimeError(f"cuBLAS returned status {status} for a product of {self._text}")


def _stacked(view: MatrixView) -> MatrixView:
    """A view as a stack of matrices."""
    shape, strides = view
    return view if len(shape) == 3 else ((1, *shape), (0, *strides))


def tf32(left: Tensor, right: Tensor, result: Tensor, alpha: float, beta: float) -> None:
    """result = alpha * left @ right + beta * result for stacks of float32 matrices, result contiguous along columns.

    Products are made in TF32 and added in float32. Raises `RuntimeError` where cuBLAS reports an error.
    """
    make_ready(result.device)
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
