"""A plan over ranks, or in blocks, measured on tensors of the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.distributed.out_of_core.blocked import OutOfCorePlan
from weft.distributed.run.measured import BUDGET
from weft.distributed.run.plan import DistributedPlan
from weft.errors import ArgumentError
from weft.machine.stamp import device_stamp
from weft_bench.environment import disclose
from weft_bench.profiling.timelines.profile import TimelineProfile

_TIMING = (
    "calls that all ranks begin together after two that are not counted; of a call the slowest rank's time, from its "
    "begin to the end of the last event. On GPUs events of the streams that the plan uses, on a CPU the host's clock; "
    "the ranks' times are put on one axis by their machines' clocks"
)


def timeline_profile(
    plan: DistributedPlan | OutOfCorePlan, tensors: tuple[Any, ...], options: Mapping[str, Any], budget: float | None
) -> TimelineProfile:
    """Every rank of the plan calls it, and gets all of it; `options` are keywords of the plan's call."""
    given = {name: value for name, value in options.items() if value is not None}
    takes = ("c", "operands") if isinstance(plan, DistributedPlan) else ("c", "out")
    for name in given:
        if name not in takes:
            raise ArgumentError(f"a profile of {type(plan).__name__} takes {' and '.join(takes)}, not {name}")
    if len(tensors) != 2:
        raise ArgumentError(f"a profile of {type(plan).__name__} takes 2 tensors, a and b, not {len(tensors)}")
    found = plan.measure(*tensors, budget=BUDGET if budget is None else budget, **given)
    environment = disclose(
        plan.device, workloads={"call": plan.about, "tensors": "the caller's"}, correctness="not checked",
    ) | {"timing": _TIMING}  # fmt: skip
    return TimelineProfile(
        plan.about, str(device_stamp(plan.device)["name"]), found.seconds, found.timelines, plan.predict(),
        plan.explain(), environment,
    )  # fmt: skip
