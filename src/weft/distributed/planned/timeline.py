"""When what ran, predicted or measured: transfers, contractions and what is neither, drawn as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft.base.figures import duration, share

Interval = tuple[float, float]
COMPUTE, HOST = "compute", "host"  # every other lane moves something
_WIDTH = 60


@dataclass(frozen=True)
class Event:
    """Something that ran on a lane from `begin` to `end`, in seconds since the call began.

    `step` is the place of its part in the order of parts, -1 where it belongs to none.
    """

    lane: str
    name: str
    begin: float
    end: float
    step: int = -1


@dataclass(frozen=True)
class Timeline:
    """The events of one call on one rank. `kind` is "predicted" or "measured"; `str` draws it.

    `compute`, `transfer` and `orchestration` are seconds: in which something is contracted, in which something travels,
    and in which neither happens (checks, launches, waiting for other ranks before they send). The first two overlap.
    Events of the lane "host" say what the host did; on a GPU that goes on alongside the others.
    """

    kind: str
    events: tuple[Event, ...]

    @property
    def begin(self) -> float:
        return min((event.begin for event in self.events), default=0.0)

    @property
    def end(self) -> float:
        return max((event.end for event in self.events), default=0.0)

    @property
    def seconds(self) -> float:
        """From the first begin to the last end."""
        return self.end - self.begin

    @property
    def compute(self) -> float:
        return self.busy(COMPUTE)

    @property
    def transfer(self) -> float:
        return self.busy(*self.transfers)

    @property
    def orchestration(self) -> float:
        return self.seconds - self.busy(COMPUTE, *self.transfers)

    def busy(self, *lanes: str) -> float:
        """Seconds in which one of these lanes does something."""
        return _length(self._of(lanes))

    @property
    def hidden(self) -> float:
        """The share of transfer time in which something is contracted as well; 1 where nothing travels."""
        both = self.transfer + self.compute - self.busy(COMPUTE, *self.transfers)
        return max(0.0, both) / self.transfer if self.transfer else 1.0

    @property
    def bounds(self) -> str:
        """The lane that takes longest: "compute", "transfer" or "orchestration"."""
        found = {"compute": self.compute, "transfer": self.transfer, "orchestration": self.orchestration}
        return max(found, key=lambda name: found[name])

    @property
    def transfers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(event.lane for event in self.events if event.lane not in (COMPUTE, HOST)))

    @property
    def lanes(self) -> tuple[str, ...]:
        """In the order in which they are drawn."""
        return (COMPUTE, *self.transfers, *([HOST] if any(event.lane == HOST for event in self.events) else []))

    def shifted(self, seconds: float) -> Timeline:
        """A timeline that begins `seconds` later."""
        return replace(self, events=tuple(
            replace(event, begin=event.begin + seconds, end=event.end + seconds) for event in self.events
        ))  # fmt: skip

    def __str__(self) -> str:
        return "\n".join([self.sentence, *drawn({"": self})])

    @property
    def sentence(self) -> str:
        """Its figures in a line."""
        return (
            f"{self.kind}: {duration(self.seconds)}; compute {duration(self.compute)}, transfer "
            f"{duration(self.transfer)} ({share(self.hidden)} of it hidden), orchestration "
            f"{duration(self.orchestration)}; {self.bounds} bounds it"
        )

    def table(self) -> str:
        """Every event with its begin and end."""
        wide = max((len(event.name) for event in self.events), default=0)
        return "\n".join(
            f"{duration(event.begin):>9} {duration(event.end):>9}  {event.lane:<9} {event.name:<{wide}}".rstrip()
            for event in self.events
        )

    def _of(self, lanes: Sequence[str]) -> list[Interval]:
        return _union([(event.begin, event.end) for event in self.events if event.lane in lanes])


def drawn(timelines: Mapping[str, Timeline]) -> list[str]:
    """A row of characters for each lane, all on one axis, under the names of the timelines.

    Nothing where no time passes. A digit is the last of a part's number in the order of parts, "=" what belongs to no
    part, a dot is idle.
    """
    begin = min((each.begin for each in timelines.values()), default=0.0)
    seconds = max((each.end for each in timelines.values()), default=0.0) - begin
    if seconds <= 0:
        return []
    heads = max(map(len, timelines)) + (1 if any(timelines) else 0)
    wide = max(len(lane) for each in timelines.values() for lane in each.lanes)
    lines = []
    for name, each in timelines.items():
        for at, lane in enumerate(each.lanes):
            own = [event for event in each.events if event.lane == lane]
            lines.append(f"  {'' if at else name:<{heads}}{lane:<{wide}} |{_row(own, begin, seconds)}|")
    return [*lines, f"  {'':<{heads + wide}}  0{duration(seconds):>{_WIDTH - 1}}"]


def _row(events: Sequence[Event], begin: float, seconds: float) -> str:
    """One character for each 60th of so many seconds."""
    row = ["."] * _WIDTH
    for event in events:
        first = min(_WIDTH - 1, int((event.begin - begin) / seconds * _WIDTH))
        last = max(first + 1, round((event.end - begin) / seconds * _WIDTH))
        row[first:last] = ("=" if event.step < 0 else str(event.step % 10)) * (min(last, _WIDTH) - first)
    return "".join(row)


def _union(intervals: Sequence[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _length(intervals: Sequence[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)
