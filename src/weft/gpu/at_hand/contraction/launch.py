"""Launches of kernels at hand: a kernel is compiled once for its structure, then every launch is numbers for it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from weft.base.bounded_cache import BoundedCache
from weft.gpu.at_hand.axes import Group
from weft.gpu.at_hand.contraction.params import Laid, laid
from weft.gpu.at_hand.contraction.schedule import HandSchedule, over_parts
from weft.gpu.common.launch import KernelLaunch, collecting, contraction_constants, pointer_layouts
from weft.gpu.common.swap_ab import in_kernel_order
from weft.gpu.common.tiling import D, by_stride
from weft.gpu.semiring.algebra import over_axis, semiring_constants
from weft.planner.schedule import AuxTensors, Launch, Scalar, Target
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides

STAGES = 3  # of loads that may be asked for ahead

_KERNELS = BoundedCache(1024)  # by structure
_LOCK = Lock()


def build(contraction: Contraction, schedule: HandSchedule, target: Target) -> Launch:
    """A launch of the whole contraction, or of its parts and their reduction."""
    seen = in_kernel_order(contraction, schedule)
    if schedule.splits == 1:
        return HandLaunch(kernel_of(seen, schedule, target, laid(seen, schedule, target)), schedule.swap_ab)
    return _split(seen, schedule, target)


def kernel_of(
    contraction: Contraction, schedule: HandSchedule, target: Target, found: Laid, alone: bool = False
) -> KernelLaunch:
    """The kernel of a schedule's structure with the numbers of this launch.

    `contraction` is in the kernel's order. `alone`: A's values are reduced as they are, there is no B.
    """
    kind = schedule.kernel
    layouts = (contraction.a, None if alone else contraction.b, contraction.c, contraction.d)
    key = _key(contraction, kind, layouts, schedule.warps, target, found.params)
    kernel = _KERNELS.get(key) if not collecting() else None
    if kernel is None:
        with _LOCK:
            kernel = _made(contraction, kind, layouts, schedule.warps, target, found)
            if not collecting():
                _KERNELS.put(key, kernel)
    return kernel.at(found.programs, found.numbers)


def _made(
    contraction: Contraction, kind: str, layouts: tuple[Layout | None, ...], warps: int, target: Target, found: Laid
) -> KernelLaunch:
    constants = contraction_constants(contraction, found.params)
    real = contraction.arithmetic.accumulate.is_floating_point
    pointers = pointer_layouts(contraction)
    if kind == "dot":
        from weft.gpu.at_hand.contraction.dot_kernel import dot_kernel as kernel
    else:
        from weft.gpu.at_hand.contraction.lanes_kernel import lanes_kernel as kernel

        algebra = contraction.algebra
        constants |= semiring_constants(contraction)
        constants["OVER_AXIS"] = over_axis(algebra.reduce) if algebra is not None else None
    return KernelLaunch(
        kernel, layouts, constants, real, target, 1, warps, STAGES, pointers, numbers=found.numbers
    )


def _key(
    contraction: Contraction, kind: str, layouts: tuple[Layout | None, ...], warps: int, target: Target, params: Any
) -> Hashable:
    """All that a kernel is compiled for."""
    tensors = tuple([(layout.dtype, layout.alignment) if layout is not None else None for layout in layouts])
    aux = tuple([
        (each.kind, each.dtype, each.layout.alignment if each.layout is not None else 0) for each in contraction.aux
    ])  # fmt: skip
    functions = (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)
    given = (contraction.a_args, contraction.b_args, contraction.c_args, contraction.epilogue_args)
    return (kind, warps, target, params, tensors, aux, functions, given, contraction.arithmetic, contraction.algebra)


class HandLaunch:
    """One kernel, each of whose programs finishes its tile of D."""

    def __init__(self, kernel: KernelLaunch, swap_ab: bool) -> None:
        self.kernels = (kernel,)
        self._swap_ab = swap_ab

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        self.kernels[0]((b, a, c, d) if self._swap_ab else (a, b, c, d), alpha, beta, aux)


class HandSplitLaunch:
    """Each part of a reduction into a workspace, then the reduction of the parts, which finishes D."""

    def __init__(self, first: KernelLaunch, second: KernelLaunch, swap_ab: bool, parts: Layout, inputs: int) -> None:
        self.kernels = (first, second)
        self._swap_ab, self._parts, self._inputs = swap_ab, parts, inputs

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        parts = torch.empty(self._parts.shape, dtype=self._parts.dtype, device=d.device)
        first, second = (b, a) if self._swap_ab else (a, b)
        self.kernels[0]((first, second, None, parts), 1, 0, aux[: self._inputs])
        self.kernels[1]((parts, None, c, d), alpha, beta, aux)


def _split(contraction: Contraction, schedule: HandSchedule, target: Target) -> HandSplitLaunch:
    """Both launches of a split reduction; `contraction` in the kernel's order."""
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
        epilogue_args=(), aux=contraction.aux[:inputs],
    )  # fmt: skip
    first = laid(product, _onto(schedule, into_parts), target, size)
    over = tuple([_with_strides(mode, steps[mode], 0, *mode.strides[2:])._replace(role=Role.M) for mode in of_d])
    part = Mode(("part",), schedule.splits, Role.K, Strides(size, 0, 0, 0, *[0] * len(contraction.aux)))
    total = replace(
        contraction, modes=(*over, part), a=parts, b=parts, arithmetic=Arithmetic(accumulate, accumulate), a_fn=None,
        b_fn=None, a_args=(), b_args=(),
    )  # fmt: skip
    finish = over_parts(total)
    second = laid(total, finish, target)
    return HandSplitLaunch(
        kernel_of(product, schedule, target, first), kernel_of(total, finish, target, second, alone=True),
        schedule.swap_ab, parts, inputs,
    )  # fmt: skip


def _with_strides(mode: Mode, *strides: int) -> Mode:
    return mode._replace(strides=Strides(*strides))


def _onto(schedule: HandSchedule, modes: dict[Mode, Mode]) -> HandSchedule:
    """The same schedule of modes that lie otherwise in D, of which nothing is stated there."""

    def moved(group: Group) -> Group:
        return Group(tuple([modes[mode] for mode in group.modes]), group.tile)

    return replace(
        schedule, outer=moved(schedule.outer), m=tuple(map(moved, schedule.m)), n=tuple(map(moved, schedule.n)),
        k=moved(schedule.k), vectors=(*schedule.vectors[:2], 1, 1),
    )  # fmt: skip
