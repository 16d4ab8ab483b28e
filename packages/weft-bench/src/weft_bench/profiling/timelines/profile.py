"""`TimelineProfile`: what `weft.profile` finds of a contraction over ranks or in blocks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft_bench.profiling.timelines.page import body, save
from weft_bench.profiling.timelines.record import TimelineRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TimelineProfile(TimelineRecord):
    """When each part was contracted and travelled on each rank, beside what was predicted; it prints itself.

    `measured` has a `weft.distributed.Timeline` of each rank, in their order, of the call that took the median: all
    count from the moment at which the first rank began, by the clocks of their machines. `predicted` is that of rank 0.
    `samples` are the seconds of each call, of the slowest rank, and `plan` is what `explain` says. A notebook shows it
    as a page.

    >>> import torch, weft
    >>> a, b = torch.randn(64, 48), torch.randn(48, 40)
    >>> plan = weft.distributed.plan("mk,kn->mn", a, b, device="cpu", memory_limit="12 KB")
    >>> found = weft.profile(plan, a, b, budget=0.0)
    >>> len(found.measured), found.measured[0].compute > 0
    (1, True)
    """

    def _repr_html_(self) -> str:
        return body(self)

    def draw(self, file: Any = None) -> Figure:
        """The timelines as a matplotlib figure, one bar for each event; saved where `file` is a path."""
        from weft_bench.profiling.timelines.picture import draw

        return draw(self, file)

    def save(self, folder: Path | str) -> Path:
        """Write ``timelines.json`` and the page ``index.html`` into a folder, and return the page's path."""
        return save(self, Path(folder))
