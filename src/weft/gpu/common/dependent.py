"""Which launches may be dependent by program, and which should be: see `pdl`, whose statements kernels begin with."""

from __future__ import annotations

from weft.gpu.common.driver import driver_version
from weft.planner.schedule import Target
from weft.spec import Contraction

LONG = 5e10  # flops, which take about 70 us of an H200's matrix units

DRIVER = 12030  # the first version of CUDA whose graphs can hold such launches


def can_pdl(target: Target) -> bool:
    """Whether launches on the device may be dependent by program; without a driver, whether the device could."""
    version = driver_version()
    return target.kind == "cuda" and target.capability >= 90 and (version is None or version >= DRIVER)


def is_short(contraction: Contraction) -> bool:
    """Whether a kernel that stays on the device should follow the launch before it."""
    return 2.0 * contraction.batch * contraction.m * contraction.n * contraction.k < LONG
