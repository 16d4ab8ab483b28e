"""The profile of a call over ranks: the measured timelines of all ranks and the predicted one, as data and text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from weft.base.figures import duration, share
from weft.distributed.lanes import COMPUTE, Event, Timeline, drawn
from weft.errors import WeftError
from weft.machine.statistics import Interval, summarise
from weft.plans.explain.lines import aligned, section

FORMAT = 1
RANKS_SHOWN = 8  # in a terminal


@dataclass(frozen=True)
class TimelineRecord:
    """The measurements of a contraction over ranks or in blocks. Times in seconds.

    `measured` has a `Timeline` of each rank, in their order, of the call that took the median: all count from the
    moment at which the first rank began, by the clocks of their machines. `predicted` is that of rank 0. `samples` are
    the seconds of each call, of the slowest rank.
    """

    about: str  # the equation, and how many ranks or steps
    device: str
    samples: tuple[float, ...]
    measured: tuple[Timeline, ...]
    predicted: Timeline
    plan: str  # what `explain` says
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> Interval:
        """The median of a call, and its 95 % interval."""
        found = summarise(self.samples)
        return Interval(found.median, found.low, found.high)

    @property
    def timelines(self) -> dict[str, Timeline]:
        """The predicted and the measured ones, by what they are called."""
        ranks = {f"rank {rank}": timeline for rank, timeline in enumerate(self.measured)}
        return {"predicted": self.predicted, **(ranks if len(ranks) > 1 else {"measured": self.measured[0]})}

    @property
    def sentence(self) -> str:
        """The limit of the call on its slowest rank, and how it compares with the prediction."""
        slowest = max(self.measured, key=lambda each: each.seconds)
        hidden = f"; {share(slowest.hidden)} of the transfers is hidden" if slowest.transfer else "; nothing travels"
        times = ""
        if self.predicted.seconds:
            times = f"; it takes {slowest.seconds / self.predicted.seconds:.3g} times what was predicted"
        return f"{slowest.bounds} bounds it{hidden}{times}"

    def rows(self) -> list[tuple[str, ...]]:
        """Heads, then for each timeline how long it is, how long each lane works, and what is neither."""
        moving = tuple(dict.fromkeys(lane for each in self.timelines.values() for lane in each.transfers))
        found = [("", "seconds", COMPUTE, *moving, "hidden", "orchestration", "bound by")]
        for name, each in self.timelines.items():
            lanes = [duration(each.busy(lane)) for lane in (COMPUTE, *moving)]
            hidden = share(each.hidden) if each.transfer else "-"
            found.append((name, duration(each.seconds), *lanes, hidden, duration(each.orchestration), each.bounds))
        return found

    def events(self) -> list[tuple[str, str, Event]]:
        """All events by the name of their timeline and of their part, in the order in which they began."""
        return [
            (name, "" if event.step < 0 else str(event.step), event)
            for name, each in self.timelines.items() for event in sorted(each.events, key=lambda event: event.begin)
        ]  # fmt: skip

    def table(self) -> str:
        """When each part was contracted and travelled on each rank: begin, end and name of every event."""
        rows = [("", "part", "begin", "end", "lane", "what")]
        rows += [
            (name, part, duration(event.begin), duration(event.end), event.lane, event.name)
            for name, part, event in self.events()
        ]
        return "\n".join(line.rstrip() for line in aligned(rows, left=(0, 4, 5)))

    def __str__(self) -> str:
        found = self.seconds
        said = (
            f"{duration(found.value)} a call [{duration(found.low)}, {duration(found.high)}], {len(self.samples)} calls"
            f"{', the slowest rank of each' if len(self.measured) > 1 else ''}"
        )
        columns = self.rows()
        shown = dict(list(self.timelines.items())[: 1 + RANKS_SHOWN])
        rest = len(self.timelines) - len(shown)
        more = [f"... and {rest} more ranks: draw() shows all"] if rest else []
        sections: Mapping[str, Sequence[str]] = {
            "time": [said],
            "lanes": [*aligned(columns, left=(0, len(columns[0]) - 1))[: 2 + RANKS_SHOWN], *more],
            "timeline": [*(line.removeprefix("  ") for line in drawn(shown)), *more],
            "so": [self.sentence],
        }
        lines = [line for name, content in sections.items() for line in section(name, content)]
        return "\n".join([f"{self.about}  on {self.device}", *lines])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them again."""
        figures = {name: _figures(each) for name, each in self.timelines.items()}
        entry = {
            "about": self.about, "device": self.device, "samples": list(self.samples), "plan": self.plan,
            "environment": self.environment, "sentence": self.sentence, "figures": figures, "format": FORMAT,
        }  # fmt: skip
        return entry | {"predicted": _events(self.predicted), "measured": [_events(each) for each in self.measured]}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """A profile as it was written; `WeftError` for another format."""
        if saved.get("format") != FORMAT:
            raise WeftError(f"these timelines have format {saved.get('format')}, this version of weft reads {FORMAT}")
        measured = tuple(_timeline("measured", each) for each in saved["measured"])
        return cls(
            saved["about"], saved["device"], tuple(saved["samples"]), measured,
            _timeline("predicted", saved["predicted"]), saved["plan"], saved["environment"],
        )  # fmt: skip


def _figures(each: Timeline) -> dict[str, Any]:
    return {
        "seconds": each.seconds, "compute": each.compute, "transfer": each.transfer, "hidden": each.hidden,
        "orchestration": each.orchestration, "bounds": each.bounds,
    }  # fmt: skip


def _events(each: Timeline) -> list[dict[str, Any]]:
    return [asdict(event) for event in each.events]


def _timeline(kind: str, saved: Sequence[Mapping[str, Any]]) -> Timeline:
    return Timeline(kind, tuple(Event(**each) for each in saved))
