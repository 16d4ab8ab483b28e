"""One thread arrives at an mbarrier for all threads of its role, so all of them must be done before."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from weft.gpu.common.triton_versions import ARRIVALS_MEET, gluon_names

sync_role, _, _, _ = gluon_names()


@gluon.jit
def meet_and_arrive(bar):
    """Arrive when all threads of the role have come here.

    Used wherever the compiler sees no reason for a barrier of the role by itself. To it a wait for products is no
    access to memory; but each warp waits for its own products alone.
    """
    if not ARRIVALS_MEET:
        sync_role()
    mbarrier.arrive(bar)
