"""Permutations in one pass: schedules for a description, launches."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from weft.gpu.common.aux_operands import real
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.launch import MOST_PROGRAMS, TRITON_TYPES, KernelLaunch, missing_type
from weft.gpu.common.tiling import A, D
from weft.gpu.permute.model import CARVEOUT, access_of, permute_params, predict
from weft.gpu.permute.pair import PermuteMove, PermutePairLaunch, tile_constants
from weft.gpu.permute.schedule import NAME, PermuteSchedule, in_words, programs, tilings
from weft.planner.schedule import Candidates, Scalar, Target
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation

KERNEL = DeviceFunction("weft.gpu.permute.kernel", "permute_kernel")


class PermuteLaunch:
    """A built permutation; the kernel sees tensors as the words that it moves."""

    def __init__(self, permutation: Permutation, schedule: PermuteSchedule, target: Target) -> None:
        words, scale = in_words(permutation), real(permutation.scale)
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
    legal, excluded = _legal(permutation)
    return Candidates(tuple(legal), excluded)


def best(permutation: Permutation, target: Target) -> tuple[PermuteSchedule, float]:
    """The schedule of the least predicted time, and that time in seconds."""
    ranked = ((schedule, predict(permutation, schedule, target)) for schedule in _legal(permutation)[0])
    return min(ranked, key=lambda each: each[1])


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> PermuteLaunch:
    return PermuteLaunch(permutation, schedule, target)


def build_pair(
    first: tuple[Permutation, PermuteSchedule], second: tuple[Permutation, PermuteSchedule], target: Target
) -> PermutePairLaunch:
    """One launch of two permutations: see `weft.gpu.permute.pair`."""
    return PermutePairLaunch(PermuteMove(*first), PermuteMove(*second), target)


def _legal(permutation: Permutation) -> tuple[list[PermuteSchedule], tuple[str, ...]]:
    words = in_words(permutation)
    found: dict[PermuteSchedule, None] = {}
    excluded: dict[str, None] = {}
    for axes in tilings(words, most_axes=4):
        schedule = PermuteSchedule(axes, warps=4)
        if schedule.size >= _MANY:
            schedule = PermuteSchedule(axes, warps=8)
        if programs(words, schedule) > MOST_PROGRAMS:
            excluded["a grid holds at most 2^31 - 1 blocks"] = None
        elif _addresses(words, schedule) > _MOST_ADDRESSES:
            excluded["a thread holds so many addresses that they do not fit into registers"] = None
        else:
            found[schedule] = None
    return list(found), tuple(excluded)


def _addresses(words: Permutation, schedule: PermuteSchedule) -> float:
    """Addresses that a thread holds, one for each access; none where even one for each element would be few."""
    held = schedule.size / (32 * schedule.warps)
    if 3 * held <= _MOST_ADDRESSES:
        return 0
    params = permute_params(words, schedule)
    sides = ((words.x, A, params.load), (words.d, D, params.store))
    return sum([held * side[0].dtype.itemsize / access_of(*side).width for side in sides])
