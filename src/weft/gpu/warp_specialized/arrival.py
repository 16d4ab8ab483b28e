"""Giving a slot back: one thread arrives at an mbarrier for all threads of its role, so all must be done before."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from weft.gpu.common.triton_versions import ARRIVALS_MEET, gluon_names

meet_threads, _, _, _ = gluon_names()


@gluon.jit
def meet_and_arrive(bar):
    """Arrive when all threads of the role have come here.

    Said wherever the compiler would otherwise see nothing to meet for: to it, a wait for products is no access to
    memory, and each warp waits for its own products alone.
    """
    if not ARRIVALS_MEET:
        meet_threads()
    mbarrier.arrive(bar)
