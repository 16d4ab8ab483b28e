"""Contractions over the ranks of a process group: where tensors are placed, what travels, and what it is hidden behind.

Where a call goes, from top to bottom:

    public        reads the call; ranks compare their requests; plans are kept
    asked         the request of one rank, checked; and the problem of all ranks together
    strategy      every way to compute it: what ranks share out, what moves, in which parts
    prediction    what each way will take, by the models of kernel and link; the fastest is chosen
    rank_plan     a DistributedPlan: the tensors of a call are checked, and put through one of
    execution       parts that travel and are contracted; `sums` has D's, `moves` how tensors travel
    report          the plan in words; calls of all ranks measured, and held against samples of the whole D
    work            the contraction of one part, which is a call of `weft.contract`
    gradients     backward passes, by the rule of `rank_product`: plans of their own
    out_of_core   `device=`: no ranks, blocks of tensors that are larger than a GPU (`host_blocks`)

`ranks`, `link` and `lanes` are what they speak and travel by, `placement` says which part of a tensor is where.
"""

from weft.distributed.lanes import Event, Timeline
from weft.distributed.link import PRESETS, Link, measure_link
from weft.distributed.out_of_core import OutOfCorePlan
from weft.distributed.placement import Placement
from weft.distributed.public import contract, plan
from weft.distributed.rank_plan import DistributedPlan
from weft.distributed.ranks import Ranks, find_ranks
from weft.distributed.report import MeasuredCalls

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
