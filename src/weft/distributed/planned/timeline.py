"""When what ran, predicted or measured: transfers, contractions and what is neither, drawn as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.base.figures import duration, share

Interval = tuple[float, float]
_WIDTH = 60


@dataclass(frozen=True)
class Event:
    """Something that ran on a lane from `begin` to `end`, in seconds since the first began."""

    lane: str
    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The events of one call on one rank. `kind` is "predicted" or "measured"; `str` draws it.

    `compute`, `transfer` and `orchestration` are seconds: in which something is contracted, in which something travels,
    and in which neither happens (launches, the host, waiting for other ranks before they send). The first two overlap.
    """

    kind: str
    events: tuple[Event, ...]

    @property
    def seconds(self) -> float:
        """From the first begin to the last end."""
        return max((event.end for event in self.events), default=0.0)

    @property
    def compute(self) -> float:
        return _length(self._of(("compute",)))

    @property
    def transfer(self) -> float:
        return _length(self._of(self.transfers))

    @property
    def orchestration(self) -> float:
        return self.seconds - _length(_union([(event.begin, event.end) for event in self.events]))

    @property
    def hidden(self) -> float:
        """The share of transfer time in which something is contracted as well; 1 where nothing travels."""
        travel, work = self._of(self.transfers), self._of(("compute",))
        both = _length(travel) + _length(work) - _length(_union([*travel, *work]))
        return both / _length(travel) if travel and _length(travel) else 1.0

    @property
    def bounds(self) -> str:
        """What takes longest: "compute", "transfer" or "orchestration"."""
        found = {"compute": self.compute, "transfer": self.transfer, "orchestration": self.orchestration}
        return max(found, key=lambda name: found[name])

    @property
    def transfers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(event.lane for event in self.events if event.lane != "compute"))

    def __str__(self) -> str:
        lines = [
            f"{self.kind}: {duration(self.seconds)}; compute {duration(self.compute)}, transfer "
            f"{duration(self.transfer)} ({share(self.hidden)} of it hidden), orchestration "
            f"{duration(self.orchestration)}; {self.bounds} bounds it"
        ]
        if not self.seconds:
            return lines[0]
        lanes = ("compute", *self.transfers)
        wide = max(map(len, lanes))
        lines += [f"  {lane:<{wide}} |{self._row(lane)}|" for lane in lanes]
        lines.append(f"  {'':<{wide}}  0{duration(self.seconds):>{_WIDTH - 1}}")
        return "\n".join(lines)

    def table(self) -> str:
        """Every event with its begin and end."""
        wide = max((len(event.name) for event in self.events), default=0)
        return "\n".join(
            f"{duration(event.begin):>9} {duration(event.end):>9}  {event.lane:<9} {event.name:<{wide}}".rstrip()
            for event in self.events
        )

    def _row(self, lane: str) -> str:
        """One character for each 60th: digits count parts, a dot is idle."""
        row = ["."] * _WIDTH
        own = [event for event in self.events if event.lane == lane]
        for number, event in enumerate(own):
            first = int(event.begin / self.seconds * _WIDTH)
            last = max(first + 1, round(event.end / self.seconds * _WIDTH))
            for at in range(first, min(last, _WIDTH)):
                row[at] = "0123456789"[number % 10]
        return "".join(row)

    def _of(self, lanes: Sequence[str]) -> list[Interval]:
        return _union([(event.begin, event.end) for event in self.events if event.lane in lanes])


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
