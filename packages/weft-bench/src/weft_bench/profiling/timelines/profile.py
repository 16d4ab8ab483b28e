"""Timelines over ranks: measured, and as a profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.distributed.out_of_core import OutOfCorePlan
from weft.distributed.rank_plan import DistributedPlan
from weft.distributed.report import BUDGET
from weft.errors import ArgumentError
from weft.machine.stamp import device_stamp
from weft_bench.environment import disclose
from weft_bench.profiling.timelines.page import body, save
from weft_bench.profiling.timelines.record import TimelineRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


class TimelineProfile(TimelineRecord):
    """When each part was contracted and travelled on each rank, beside what was predicted; it prints itself.

    `measured` has a `weft.distributed.Timeline` of each rank, in their order, of the call that took the median: all
    count from the moment at which the first rank began, by the clocks of their machines. `predicted` is that of rank 0.
    `samples` are the seconds of each call, of the slowest rank, and `plan` is what `explain` says. A notebook shows it
    as a page.

    >>> import torch, weft
    >>> a, b = torch.randn(64, 48), torch.randn(48, 40)
    >>> plan = weft.distributed.plan("mk,kn->mn", a, b, device="cpu",
    ...                              memory_limit="12 KB")
    >>> found = weft.profile(plan, a, b, budget=0.0)
    >>> len(found.measured), found.measured[0].compute > 0
    (1, True)
    """

    def _repr_html_(self) -> str:
        return body(self)

    def draw(self, file: Any = None) -> Figure:
        """The timelines as a matplotlib figure, one bar for each event; saved where `file` is a path."""
        from weft_bench.profiling.timelines.page import draw

        return draw(self, file)

    def save(self, folder: Path | str) -> Path:
        """Write ``timelines.json`` and the page ``index.html`` into a folder, and return the page's path."""
        return save(self, Path(folder))
