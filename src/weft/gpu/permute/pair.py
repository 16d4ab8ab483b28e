"""Two permutations in one launch: horizontal fusion (A. Li et al., 2020, arXiv:2007.01277).

A small permutation takes less time than its launch. A large one leaves SMs idle at its end, which another may use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import VECTOR
from weft.gpu.common.launch import MOST_PROGRAMS, TRITON_TYPES, KernelLaunch
from weft.gpu.permute.model import CARVEOUT, permute_params
from weft.gpu.permute.schedule import NAME, PermuteSchedule, in_words, programs
from weft.planner.schedule import Target
from weft.spec.permutation import Permutation

KERNEL = DeviceFunction("weft.gpu.permute.kernel", "permute_pair_kernel")


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


def supports(first: PermuteMove, second: PermuteMove) -> bool:
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
            KERNEL, layouts, constants, True, target, first.programs + second.programs,
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
