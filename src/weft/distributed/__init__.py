"""Contractions over the ranks of a process group: what lies where, what travels, and what it is hidden behind."""

from weft.distributed.group.link import PRESETS, Link, measure_link
from weft.distributed.group.ranks import Ranks, find_ranks
from weft.distributed.out_of_core.blocked import OutOfCorePlan
from weft.distributed.planned.placement import Placement
from weft.distributed.planned.timeline import Event, Timeline
from weft.distributed.public import contract, plan
from weft.distributed.run.measured import MeasuredCalls
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
