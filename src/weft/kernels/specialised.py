"""The family that reads boxes with specialised warps: for Hopper's matrix instructions, in Gluon."""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from weft.kernels import boxes
from weft.kernels.boxes import BoxesLaunch
from weft.kernels.boxes_cut import boxes_cut
from weft.kernels.boxes_exchange import exchanged, multiplied
from weft.kernels.boxes_readings import box
from weft.kernels.boxes_schedule import parts
from weft.kernels.geometry import A, B
from weft.kernels.launch import (
    Box,
    KernelLaunch,
    contraction_constants,
    finishing_constants,
    pointer_layouts,
)
from weft.kernels.matrix import STRIP
from weft.kernels.specialised_cut import matrix_layout, specialised_cut
from weft.kernels.specialised_schedule import NAME, SpecialisedSchedule, candidates
from weft.plan.schedule import Candidates, ExtendedLaunch, Launch, Target
from weft.spec import Contraction, Layout
from weft.spec.arithmetic import dtype_name

__all__ = ["NAME", "SpecialisedSchedule", "build", "predict", "schedules", "supports"]


class LaidBox(Box):
    """A box whose place in shared memory is said here: Gluon does not choose it."""

    def descriptor(self, tensor: Any) -> TensorDescriptor:
        shape, strides = list(self.layout.shape), list(self.layout.strides)
        return TensorDescriptor(tensor, shape, strides, list(self.block), self.shared)

    @property
    def shared(self):
        *_, rows, columns = self.block
        return matrix_layout((rows, columns), True, self.layout.dtype.itemsize, len(self.block))


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = boxes.supports(contraction, target)
    if reason is not None:
        return reason
    if target.kind != "cuda" or target.capability != 90:
        return "only devices of compute capability 9.0 have these matrix instructions"
    product = contraction.arithmetic.product
    if product.itemsize != 2:
        return f"products of {dtype_name(product)} are not made here"
    if contraction.c is not None or contraction.extras:
        return "C and operands of functions are not read here"
    if contraction.a_fn is not None and contraction.b_fn is not None:
        return "only one operand has a function applied to it here"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    straight = candidates(contraction, target)
    other = candidates(exchanged(contraction), target, exchanged=True)
    return Candidates((*straight.schedules, *other.schedules), straight.excluded)


def predict(contraction: Contraction, schedule: SpecialisedSchedule, target: Target) -> float:
    return boxes.predict(contraction, schedule, target)


def build(contraction: Contraction, schedule: SpecialisedSchedule, target: Target) -> Launch | ExtendedLaunch:
    from weft.kernels.matrix_kernel import combine_kernel
    from weft.kernels.specialised_kernel import specialised_kernel

    contraction = multiplied(contraction, schedule)
    cut = specialised_cut(contraction, schedule, target)
    constants = contraction_constants(contraction, cut)
    tile_m, tile_n, tile_k = schedule.tile
    box_a = LaidBox(*box(contraction.a, A, schedule.a, {schedule.a.outer: tile_m, (schedule.k,): tile_k}))
    boxes_b = [
        LaidBox(*box(contraction.b, B, schedule.b, {schedule.b.outer: width, (schedule.k,): tile_k}))
        for width in parts(tile_n)
    ]
    operands = (box_a, boxes_b[0], boxes_b[1] if len(boxes_b) > 1 else None)
    c, d, pointers = contraction.c, contraction.d, pointer_layouts(contraction)
    real = contraction.arithmetic.accumulate.is_floating_point
    programs = cut.boxes.programs
    if cut.boxes.splits == 1:
        multiply = KernelLaunch(
            specialised_kernel, (*operands, c, d, None), constants, real, target, programs, 4, 1, pointers
        )
        return BoxesLaunch(operands, schedule.exchanged, multiply)
    shares = Layout.contiguous((cut.boxes.blocks * cut.boxes.splits, tile_m, tile_n), contraction.arithmetic.accumulate)
    multiply = KernelLaunch(
        specialised_kernel, (*operands, None, None, shares), constants, real, target, programs, 4, 1, pointers
    )
    finishing = finishing_constants(contraction, cut.boxes, STRIP)
    strips = cut.boxes.blocks * (tile_m // STRIP) * (tile_n // parts(tile_n)[-1])
    combine = KernelLaunch(combine_kernel, (shares, c, d), finishing, real, target, strips, 4, 1, pointers)
    return BoxesLaunch(operands, schedule.exchanged, multiply, combine, shares)
