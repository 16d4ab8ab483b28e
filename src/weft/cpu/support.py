"""Which contractions the CPU backend can compute."""

from __future__ import annotations

import torch

from weft.fn.pointwise import TritonFunction
from weft.planner.schedule import Target
from weft.spec import Contraction

ACCUMULATORS = (
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.int32,
    torch.int64,
)


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not.

    "tf32" and "tf32x3" are served by IEEE float32 products, three products by four: they are at least as exact.
    """
    if target.kind != "cpu":
        return f"it runs on the CPU, the tensors are on a {target.kind} device"
    arithmetic, algebra = contraction.arithmetic, contraction.algebra
    if arithmetic.accumulate not in ACCUMULATORS and (algebra is None or arithmetic.accumulate is not torch.bool):
        return f"sums in {_name(arithmetic.accumulate)} are not supported"
    if not torch.can_cast(arithmetic.product, arithmetic.accumulate):
        return f"products in {_name(arithmetic.product)} do not add up in {_name(arithmetic.accumulate)}"
    parts = () if algebra is None else (algebra.combine, algebra.reduce)
    for hook in (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue, *parts):
        if isinstance(hook, TritonFunction):
            return f"{hook.jit.__name__} is a Triton function; the CPU needs it written with torch operations"
    if algebra is None and torch.bool in (contraction.a.dtype, contraction.b.dtype):
        return "bool has no sum of products; convert the operands to an integer type"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
