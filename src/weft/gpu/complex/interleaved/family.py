"""The family of permutations that complex numbers take part in and that compute: functions, complex factors,
conversions. The steps of `real_forms` before and after a product are transfers too."""

from __future__ import annotations

from weft.gpu.complex.interleaved.cost import best, seconds
from weft.gpu.complex.interleaved.launch import InterleavedLaunch
from weft.gpu.complex.interleaved.schedule import NAME, candidates
from weft.gpu.complex.interleaved.transfer import Transfer
from weft.gpu.complex.launch import function_reason
from weft.gpu.permute.schedule import PermuteSchedule
from weft.planner.schedule import Candidates, Target
from weft.spec.permutation import Permutation

__all__ = ["NAME", "best", "build", "predict", "reason_against", "schedules", "supports"]


def supports(permutation: Permutation, target: Target) -> str | None:
    layouts = [layout for layout in (permutation.x, permutation.c, permutation.d) if layout is not None]
    inside = permutation.fn is not None and permutation.fn.is_complex
    if not inside and not any(layout.dtype.is_complex for layout in layouts):
        return "no complex number takes part"
    if permutation.is_move:
        return "nothing is computed: complex numbers that only move go as words"
    return reason_against(Transfer(permutation), target)


def schedules(permutation: Permutation, target: Target) -> Candidates:
    return candidates(Transfer(permutation))


def predict(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> float:
    return seconds(Transfer(permutation), schedule, target)


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> InterleavedLaunch:
    return InterleavedLaunch(Transfer(permutation), schedule, target)


def reason_against(transfer: Transfer, target: Target) -> str | None:
    """Why the kernel cannot do a transfer, in one sentence."""
    permutation = transfer.permutation
    layouts = (permutation.x, permutation.c, permutation.d, *(each.layout for each in transfer.aux_args.aux))
    return function_reason((permutation.fn, transfer.c_fn, transfer.epilogue), layouts, target)
