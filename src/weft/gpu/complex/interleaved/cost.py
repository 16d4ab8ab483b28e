"""Predicted time of a transfer: that of a permutation whose tensors are read and written several times."""

from __future__ import annotations

from weft.gpu.common.aux_operands import aux_bytes
from weft.gpu.complex.interleaved.schedule import candidates
from weft.gpu.complex.interleaved.transfer import Transfer
from weft.gpu.permute.cost import COPY_RATE, move_seconds
from weft.gpu.permute.schedule import PermuteSchedule
from weft.planner.schedule import Target


def seconds(transfer: Transfer, schedule: PermuteSchedule, target: Target) -> float:
    """Seconds. D is written once for each row or plane, X read once for each set of products that it holds. Auxiliary
    operands are read, and further results written, once, at the rate of a copy."""
    read = 3 if transfer.three_m_stride else 2 if transfer.planar_stride else 1
    written = {"plain": 1, "three_m": 3}.get(transfer.form, 2)
    return (
        move_seconds(transfer.permutation, schedule, target, read, written)
        + aux_bytes(transfer.aux_args.aux, transfer.permutation.modes) / COPY_RATE
    )


def best(transfer: Transfer, target: Target) -> tuple[PermuteSchedule, float]:
    """The schedule of the least predicted time, and that time in seconds."""
    legal = candidates(transfer).schedules
    ranked = [(seconds(transfer, schedule, target), at, schedule) for at, schedule in enumerate(legal)]  # type: ignore[arg-type]
    time, _, schedule = min(ranked)
    return schedule, time  # type: ignore[return-value]
