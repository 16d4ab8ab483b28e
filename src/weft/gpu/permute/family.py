"""Permutations in one pass: schedules for a description, launches.

Two in one launch: horizontal fusion (A. Li et al., 2020, arXiv:2007.01277). A small permutation takes less time than
its launch. A large one leaves SMs idle at its end, which another may use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import VECTOR
from weft.gpu.common.launch import MOST_PROGRAMS, TRITON_TYPES, KernelLaunch, missing_type, too_many
from weft.gpu.common.tiling import A, D
from weft.gpu.permute.model import CARVEOUT, access_of, permute_params, predict
from weft.gpu.permute.schedule import NAME, PermuteSchedule, in_words, programs, tilings
from weft.planner.schedule import Candidates, Scalar, Target
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation

PAIR_KERNEL = DeviceFunction("weft.gpu.permute.kernel", "permute_pair_kernel")


class PermuteMove(NamedTuple):
    """A permutation and the schedule that makes it."""

    permutation: Permutation
    schedule: PermuteSchedule

    @property
    def programs(self) -> int:
        return programs(in_words(self.permutation), self.schedule)

    def fills(self, warps: int) -> bool:
        """Whether a tile has enough elements for so many warps: those of a whole access for each thread, and of two
        where a function is applied to them."""
        held = self.schedule.size / (32 * warps)
        accesses = 1 if self.permutation.fn is None else 2
        return warps == self.schedule.warps or held * self.permutation.d.dtype.itemsize >= accesses * VECTOR


def supports_pair(first: PermuteMove, second: PermuteMove) -> bool:
    """Whether one launch makes both well: by schedules of the family `permute`, of values that are not scaled or
    conjugated, with the larger number of warps."""
    moves, warps = (first, second), max(first.schedule.warps, second.schedule.warps)
    for permutation, schedule in moves:
        if schedule.family != NAME or permutation.scaled or permutation.conjugate:
            return False
    return all(move.fills(warps) for move in moves) and first.programs + second.programs <= MOST_PROGRAMS


class PermutePairLaunch:
    """Both, built: call it with the source and the result of each."""

    def __init__(self, first: PermuteMove, second: PermuteMove, target: Target) -> None:
        words = [in_words(move.permutation) for move in (first, second)]
        layouts = [layout for each in words for layout in (each.x, each.d)]
        constants: dict[str, object] = {"COUNT": first.programs}
        for name, each, move in zip("XY", words, (first, second), strict=True):
            own = tile_constants(each, move.schedule)
            constants |= {f"{name}_{constant}": value for constant, value in own.items()}
        self.launch = KernelLaunch(
            PAIR_KERNEL, layouts, constants, True, target, first.programs + second.programs,
            max(first.schedule.warps, second.schedule.warps), stages=1, carveout=CARVEOUT,
        )  # fmt: skip

    def __call__(self, x: Tensor, d: Tensor, y: Tensor, e: Tensor) -> None:
        self.launch((x, d, y, e), 1.0, 0.0)


def tile_constants(words: Permutation, schedule: PermuteSchedule) -> dict[str, Any]:
    """The kernel's constants for a permutation that scales nothing."""
    return {
        "PARAMS": permute_params(words, schedule),
        "FN": words.fn,
        "COMPUTE": TRITON_TYPES[words.compute],
        "RESULT": TRITON_TYPES[words.d.dtype],
    }


KERNEL = DeviceFunction("weft.gpu.permute.kernel", "permute_kernel")


class PermuteLaunch:
    """A built permutation; the kernel sees tensors as the words that it moves."""

    def __init__(self, permutation: Permutation, schedule: PermuteSchedule, target: Target) -> None:
        words, scale = in_words(permutation), permutation.scale.to_real()
        layouts = (words.x, words.c, words.d)
        constants = tile_constants(words, schedule)
        constants |= {"SCALE": TRITON_TYPES[scale] if words.scaled else None, "CONJUGATE": permutation.conjugate}
        self.launch = KernelLaunch(
            KERNEL, layouts, constants, scale.is_floating_point, target, programs(words, schedule),
            schedule.warps, stages=1, carveout=CARVEOUT,
        )  # fmt: skip

    def __call__(self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> None:
        self.launch((x, c, d), _real(alpha), _real(beta))

    def bound(self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> Callable[[], None]:
        """The launch on these tensors, whose addresses are taken now."""
        return self.launch.bound((x, c, d), _real(alpha), _real(beta))


def _real(value: Scalar) -> Scalar:
    """A factor that is not applied here unless it is real."""
    return value.real if isinstance(value, complex) else value


__all__ = ["NAME", "best", "build", "predict", "schedules", "supports"]

_MOST_ADDRESSES = 96  # of accesses that a thread should make
_MANY = 8192  # elements of a tile that is moved by eight warps


def supports(permutation: Permutation, target: Target) -> str | None:
    x, function = permutation.x, permutation.fn
    types = [layout.dtype for layout in (x, permutation.c, permutation.d) if layout is not None]
    complex_types = [dtype for dtype in types if dtype.is_complex]
    if complex_types and function is not None:
        return f"functions of {dtype_name(complex_types[0])} are for the family interleaved"
    if complex_types and permutation.scaled:
        return f"{dtype_name(complex_types[0])} is scaled by complex numbers, which is for the family interleaved"
    if complex_types and any(dtype != x.dtype for dtype in types):
        return f"{dtype_name(x.dtype)} to {dtype_name(permutation.d.dtype)} is for the family interleaved"
    if function is not None and function.is_complex:
        return "functions with complex values in them are for the family interleaved"
    if permutation.is_move:
        return None
    return next(filter(None, map(missing_type, types)), None)


def schedules(permutation: Permutation, target: Target) -> Candidates:
    words = in_words(permutation)
    found: dict[PermuteSchedule | str, None] = {}
    for axes in tilings(words, most_axes=4):
        schedule = PermuteSchedule(axes, warps=4)
        if schedule.size >= _MANY:
            schedule = PermuteSchedule(axes, warps=8)
        found[too_many(programs(words, schedule)) or _too_wide(words, schedule) or schedule] = None
    return Candidates.of(found)


def best(permutation: Permutation, target: Target) -> tuple[PermuteSchedule, float]:
    """The schedule of the least predicted time, and that time in seconds."""
    legal: Any = schedules(permutation, target).schedules
    return min(((each, predict(permutation, each, target)) for each in legal), key=lambda ranked: ranked[1])


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> PermuteLaunch:
    return PermuteLaunch(permutation, schedule, target)


def build_pair(
    first: tuple[Permutation, PermuteSchedule], second: tuple[Permutation, PermuteSchedule], target: Target
) -> PermutePairLaunch:
    """One launch of two permutations."""
    return PermutePairLaunch(PermuteMove(*first), PermuteMove(*second), target)


def _too_wide(words: Permutation, schedule: PermuteSchedule) -> str | None:
    """Whether a thread holds too many addresses, one for each access; not where even one for each element were few."""
    held = schedule.size / (32 * schedule.warps)
    if 3 * held <= _MOST_ADDRESSES:
        return None
    params = permute_params(words, schedule)
    sides = ((words.x, A, params.load), (words.d, D, params.store))
    addresses = sum([held * side[0].dtype.itemsize / access_of(*side).width for side in sides])
    fits = addresses <= _MOST_ADDRESSES
    return None if fits else "a thread holds so many addresses that they do not fit into registers"
