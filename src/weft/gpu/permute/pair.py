"""Two permutations in one launch: what is small takes less time than its launch, and what is large leaves processors
idle at its end that the other may use."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.launch import MOST_PROGRAMS, TRITON_TYPES, KernelLaunch
from weft.gpu.permute.cost import CARVEOUT
from weft.gpu.permute.family import NAME, PermuteSchedule, elementwise, permute_params, programs, seen_as
from weft.planner.schedule import Target
from weft.spec.permutation import Permutation


class Move(NamedTuple):
    """A permutation and the schedule that makes it."""

    permutation: Permutation
    schedule: PermuteSchedule

    @property
    def programs(self) -> int:
        return programs(elementwise(self.permutation), self.schedule)

    def fills(self, warps: int) -> bool:
        """Whether a block has enough elements for so many warps: those of a whole access for each thread, and of two
        where a function is applied to them."""
        held = math.prod(cut.tile for cut in self.schedule.cuts) / (32 * warps)
        accesses = 1 if self.permutation.fn is None else 2
        return warps == self.schedule.warps or held * self.permutation.d.dtype.itemsize >= accesses * VECTOR

    def constants(self, name: str) -> dict[str, Any]:
        """What the kernel of two takes of it."""
        elements = elementwise(self.permutation)
        return {
            f"{name}_PARAMS": permute_params(elements, self.schedule),
            f"{name}_FN": elements.fn and elements.fn.jit,
            f"{name}_COMPUTE": TRITON_TYPES[elements.compute],
            f"{name}_RESULT": TRITON_TYPES[elements.d.dtype],
        }


def supports(first: Move, second: Move) -> bool:
    """Whether one launch makes both well: blocks of the family `permute`, of values that are not scaled or conjugated,
    for the larger number of warps."""
    moves, warps = (first, second), max(first.schedule.warps, second.schedule.warps)
    for permutation, schedule in moves:
        if schedule.family != NAME or permutation.scaled or permutation.conjugate:
            return False
    return all(move.fills(warps) for move in moves) and first.programs + second.programs <= MOST_PROGRAMS


class PermutePairLaunch:
    """Both, built: call it with the source and the result of each."""

    def __init__(self, first: Move, second: Move, target: Target) -> None:
        from weft.gpu.permute.kernel import permute_pair_kernel

        x, y = elementwise(first.permutation), elementwise(second.permutation)
        layouts = (x.x, x.d, y.x, y.d)
        self._types = [layout.dtype for layout in layouts]
        self.launch = KernelLaunch(
            permute_pair_kernel,
            layouts,
            {"COUNT": first.programs, **first.constants("X"), **second.constants("Y")},
            real=True,
            target=target,
            programs=first.programs + second.programs,
            warps=max(first.schedule.warps, second.schedule.warps),
            stages=1,
            carveout=CARVEOUT,
        )

    def __call__(self, x: Tensor, d: Tensor, y: Tensor, e: Tensor) -> None:
        tensors = [seen_as(tensor, dtype) for tensor, dtype in zip((x, d, y, e), self._types, strict=True)]
        self.launch(tensors, 1.0, 0.0)
