"""Threats to the validity of profiles: see `weft_bench.report.threats`, which has what all records share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft_bench.report.threats import (
    IN_CACHE,
    INTERVALS,
    OUT_OF_CACHE,
    RANDOM,
    clocks_of,
    few_samples,
    gathered,
    measured_at,
)

if TYPE_CHECKING:
    from weft_bench.profiling.network_profile import NetworkProfile
    from weft_bench.profiling.record import Record
    from weft_bench.profiling.timelines.record import TimelineRecord


def of_profiles(profiles: Sequence[Record]) -> dict[str, str]:
    """A few sentences of each kind for variants of one call."""
    first = profiles[0]
    chance = [INTERVALS, *few_samples([len(each.samples) for each in profiles if each.samples])]
    if any(each.counters for each in profiles):
        chance.append("Counters were read in one run, and have no intervals.")
    return gathered(_measured(profiles), _causes(profiles), measured_at(first.device, first.environment), chance)


def of_network(found: NetworkProfile) -> dict[str, str]:
    """A few sentences of each kind for a network and its steps."""
    measured = ["Steps are timed one by one with operands in the caches: in a call they find other ones there.", RANDOM]
    causes = ["Nothing was counted: what binds a step is what the roofline says of it.", *clocks_of([found.timing])]
    chance = [INTERVALS, *few_samples([len(each) for each in (found.samples, found.slice_samples) if each])]
    return gathered(measured, causes, measured_at(found.device, found.environment), chance)


def of_timelines(found: TimelineRecord) -> dict[str, str]:
    """A few sentences of each kind for ranks that share a contraction."""
    measured = ["A time is the slowest rank's; marks on each rank's stream take time of their own.", RANDOM]
    causes = ["Lanes say what happened at once, not what would be gained without it."]
    chance = [INTERVALS, *few_samples([len(found.samples)]), "The timelines are of one call."]
    return gathered(measured, causes, measured_at(found.device, found.environment), chance)


def _measured(profiles: Sequence[Record]) -> Iterator[str]:
    yield IN_CACHE if profiles[0].timing.get("mode") == "hot" else OUT_OF_CACHE
    yield RANDOM
    if any(each.launches for each in profiles):
        yield "Launches are timed with warm caches: they add up to another time than the call's."
    if any(each.counters for each in profiles):
        yield (
            "Counters are of kernels that are replayed alone, caches emptied before each pass: what one launch leaves "
            "in the L2 for the next is not in them."
        )


def _causes(profiles: Sequence[Record]) -> Iterator[str]:
    if all(each.counters for each in profiles):
        yield "Rules over the counters of one launch say what binds it, not what would be gained were it otherwise."
    else:
        yield "Not all was counted: without counters what binds is what the roofline says."
    yield from clocks_of([each.timing for each in profiles if each.samples])
