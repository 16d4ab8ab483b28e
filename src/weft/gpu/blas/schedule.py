"""How a contraction is a call of the vendor's library: the modes that give its batch, rows, columns and sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Mode, Role

NAME = "blas"


class Form(NamedTuple):
    """A contraction as (batched) matrix product: one mode for each role, None where there is none.

    A mode of m or n may serve as the batch; the operand that lacks it is then the same in each product.
    """

    batch: Mode | None
    m: Mode | None
    n: Mode | None
    k: Mode | None


@dataclass(frozen=True, slots=True)
class BlasSchedule:
    """One call of the library."""

    form: Form
    swap_ab: bool  # D is contiguous along m: its transpose is computed from the transposed operands
    family: str = NAME
    workspace_bytes: int = 0  # of weft's; the library keeps its own

    def __str__(self) -> str:
        call = f"bmm over {self.form.batch.name}" if self.form.batch is not None else "mm"
        return f"blas {call}{' of the transposes' if self.swap_ab else ''}"


def forms(contraction: Contraction) -> Iterator[Form]:
    """The contraction as it lies, and with a mode of m or n as the batch where it needs one."""
    batch, m, n, k = (contraction.of_role(role) for role in (Role.BATCH, Role.M, Role.N, Role.K))
    if len(k) > 1:
        return
    depth = next(iter(k), None)
    if max(len(batch), len(m), len(n)) <= 1:
        yield Form(next(iter(batch), None), next(iter(m), None), next(iter(n), None), depth)
    if batch:
        return
    if len(m) == 2 and len(n) <= 1:
        yield Form(m[0], m[1], next(iter(n), None), depth)
        yield Form(m[1], m[0], next(iter(n), None), depth)
    if len(n) == 2 and len(m) <= 1:
        yield Form(n[0], next(iter(m), None), n[1], depth)
        yield Form(n[1], next(iter(m), None), n[0], depth)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    fitting = [form for form in forms(contraction) if misfit(contraction, form) is None]
    return Candidates(tuple(BlasSchedule(form, swaps_ab(form)) for form in fitting))


def along_k(schedule: BlasSchedule) -> tuple[bool, bool]:
    """Whether the left operand of the call is contiguous along k, and whether the right one is."""
    depth = schedule.form.k
    along = tuple(depth is not None and depth.strides[operand] == 1 for operand in (0, 1))
    return (along[1], along[0]) if schedule.swap_ab else (along[0], along[1])


def extent(mode: Mode | None) -> int:
    return mode.extent if mode is not None else 1


def _stride(mode: Mode | None, tensor: int) -> int:
    """Stride of a mode; 1 where there is none, as a mode of extent 1 may have any."""
    return mode.strides[tensor] if mode is not None else 1


def swaps_ab(form: Form) -> bool:
    return _stride(form.n, 3) != 1


def misfit(contraction: Contraction, form: Form) -> str | None:
    """Why a form cannot be asked of the library, in one sentence."""
    for operand, flag in enumerate((contraction.conjugate_a, contraction.conjugate_b)):
        if flag and not _conjugates(form, operand):
            return f"{'AB'[operand]} is conjugated, which BLAS does to what it transposes only: torch would copy it"
    return _stride_reason(contraction, form)


def _conjugates(form: Form, operand: int) -> bool:
    """Whether BLAS reads an operand transposed, seen from D's rows; it conjugates no other.

    torch passes the transposed problem where D has contiguous rows, as it has here: the left operand is transposed
    where it is contiguous along D's rows, the right one where it is contiguous along k.
    """
    if form.m is None or form.n is None or form.k is None:
        return False
    left = (operand == 0) is not swaps_ab(form)
    near = (form.m, form.n)[operand] if left else form.k
    return near.strides[operand] == 1


def _stride_reason(contraction: Contraction, form: Form) -> str | None:
    """Why BLAS could not read or write a tensor without copying it: no run of stride 1, or overlapping rows."""
    dims = ((form.m, form.k), (form.k, form.n), (form.m, form.n), (form.m, form.n))
    for tensor, pair in enumerate(dims):
        if tensor == 2 and contraction.c is None:
            continue
        steps = sorted((mode.strides[tensor], mode.extent) for mode in pair if mode is not None)
        if steps and steps[0][0] != 1:
            return f"{'ABCD'[tensor]} is contiguous along neither of its two dims"
        if len(steps) == 2 and steps[1][0] < steps[0][1]:
            return f"the rows of {'ABCD'[tensor]} overlap"
    return None
