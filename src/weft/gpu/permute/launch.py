"""A schedule bound to tensors: the kernel of one permutation, called with X, C and D."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from weft.gpu.common.complex_elements import real
from weft.gpu.common.launch import TRITON_TYPES, KernelLaunch
from weft.gpu.permute.cost import CARVEOUT
from weft.gpu.permute.params import permute_params
from weft.gpu.permute.schedule import PermuteSchedule, programs
from weft.gpu.permute.words import in_words, view_as
from weft.planner.schedule import Scalar, Target
from weft.spec.permutation import Permutation


def tile_constants(words: Permutation, schedule: PermuteSchedule) -> dict[str, Any]:
    """What the kernel takes of a permutation that scales nothing."""
    return {
        "PARAMS": permute_params(words, schedule),
        "FN": words.fn and words.fn.jit,
        "COMPUTE": TRITON_TYPES[words.compute],
        "RESULT": TRITON_TYPES[words.d.dtype],
    }


class PermuteLaunch:
    """A built permutation; tensors are seen as the words that the kernel moves."""

    def __init__(self, permutation: Permutation, schedule: PermuteSchedule, target: Target) -> None:
        from weft.gpu.permute.kernel import permute_kernel

        words, scale = in_words(permutation), real(permutation.scale)
        layouts = (words.x, words.c, words.d)
        constants = tile_constants(words, schedule) | {
            "SCALE": TRITON_TYPES[scale] if words.scaled else None,
            "CONJUGATE": permutation.conjugate,
        }
        self._types = [layout and layout.dtype for layout in layouts]
        self.launch = KernelLaunch(
            permute_kernel, layouts, constants, scale.is_floating_point, target, programs(words, schedule),
            schedule.warps, stages=1, carveout=CARVEOUT,
        )  # fmt: skip

    def __call__(self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> None:
        tensors = [view_as(tensor, dtype) for tensor, dtype in zip((x, c, d), self._types, strict=True)]
        self.launch(tensors, _real(alpha), _real(beta))


def _real(value: Scalar) -> Scalar:
    """A factor that is not applied here unless it is real."""
    return value.real if isinstance(value, complex) else value
