"""Common parts of rungs in Gluon: they run on a Hopper GPU alone, as Gluon has no interpreter."""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.errors import UnsupportedError

_HOPPER = (9, 0)


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """The next stage of a pipeline, and the phase of its barriers, which flips with every round."""
    over = stage + 1 == STAGES
    return gl.where(over, 0, stage + 1), gl.where(over, phase ^ 1, phase)


def needs_gpu() -> None:
    """Raises `UnsupportedError` where there is no Hopper GPU."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != _HOPPER:
        raise UnsupportedError("this kernel is for GPUs of compute capability 9.0, and Gluon has no interpreter")
