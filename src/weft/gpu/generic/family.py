"""Shape-generic contractions: the schedules for a description, and their launches.

The kernels are those of `gett` ('dot') and `simt` ('lanes'), with extents and strides as numbers of the launch.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from weft.base.bounded_cache import BoundedCache
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import is_product_of_vectors
from weft.gpu.common.contraction_launch import WholeLaunch
from weft.gpu.common.generic_axes import Group
from weft.gpu.common.launch import (
    KernelLaunch,
    collecting,
    common_reasons,
    pointer_layouts,
    precision_reason,
)
from weft.gpu.common.operation import operation
from weft.gpu.common.splits import product_bytes, run_count
from weft.gpu.common.swap_ab import in_kernel_order
from weft.gpu.common.tiling import D, by_stride
from weft.gpu.generic.model import Laid, laid, predict
from weft.gpu.generic.schedule import NAME, GenericSchedule, candidates, over_parts, too_long
from weft.gpu.semiring.algebra import over_axis
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides

DOT_KERNEL = DeviceFunction("weft.gpu.gett.kernel", "gett_kernel")
LANES_KERNEL = DeviceFunction("weft.gpu.simt.kernel", "simt_kernel")
STAGES = 3  # of loads that may be asked for ahead

_KERNELS = BoundedCache(1024)  # by structure
_LOCK = Lock()


class GenericStep(NamedTuple):
    """One kernel of a launch: a contraction as the kernel sees it, its schedule, and what is laid out for it."""

    contraction: Contraction
    schedule: GenericSchedule
    laid: Laid
    alone: bool = False  # A's values are reduced as they are, there is no B

    @property
    def layouts(self) -> tuple[Layout | None, ...]:
        found = self.contraction
        return found.a, None if self.alone else found.b, found.c, found.d

    def structure(self, target: Target) -> Hashable:
        """All that a kernel is compiled for."""
        found = self.contraction
        tensors = tuple([(each.dtype, each.alignment) if each is not None else None for each in self.layouts])
        aux = tuple([
            (each.kind, each.dtype, each.layout.alignment if each.layout is not None else 0) for each in found.aux
        ])  # fmt: skip
        functions = (found.a_fn, found.b_fn, found.c_fn, found.epilogue)
        given = (found.a_args, found.b_args, found.c_args, found.epilogue_args)
        return (
            self.schedule.kernel, self.schedule.warps, target, self.laid.params, tensors, aux, functions, given,
            found.arithmetic, found.algebra, found.peak,
        )  # fmt: skip


def build(contraction: Contraction, schedule: GenericSchedule, target: Target) -> Launch:
    """A launch of the whole contraction, or of its parts and their reduction."""
    steps = _steps(contraction, schedule, target)
    kernels = [_kernel(step, target) for step in steps]
    if len(steps) == 1:
        return WholeLaunch(kernels[0], schedule.swap_ab)
    product = steps[0].contraction
    return GenericSplitLaunch(kernels[0], kernels[1], schedule.swap_ab, product.d, len(product.aux))


def structures(contraction: Contraction, schedule: GenericSchedule, target: Target) -> list[Hashable]:
    """The structures that the kernels of a schedule are compiled for."""
    return [step.structure(target) for step in _steps(contraction, schedule, target)]


def _kernel(step: GenericStep, target: Target) -> KernelLaunch:
    """The kernel of a structure, compiled once, with the numbers of this launch."""
    key = step.structure(target)
    kernel = _KERNELS.get(key) if not collecting() else None
    if kernel is None:
        with _LOCK:
            kernel = _made(step, target)
            if not collecting():
                _KERNELS.put(key, kernel)
    return kernel.at(step.laid.programs, step.laid.numbers)


def _made(step: GenericStep, target: Target) -> KernelLaunch:
    contraction, schedule = step.contraction, step.schedule
    constants, layouts = {"PARAMS": step.laid.params, "OP": operation(contraction)}, step.layouts
    if schedule.kernel == "dot":
        kernel, layouts = DOT_KERNEL, (*layouts, None)
    else:
        kernel = LANES_KERNEL
        constants["OVER_AXIS"] = over_axis(contraction)
    return KernelLaunch(
        kernel, layouts, constants, contraction.arithmetic.accumulate.is_floating_point, target, 1,
        schedule.warps, STAGES, pointer_layouts(contraction), numbers=step.laid.numbers,
    )  # fmt: skip


class GenericSplitLaunch:
    """Each part of a reduction into a workspace, then the reduction of the parts, which finishes D."""

    def __init__(self, first: KernelLaunch, second: KernelLaunch, swap_ab: bool, parts: Layout, inputs: int) -> None:
        self.kernels = (first, second)
        self._swap_ab, self._parts, self._inputs = swap_ab, parts, inputs
        self._absent = (None,) * (len(first.layouts) - 4)  # of partials that are not stored as another D is

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        parts = torch.empty(self._parts.shape, dtype=self._parts.dtype, device=d.device)
        first, second = (b, a) if self._swap_ab else (a, b)
        self.kernels[0]((first, second, None, parts, *self._absent), 1, 0, aux[: self._inputs])
        self.kernels[1]((parts, None, c, d), alpha, beta, aux)


def _steps(contraction: Contraction, schedule: GenericSchedule, target: Target) -> tuple[GenericStep, ...]:
    """The kernels that a schedule launches, one after the other."""
    contraction = in_kernel_order(contraction, schedule)
    if schedule.splits == 1:
        return (GenericStep(contraction, schedule, laid(contraction, schedule, target)),)
    accumulate = contraction.arithmetic.accumulate
    of_d = by_stride(contraction.of_role(Role.BATCH, Role.M, Role.N), D)
    steps, size = {}, 1  # of the modes in one part, which lies as D does, without gaps
    for mode in of_d:
        steps[mode] = size
        size *= mode.extent
    parts = Layout.contiguous((schedule.splits, size), accumulate)
    inputs = len(contraction.aux) - len(contraction.outputs)
    into_parts = {mode: _with_strides(mode, *mode.strides[:3], steps.get(mode, 0), *mode.strides.aux[:inputs])
                  for mode in contraction.modes}  # fmt: skip
    product = replace(
        contraction, modes=tuple(into_parts.values()), c=None, d=parts, c_fn=None, epilogue=None, c_args=(),
        epilogue_args=(), aux=contraction.aux[:inputs], peak=False,
    )  # fmt: skip
    onto = _onto(schedule, into_parts)
    over = tuple([_with_strides(mode, steps[mode], 0, *mode.strides[2:])._replace(role=Role.M) for mode in of_d])
    part = Mode(("part",), schedule.splits, Role.K, Strides(size, 0, 0, 0, *[0] * len(contraction.aux)))
    total = replace(
        contraction, modes=(*over, part), a=parts, b=parts, arithmetic=Arithmetic(accumulate, accumulate), a_fn=None,
        b_fn=None, a_args=(), b_args=(),
    )  # fmt: skip
    finish = over_parts(total)
    return (
        GenericStep(product, onto, laid(product, onto, target, size)),
        GenericStep(total, finish, laid(total, finish, target), alone=True),
    )


def _with_strides(mode: Mode, *strides: int) -> Mode:
    return mode._replace(strides=Strides(*strides))


def _onto(schedule: GenericSchedule, modes: dict[Mode, Mode]) -> GenericSchedule:
    """The schedule for modes that lie otherwise in D; nothing is stated of them there."""

    def moved(group: Group) -> Group:
        return Group(tuple([modes[mode] for mode in group.modes]), group.tile)

    return replace(
        schedule, outer=moved(schedule.outer), m=tuple(map(moved, schedule.m)), n=tuple(map(moved, schedule.n)),
        k=moved(schedule.k), vectors=(*schedule.vectors[:2], 1, 1),
    )  # fmt: skip


__all__ = [
    "FINDS_PEAKS", "NAME", "GenericSchedule", "adds_in_order", "build", "predict", "schedules", "structures",
    "supports",
]  # fmt: skip

FINDS_PEAKS = True


def adds_in_order(contraction: Contraction, schedule: GenericSchedule) -> bool:
    """Whether products enter a sum as those of `gett` do: by matrix instructions, in one run, in the order of k."""
    size, precision = product_bytes(contraction), contraction.arithmetic.precision
    narrow = min(contraction.a.dtype.itemsize, contraction.b.dtype.itemsize) < size
    ordered = schedule.k.modes == contraction.of_role(Role.K)[::-1]
    plain = not narrow and size > 1 and (precision != "tf32x3" or schedule.k.tile == 32)
    return schedule.kernel == "dot" and ordered and plain and schedule.splits == run_count(contraction) == 1


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target)
    if reason is not None:
        return reason
    if too_long(contraction):
        return "indices or strides do not fit into 32 bits"
    if contraction.arithmetic.precision != "ieee" and not by_dot(contraction, target):
        return f"'{contraction.arithmetic.precision}' products are made by matrix instructions only"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    return Candidates(tuple(candidates(contraction, target, by_dot(contraction, target))))


def by_dot(contraction: Contraction, target: Target) -> bool:
    """Whether `tl.dot` can make the products."""
    arithmetic = contraction.arithmetic
    if contraction.algebra is not None or min(contraction.m, contraction.n) < 2:
        return False
    if is_product_of_vectors(contraction) or precision_reason(arithmetic, target) is not None:
        return False
    product = arithmetic.product
    if not product.is_floating_point:
        return False
    narrowest = min(contraction.a.dtype.itemsize, contraction.b.dtype.itemsize, product.itemsize)
    return narrowest >= 4 or arithmetic.accumulate is not torch.float64
