"""Matrix products as they lie, by cuBLAS: schedules for a description, and the launch.

One call through torch: `mm`, or `bmm` over a batch mode or over one mode of m or n.

TF32 of float32 is the one product that torch takes from cuBLAS by a switch of the whole process only. To turn
`torch.backends.cuda.matmul.allow_tf32` on for a call would make other threads' products, the user's own among them,
less exact than they were asked for. So it is asked for call by call, on torch's own handle, with its stream and
workspace. Names and values are those of ``cublas_api.h``, the same in CUDA 11, 12 and 13.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from ctypes import byref, c_float, c_int, c_longlong, c_void_p
from functools import lru_cache, partial
from threading import local
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.gpu.blas.model import NAME, BlasSchedule, extent, forms, misfit, predict, schedules
from weft.gpu.common.direct import NotedProduct, note
from weft.gpu.common.driver import aside_of_capture
from weft.machine.exactness import guarded
from weft.planner.coefficients import fitted
from weft.planner.schedule import AuxTensors, Launch, Make, NewTensor, ResourceError, Scalar, Target
from weft.spec import Contraction, Layout
from weft.spec.dtypes import dtype_name

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


def cublas_matrix(shape: tuple[int, ...], strides: tuple[int, ...]) -> CublasMatrix:
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
    b, a, d = (cublas_matrix(x.shape, x.stride()) for x in (left, right, result))
    with torch.cuda.device(result.device):
        status = multiply()(
            torch.cuda.current_blas_handle(), a.operation, b.operation, columns, rows, left.shape[2],
            byref(c_float(alpha)), right.data_ptr(), REAL_32F, a.leading, a.step,
            left.data_ptr(), REAL_32F, b.leading, b.step, byref(c_float(beta)),
            result.data_ptr(), REAL_32F, d.leading, d.step, batch, COMPUTE_32F_FAST_TF32, DEFAULT,
        )  # fmt: skip
    if status != 0:
        raise RuntimeError(f"cuBLAS returned status {status} for a product of {rows}x{left.shape[2]}x{columns}")


class BlasLaunch:
    """The call of the library, with every tensor as the matrix that it is."""

    def __init__(self, contraction: Contraction, schedule: BlasSchedule) -> None:
        self._conjugate = contraction.conjugate_a, contraction.conjugate_b
        batch = schedule.form.batch is not None
        self.swap_ab = schedule.swap_ab
        multiply: Any = torch.bmm if batch else torch.mm
        add: Any = torch.baddbmm if batch else torch.addmm
        product, result = contraction.arithmetic.product, contraction.d.dtype
        if result != product:
            multiply, add = (partial(call, out_dtype=result) for call in (multiply, add))
        self._multiply, self._add = (guarded(call, product, result, "cuda") for call in (multiply, add))
        self._left, self._right, self._addend, self._result = _views(schedule, batch)
        factors = (contraction.b, contraction.a) if schedule.swap_ab else (contraction.a, contraction.b)
        self._given = list(map(_is_seen, factors, (self._left, self._right)))
        self._returns = not any(self._conjugate) and _is_seen(contraction.d, self._result)

    def maker(self, new: NewTensor) -> Make | None:
        """The call of the library that returns D, of operands that lie as described."""
        return self._made if self._returns else None

    def _made(self, a: Tensor, b: Tensor, *aux: Tensor | None) -> Tensor:
        make_ready(a.device)
        left, right = (b, a) if self.swap_ab else (a, b)
        if not self._given[0]:
            left = left.as_strided(*self._left)
        if not self._given[1]:
            right = right.as_strided(*self._right)
        found: Tensor = self._multiply(left, right)
        return found

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        make_ready(d.device)
        of_a, of_b = self._conjugate
        a, b = a.conj() if of_a else a, b.conj() if of_b else b
        left, right = (b, a) if self.swap_ab else (a, b)
        left, right, result = _seen(left, self._left), _seen(right, self._right), _seen(d, self._result)
        plain = c is None and alpha == 1
        note(NotedProduct(self._multiply, (left, right, result)) if plain else None)
        if plain:
            self._multiply(left, right, out=result)
        else:
            addend = _seen(c, self._addend) if c is not None else result
            self._add(addend, left, right, beta=beta if c is not None else 0, alpha=alpha, out=result)


class Tf32Launch:
    """The launch in TF32, by the one call that says so itself."""

    def __init__(self, contraction: Contraction, schedule: BlasSchedule) -> None:
        self.swap_ab = schedule.swap_ab
        self._left, self._right, self._addend, self._result = _views(schedule, True)

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        left, right = (b, a) if self.swap_ab else (a, b)
        result = _seen(d, self._result)
        if c is not None and c.data_ptr() != d.data_ptr():
            result.copy_(_seen(c, self._addend))
        added = float(beta.real) if c is not None else 0.0
        tf32(_seen(left, self._left), _seen(right, self._right), result, float(alpha.real), added)


MatrixView: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides


def _seen(tensor: Tensor, view: MatrixView) -> Tensor:
    """The tensor as the library sees it; mostly it is that already."""
    shape, strides = view
    return tensor if tensor.shape == shape and tensor.stride() == strides else tensor.as_strided(shape, strides)


def _is_seen(layout: Layout, view: MatrixView) -> bool:
    """Whether tensors of a layout are what the library sees."""
    return (layout.shape, layout.strides) == view


def _views(schedule: BlasSchedule, batch: bool) -> Iterator[MatrixView]:
    """Shape and strides of both factors, C and D as the library sees them, in a `batch` or without; a missing mode has
    extent 1."""
    outer, rows, columns, depth = schedule.form
    left, right = (0, 1)
    if schedule.swap_ab:
        rows, columns, left, right = columns, rows, right, left
    of_result = (rows, columns)
    for own, tensor in (((rows, depth), left), ((depth, columns), right), (of_result, 2), (of_result, 3)):
        modes = (outer, *own) if batch else own
        shape = tuple(extent(mode) for mode in modes)
        run = math.prod(shape)
        yield shape, tuple(mode.strides[tensor] if mode is not None else run for mode in modes)


__all__ = ["NAME", "build", "predict", "schedules", "supports"]


def supports(contraction: Contraction, target: Target) -> str | None:
    arithmetic = contraction.arithmetic
    if target.kind not in ("cuda", "hip"):
        return "only a GPU's library is called"
    if contraction.aux or contraction.algebra is not None:
        return "the library takes neither operands of functions nor an algebra"
    if any((contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)):
        return "a function is fused, which the library cannot do"
    if arithmetic.precision == "tf32":
        if arithmetic.product is not torch.float32 or target.kind != "cuda":
            return "the library is called for TF32 products of float32 on NVIDIA GPUs only"
    elif arithmetic.precision != "ieee":
        return f"the library makes no {arithmetic.precision} products"
    if {contraction.a.dtype, contraction.b.dtype} != {arithmetic.product}:
        return "the library is called for products in the storage type only"
    known = dtype_name(arithmetic.product) in fitted(NAME).table("rates")
    if not known or arithmetic.accumulate is not _accumulator(arithmetic.product):
        return f"{dtype_name(arithmetic.product)} in {dtype_name(arithmetic.accumulate)} is not asked of the library"
    if contraction.d.dtype != arithmetic.product and not _widens(contraction):
        return f"the library is not asked for {dtype_name(contraction.d.dtype)} of {dtype_name(arithmetic.product)}"
    if contraction.c is not None and contraction.c.dtype != contraction.d.dtype:
        return "C has another type than D"
    if contraction.c is not None and contraction.d.dtype.itemsize == 2:
        return "the library rounds sums to half precision before it adds C"  # seen on an H200
    if 0 in (contraction.m, contraction.n, contraction.k, contraction.batch):
        return "a mode is empty"
    if any(number >= 2**31 for mode in contraction.modes for number in (mode.extent, *mode.strides)):
        return "an extent or stride is past the library's 32-bit integers"
    found = list(forms(contraction))
    if not found:
        return "the modes of some role do not lie together: this is no matrix product as it lies"
    reasons = [misfit(contraction, form) for form in found]
    return None if None in reasons else reasons[0]


def build(contraction: Contraction, schedule: BlasSchedule, target: Target) -> Launch:
    if contraction.arithmetic.precision == "ieee":
        return BlasLaunch(contraction, schedule)
    if multiply() is None:
        raise ResourceError("the cuBLAS of this torch is not found")
    return Tf32Launch(contraction, schedule)


def _widens(contraction: Contraction) -> bool:
    """Whether the library can leave half products in single precision: torch has a form of the call for that."""
    if not hasattr(torch.ops.aten.addmm, "dtype_out") or not hasattr(torch.ops.aten.baddbmm, "dtype_out"):
        return False
    return contraction.arithmetic.product.itemsize == 2 and contraction.d.dtype is torch.float32


def _accumulator(product: torch.dtype) -> torch.dtype:
    return product if product.is_complex or product is torch.float64 else torch.float32
