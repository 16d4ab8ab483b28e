"""What is a matrix product as it lies, and fuses nothing, goes to the vendor's library through torch.

No operand is copied for it: each must have one run of stride 1, as BLAS asks. The library's process-wide permissions
for less exact arithmetic are not taken: products of float32 are IEEE unless the contraction asks for TF32, sums of half
products are kept in float32.
"""

from __future__ import annotations

import torch

from weft.gpu.blas import cublas
from weft.gpu.blas.cost import RATES, predict
from weft.gpu.blas.launch import BlasLaunch, Tf32Launch
from weft.gpu.blas.schedule import NAME, BlasSchedule, forms, misfit, schedules
from weft.planner.schedule import Launch, ResourceError, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

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
    if dtype_name(arithmetic.product) not in RATES or arithmetic.accumulate is not _accumulator(arithmetic.product):
        return f"{dtype_name(arithmetic.product)} in {dtype_name(arithmetic.accumulate)} is not asked of the library"
    if contraction.d.dtype != arithmetic.product and not _widens(contraction):
        return f"the library is not asked for {dtype_name(contraction.d.dtype)} of {dtype_name(arithmetic.product)}"
    if contraction.c is not None and contraction.c.dtype != contraction.d.dtype:
        return "C has another type than D"
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
    if cublas.multiply() is None:
        raise ResourceError("the cuBLAS of this torch is not found")
    return Tf32Launch(contraction, schedule)


def _widens(contraction: Contraction) -> bool:
    """Whether the library can leave half products in single precision: torch has a form of the call for that."""
    if not hasattr(torch.ops.aten.addmm, "dtype_out") or not hasattr(torch.ops.aten.baddbmm, "dtype_out"):
        return False
    return contraction.arithmetic.product.itemsize == 2 and contraction.d.dtype is torch.float32


def _accumulator(product: torch.dtype) -> torch.dtype:
    return product if product.is_complex or product is torch.float64 else torch.float32
