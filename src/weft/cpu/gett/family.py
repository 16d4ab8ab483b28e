"""The CPU's GETT: what it supports, and its schedules for a description."""

from __future__ import annotations

from dataclasses import replace

import torch

from weft.cpu import jit
from weft.cpu.gett import model
from weft.cpu.gett.model import CpuGettSchedule, best_schedule
from weft.cpu.gett.split import SplitLaunch, steps_of
from weft.errors import UnsupportedError
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction, Role
from weft.spec.dtypes import FP8

LONGEST = 1 << 22  # rows, columns or k: tables of offsets take 8 bytes for each and operand
WASTE = 20  # sums computed for each of D, beyond which torch's reductions are quicker,
LITTLE = 1 << 20  # but for so few products: a pass of torch takes as long
AUX = 20  # auxiliary operands of one stage
LOADABLE = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, *FP8,
)  # fmt: skip
ACCUMULATORS = (
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int32, torch.int64, torch.bool,
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
    if not contraction.invariant and _is_for_others(contraction):
        return "it has too few rows and columns for register blocks"
    if len(contraction.aux) > AUX:
        return f"functions take more than {AUX} operands"
    if contraction.algebra is not None:
        return _algebra_fault(contraction)
    return _plus_times_fault(contraction)


def _is_for_others(contraction: Contraction) -> bool:
    """Whether others are quicker, or round less."""
    waste = _waste(contraction)
    products = contraction.batch * contraction.m * contraction.n * contraction.k
    return (waste > WASTE and waste * products > LITTLE) or (_is_single_sum(contraction) and products > LONGEST_SUM)


def _waste(contraction: Contraction) -> float:
    """Sums that register blocks compute for each that is requested."""
    m, n = contraction.m, contraction.n
    items = 8 if contraction.arithmetic.accumulate.itemsize == 4 else 4
    few, many = min(m, n), max(m, n)
    return -(-few // 6) * 6 * -(-many // (2 * items)) * 2 * items / (few * many)


LONGEST_SUM = 512  # products that one lane adds up one after the other, where others round less


def _is_single_sum(contraction: Contraction) -> bool:
    """Whether D is one sum of products as they are, which others make, and round less."""
    functions = (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)
    plain = contraction.algebra is None and not any(functions) and contraction.arithmetic.accumulate.is_floating_point
    return plain and contraction.batch * contraction.m * contraction.n == 1


def _plus_times_fault(contraction: Contraction) -> str | None:
    if torch.bool in (contraction.a.dtype, contraction.b.dtype):
        return "bool has no sum of products; convert the operands to an integer type"
    return _functions_fault(contraction)


def _functions_fault(contraction: Contraction) -> str | None:
    if not any((contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)):
        return None
    from weft.cpu.gett.stages import emittable

    return emittable(contraction)


def _algebra_fault(contraction: Contraction) -> str | None:
    from weft.cpu.gett.entries import source_of
    from weft.cpu.gett.model import form_of

    assert contraction.algebra is not None
    form = form_of(contraction)
    if form.operation is None:
        try:
            source_of(contraction.algebra, contraction.arithmetic.accumulate, form.dtype, form.axes.swapped)
        except UnsupportedError as error:
            return f"the algebra {contraction.algebra.name}: {error}"
    return _functions_fault(contraction)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


NAME = "gett"

__all__ = ["NAME", "CpuGettSchedule", "adds_in_order", "build", "predict", "schedules", "supports"]


def schedules(contraction: Contraction, target: Target) -> Candidates:
    return Candidates((best_schedule(contraction, max(target.processors, 1)),))


def adds_in_order(contraction: Contraction, schedule: CpuGettSchedule) -> bool:
    """A sum is made of blocks along k, which follow from the length of k."""
    return True


def predict(contraction: Contraction, schedule: CpuGettSchedule, target: Target) -> float:
    return model.predict(contraction, schedule)


def build(contraction: Contraction, schedule: CpuGettSchedule, target: Target) -> Launch:
    from weft.cpu.gett.launch import GettLaunch

    if schedule.splits == 1:
        return GettLaunch(contraction, schedule)
    steps = steps_of(contraction, schedule.splits)
    parts = GettLaunch(steps.parts, replace(schedule, splits=1))
    return SplitLaunch(steps, (parts, GettLaunch(steps.whole, best_schedule(steps.whole, schedule.threads))))
