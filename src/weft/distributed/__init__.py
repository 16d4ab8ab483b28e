"""Contractions over the ranks of a process group: where tensors are placed, what travels, and what it is hidden behind.

Where a call goes, from top to bottom:

    public             reads the call; ranks compare their requests; plans are kept
    run/asked          the request of one rank, checked; and the problem of all ranks together
    planned/strategy   every way to compute it: what ranks share out, what moves, in which parts
    planned/prediction what each way will take, by the models of kernel and link; the fastest is chosen
    run/plan           a DistributedPlan: the tensors of a call are checked, and put through one of
    run/execution        parts that travel and are contracted; `run/sums` has D's, `planned/moves` how tensors travel
    run/measuring        calls of all ranks measured, and held against samples of the whole D
    run/work           the contraction of one part, which is a call of `weft.contract`
    gradient           backward passes: plans of their own
    out_of_core        `device=`: no ranks, blocks of tensors that are larger than a GPU

`group` has what they speak and travel by: ranks, collectives, lanes, the link. Its `shares` and `StopSign` are for
networks whose slices ranks share (`weft.networks.shared`).
"""

from weft.distributed.group.link import PRESETS, Link, measure_link
from weft.distributed.group.ranks import Ranks, find_ranks
from weft.distributed.out_of_core.blocked import OutOfCorePlan
from weft.distributed.planned.placement import Placement
from weft.distributed.planned.timeline import Event, Timeline
from weft.distributed.public import contract, plan
from weft.distributed.run.measuring import MeasuredCalls
from weft.distributed.run.plan import DistributedPlan

__all__ = [
    "PRESETS",
    "DistributedPlan",
    "Event",
    "Link",
    "MeasuredCalls",
    "OutOfCorePlan",
    "Placement",
    "Ranks",
    "Timeline",
    "contract",
    "find_ranks",
    "measure_link",
    "plan",
]
