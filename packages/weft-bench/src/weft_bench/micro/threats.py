"""Threats to the validity of microbenchmarks: see `weft_bench.report.threats`, which has what all records share."""

from __future__ import annotations

from collections.abc import Iterator

from weft.base.figures import counted
from weft_bench.micro.record import Micros
from weft_bench.report.threats import gathered, measured_at


def of_micros(micros: Micros) -> dict[str, str]:
    """A few sentences of each kind."""
    places = [*measured_at(micros.device, micros.environment), "What is published is of another device and its clocks."]
    return gathered(_measured(micros), _causes(micros), places, _chance(micros))


def _measured(micros: Micros) -> Iterator[str]:
    yield "Each kernel is made so that one mechanism binds: in a program several do at once, and each costs less."
    if lacking := sum(bool(each.missing) for each in micros.found):
        yield f"Not run: {lacking} of {counted(len(micros.found), 'microbenchmark')}."


def _causes(micros: Micros) -> Iterator[str]:
    yield "A figure is put down to what was varied: nothing says that nothing else went with it."
    if not any("%" in name and name[0] == "K" for each in micros.found for name in each.columns):
        yield "No counters were read."


def _chance(micros: Micros) -> Iterator[str]:
    yield "Values are medians of one process without intervals: another process or day gives others."
    yield from (f"{each.name}: {each.doubt}." for each in micros.found if each.doubt)
