"""Contractions over the ranks of a process group: what lies where, what travels, and what it is hidden behind."""

from weft.distributed.link import PRESETS, Link, measure_link
from weft.distributed.out_of_core import OutOfCorePlan
from weft.distributed.placement import Placement
from weft.distributed.plan import DistributedPlan
from weft.distributed.public import contract, plan
from weft.distributed.ranks import Ranks, find_ranks
from weft.distributed.timeline import Event, Timeline

__all__ = [
    "PRESETS",
    "DistributedPlan",
    "Event",
    "Link",
    "OutOfCorePlan",
    "Placement",
    "Ranks",
    "Timeline",
    "contract",
    "find_ranks",
    "measure_link",
    "plan",
]
