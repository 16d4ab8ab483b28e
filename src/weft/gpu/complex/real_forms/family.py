"""The family for complex numbers: a complex product is a real one with twice the modes of extent 2.

A complex tensor is a real one with one more mode, innermost, of extent 2: its real and imaginary part, interleaved. The
schedules come in these forms:

**real_2x2**. One operand, X, is packed into a workspace where each of its elements is the matrix that multiplies a pair
by it,

    | x_re   x_im |
    |-x_im   x_re |     rows: met by the other operand's re and im; columns: what they add to D's re and im

and then D, seen as real, is a plain real contraction of the other operand Y, seen as real, with that workspace. Neither
Y nor D is split into parts, and every real family applies, at the real rate: TMA, BLAS, split-K. Conjugation changes
signs in the workspace, a complex alpha is multiplied into it. Each part of D is a sum of products of parts, and as
exact as sums of their size are.

**planar**. All four products of parts with parts are kept in a workspace, and added when D is written from there. Parts
are read where they lie, or, where D is much smaller than the operands, from real rows that they are packed into.

**three_m**. Where the arithmetic lets three products do,

    p = A_re B_re,   q = A_im B_im,   s = (A_re + A_im) (B_re + B_im),   D = (p - q) + i (s - p - q)

both operands are packed into three real matrices each, one batched product multiplies them, and D is combined from the
three results. That is three quarters of the arithmetic, and its error keeps the same bound by moduli as before (N. J.
Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 23.2.4); but an imaginary part that is
much smaller than its real part has the rounding errors of the larger one. So it is never the default.

**mixed_domain**. A real operand with a complex one: (re, im) is one more mode of m or n, and nothing is packed.
**real**. Two real operands that meet complex values in a function, or whose product is written as complex numbers.
**interleaved**. The vendor's library multiplies complex matrices, packed where they do not lie so.

Functions of complex values are applied where an operand is packed, with their auxiliary operands. An epilogue, and a
D that no product can be written into as it lies, take one more pass: the product goes to a workspace, and a last step
writes D from there. The family has no kernels of its own: its steps are transfers of the family `interleaved`, and each
product is planned by the other families.
"""

from __future__ import annotations

from weft.errors import UnsupportedError
from weft.gpu.complex.interleaved import family as interleaved
from weft.gpu.complex.interleaved.transfer import Transfer
from weft.gpu.complex.real_forms.launch import RealFormLaunch
from weft.gpu.complex.real_forms.schedule import NAME, RealFormSchedule, Step
from weft.gpu.complex.real_forms.ways import ways
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

__all__ = ["NAME", "RealFormSchedule", "build", "predict", "schedules", "supports"]

KEPT = 2  # schedules of the product that are proposed for each way


def supports(contraction: Contraction, target: Target) -> str | None:
    total = contraction.arithmetic.accumulate
    if not _complex_enters(contraction):
        return f"{dtype_name(contraction.arithmetic.product)} is not complex"
    if not total.is_complex and not total.is_floating_point:
        return f"sums in {dtype_name(total)} meet no complex values on the GPU yet"
    if contraction.algebra is not None:
        return f"the algebra {contraction.algebra.name} of complex numbers does not run on the GPU yet"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.planner.planner import choose

    found: list[RealFormSchedule] = []
    excluded: dict[str, None] = {}
    known: dict[Transfer, Step] = {}
    for way in ways(contraction):
        try:
            product = choose(way.product, "triton", target, without=way.without)
            steps = [known.get(each) or _step(each, target) if each is not None else None for each in way.transfers]
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        known |= {step.transfer: step for step in steps if step is not None}
        for chosen in product.led_by_each(product.ranked[:KEPT]):
            found.append(RealFormSchedule(way.form, (steps[0], steps[1], steps[2]), chosen, way.aux_args))
    return Candidates(tuple(found), tuple(excluded))


def predict(contraction: Contraction, schedule: RealFormSchedule, target: Target) -> float:
    """Seconds of all steps."""
    return schedule.product.best.seconds + sum(step.seconds for step in schedule.steps if step is not None)


def build(contraction: Contraction, schedule: RealFormSchedule, target: Target) -> Launch:
    return RealFormLaunch(schedule, target)


def _complex_enters(contraction: Contraction) -> bool:
    """Whether a complex value is multiplied, written, or part of a function."""
    dtypes = (contraction.arithmetic.product, contraction.d.dtype, *(each.dtype for each in contraction.aux))
    functions = (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)
    found = (function is not None and function.is_complex for function in functions)
    return any(dtype.is_complex for dtype in dtypes) or any(found)


def _step(transfer: Transfer, target: Target) -> Step:
    reason = interleaved.reason_against(transfer, target)
    if reason is not None:
        raise UnsupportedError(reason)
    return Step(transfer, *interleaved.best(transfer, target))
