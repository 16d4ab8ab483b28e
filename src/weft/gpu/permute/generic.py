"""The shape-generic permutation: its schedules for a description, and its launch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import NamedTuple

from torch import Tensor

from weft.base.bounded_cache import BoundedCache
from weft.gpu.common.aux_operands import real
from weft.gpu.common.constants import TRITON_TYPES, DeviceFunction
from weft.gpu.common.generic_axes import (
    HEADER,
    AxisStructure,
    GenericDim,
    axis_numbers,
    generic_dim,
    needs_wide,
    placed_axes,
)
from weft.gpu.common.launch import MOST_PROGRAMS, KernelLaunch, collecting
from weft.gpu.common.tiling import TENSORS, AlignedRun, B
from weft.gpu.permute import family as permute
from weft.gpu.permute.generic_model import NAME, GenericPermuteSchedule, predict, rooms, schedule, too_long
from weft.gpu.permute.schedule import in_words
from weft.planner.schedule import Candidates, Scalar, Target
from weft.spec.permutation import Permutation

KERNEL = DeviceFunction("weft.gpu.permute.kernel", "permute_kernel")

_KERNELS = BoundedCache(512)  # by structure
_LOCK = Lock()


class GenericPermuteParams(NamedTuple):
    """The parts of `permute.model.PermuteParams` that do not depend on the shape."""

    load: GenericDim  # outer, along D, along X and the run that they share, as dimensions in X's order
    store: GenericDim  # the same in D's order
    tile: tuple[int, int, int]  # as it is stored
    order: tuple[int, int, int]
    wide: tuple[bool, ...]


class GenericPermuteLaunch:
    """A built permutation; tensors are seen as the words that the kernel moves."""

    def __init__(self, permutation: Permutation, schedule: GenericPermuteSchedule, target: Target) -> None:
        words = in_words(permutation)
        params, numbers = laid(words, schedule)
        key = _structure(words, permutation, params, schedule.warps, target)
        kernel = _KERNELS.get(key) if not collecting() else None
        if kernel is None:
            with _LOCK:
                kernel = _made(words, permutation, params, numbers, schedule.warps, target)
                if not collecting():
                    _KERNELS.put(key, kernel)
        self.launch = kernel.at(schedule.programs, numbers)

    def __call__(self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> None:
        self.launch((x, c, d), alpha.real, beta.real)

    def bound(self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> Callable[[], None]:
        """The launch on these tensors, whose addresses are taken now."""
        return self.launch.bound((x, c, d), alpha.real, beta.real)


def structures(permutation: Permutation, schedule: GenericPermuteSchedule, target: Target) -> list[Hashable]:
    """The structure that the kernel of a schedule is compiled for."""
    words = in_words(permutation)
    return [_structure(words, permutation, laid(words, schedule)[0], schedule.warps, target)]


def _structure(
    words: Permutation, permutation: Permutation, params: GenericPermuteParams, warps: int, target: Target
) -> Hashable:
    """All that a kernel is compiled for."""
    layouts = (words.x, words.c, words.d)
    tensors = tuple([(layout.dtype, layout.alignment) if layout is not None else None for layout in layouts])
    scale = (permutation.scale, words.scaled, permutation.conjugate)
    return ("permutation", params, tensors, words.fn, words.compute, scale, warps, target)


def laid(words: Permutation, schedule: GenericPermuteSchedule) -> tuple[GenericPermuteParams, tuple[int, ...]]:
    """A kernel's parameters and the launch's numbers."""
    room = rooms(schedule)
    structures = []
    for at, group in enumerate(schedule.groups):
        runs, unit = [], 1
        for tensor in range(TENSORS):
            length, vector = 1, schedule.vectors[tensor]
            if vector > 1 and at and group.modes and group.modes[0].strides[tensor] == 1 and group.tile >= vector:
                length, unit = vector, max(unit, vector)
            runs.append(AlignedRun(length, vector))
        present = tuple([tensor != B for tensor in range(TENSORS)] + [True])
        structures.append(AxisStructure(group.tile, room[at], unit, present, tuple(runs)))
    axes = placed_axes(structures, (-1, 0, 1, 2))  # outer, along D, along X and the run that they share
    stored = [axis._replace(place=place) for axis, place in zip(axes, (-1, 1, 0, 2), strict=True)]
    numbers = [0] * HEADER
    for group, structure in zip(schedule.groups, structures, strict=True):
        numbers += axis_numbers(group, structure)
    params = GenericPermuteParams(
        load=generic_dim(axes),
        store=generic_dim(stored),
        tile=(schedule.along_x.tile, schedule.along_d.tile, schedule.run.tile),
        order=(1, 0, 2),
        wide=needs_wide(schedule.groups, TENSORS),
    )
    return params, tuple(numbers)


def _made(
    words: Permutation, permutation: Permutation, params: GenericPermuteParams, numbers: tuple[int, ...], warps: int,
    target: Target,
) -> KernelLaunch:  # fmt: skip
    scale = real(permutation.scale)
    constants = {
        "PARAMS": params,
        "FN": words.fn,
        "COMPUTE": TRITON_TYPES[words.compute],
        "RESULT": TRITON_TYPES[words.d.dtype],
        "SCALE": TRITON_TYPES[scale] if words.scaled else None,
        "CONJUGATE": permutation.conjugate,
    }
    layouts = (words.x, words.c, words.d)
    return KernelLaunch(
        KERNEL, layouts, constants, scale.is_floating_point, target, 1, warps, 1, numbers=numbers
    )


__all__ = ["NAME", "GenericPermuteSchedule", "build", "predict", "schedules", "structures", "supports"]


def supports(permutation: Permutation, target: Target) -> str | None:
    if (reason := permute.supports(permutation, target)) is not None:
        return reason
    if too_long(permutation):
        return "indices or strides do not fit into 32 bits"
    return None


def schedules(permutation: Permutation, target: Target) -> Candidates:
    found = schedule(in_words(permutation), target)
    if found.programs > MOST_PROGRAMS:
        return Candidates((), ("a grid holds at most 2^31 - 1 blocks",))
    return Candidates((found,))


def build(permutation: Permutation, schedule: GenericPermuteSchedule, target: Target) -> GenericPermuteLaunch:
    return GenericPermuteLaunch(permutation, schedule, target)
