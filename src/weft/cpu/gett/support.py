"""Which contractions the GETT kernels compute."""

from __future__ import annotations

import torch

from weft.cpu import jit
from weft.cpu.gett.operations import ready_pair
from weft.planner.schedule import Target
from weft.spec import Contraction, Role
from weft.spec.dtypes import REAL_OF

LONGEST = 1 << 21  # rows, columns or k: tables of offsets take 8 bytes for each and operand
AUX = 20  # auxiliary operands of one stage
LOADABLE = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
ACCUMULATORS = (
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int32, torch.int64,
)  # fmt: skip


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if target.kind != "cpu":
        return f"it runs on the CPU, the tensors are on a {target.kind} device"
    if (missing := jit.fault()) is not None:
        return missing
    accumulate = contraction.arithmetic.accumulate
    if accumulate not in ACCUMULATORS:
        return f"sums in {_name(accumulate)} have no kernel"
    types = [contraction.a.dtype, contraction.b.dtype, contraction.d.dtype, contraction.arithmetic.product]
    types += [contraction.c.dtype] if contraction.c is not None else []
    for dtype in (*types, *(aux.dtype for aux in contraction.aux)):
        if dtype not in LOADABLE:
            return f"kernels do not read {_name(dtype)}"
    extents = [mode.extent for mode in contraction.modes]
    if 0 in extents:
        return "a mode is empty"
    for role in (Role.M, Role.N, Role.K):
        if contraction.extent_of(role) > LONGEST:
            return f"its {role.value} modes are longer than {LONGEST}"
    if len(contraction.aux) > AUX:
        return f"functions take more than {AUX} operands"
    if contraction.algebra is not None:
        return _algebra_fault(contraction)
    return _plus_times_fault(contraction)


def _plus_times_fault(contraction: Contraction) -> str | None:
    if torch.bool in (contraction.a.dtype, contraction.b.dtype):
        return "bool has no sum of products; convert the operands to an integer type"
    mixed = contraction.a.dtype.is_complex != contraction.b.dtype.is_complex
    if not mixed:
        return _functions_fault(contraction)
    accumulate = contraction.arithmetic.accumulate
    real = REAL_OF.get(accumulate)
    if contraction.a_fn or contraction.b_fn or contraction.epilogue or contraction.c is not None:
        return "functions and C of real times complex go another way"
    stored = {contraction.a.dtype.to_real(), contraction.b.dtype.to_real()}
    if contraction.conjugate_a or contraction.conjugate_b or contraction.d.dtype != accumulate or stored != {real}:
        return "conversions of real times complex go another way"
    return None


def _functions_fault(contraction: Contraction) -> str | None:
    if not any((contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)):
        return None
    from weft.cpu.gett.stages import emittable

    return emittable(contraction)


def _algebra_fault(contraction: Contraction) -> str | None:
    assert contraction.algebra is not None
    if ready_pair(contraction.algebra, contraction.arithmetic.accumulate) is None:
        return f"the algebra {contraction.algebra.name} of {_name(contraction.arithmetic.accumulate)} has no kernel"
    return _functions_fault(contraction)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

