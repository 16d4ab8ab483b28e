"""A climb as rows of text: the table that the terminal and the page show alike, and a list of what there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.base.figures import duration as seconds
from weft_bench.ladder.record import Climb, Step
from weft_bench.ladder.rung import Flight, Ladder, predicted_gain, published_gain

LIST_HEADS = ("", "rung", "written in", "predicted", "published", "idea")
SHORT = (0, 1, 2, 4, 7, 8, 9, 11, 12)  # the columns of `HEADS` that a terminal has room for
HEADS = (
    "", "rung", "time", "rate", "share", "predicted share", "published share", "gain", "predicted", "published", "over",
    "error", "energy",
)  # fmt: skip
NOT_MEASURED = (
    "No GPU: the kernels went through simulator and interpreter on tiny tensors. Their values were checked; times are "
    "not measured."
)


def listed(ladder: Ladder, flight: Flight) -> Iterator[tuple[str, ...]]:
    """A row for each rung of a flight, under `LIST_HEADS`; gains are over the rung that it is held against."""
    for number, of, rung in ladder:
        if of is flight:
            before = flight.before(rung)
            yield (
                str(number), rung.name, rung.tool, times(predicted_gain(before, rung)), times(published_gain(rung)),
                rung.title,
            )  # fmt: skip


def steps(climb: Climb, flight: str) -> list[Step]:
    """The rungs of a flight, in order."""
    return [step for step in climb.steps if step.flight == flight]


def rows(climb: Climb, flight: str) -> Iterator[tuple[str, ...]]:
    """A row for each rung of a flight, under `HEADS`."""
    for step in steps(climb, flight):
        yield (
            str(step.number), step.name, duration(step), rate(step), share(step.share), share(step.predicted_share),
            published_share(step), times(step.gain), times(step.predicted_gain), times(step.published_gain),
            step.over, error(step), joules(step),
        )  # fmt: skip


def flights(climb: Climb) -> list[str]:
    """The flights that a climb has steps of, in order."""
    return list(dict.fromkeys(step.flight for step in climb.steps))


def remarks(climb: Climb) -> Iterator[str]:
    """A sentence for each rung that did not run, is wrong, or was timed otherwise than the others."""
    return (said for step in climb.steps for said in remarks_of(step))


def remarks_of(step: Step) -> Iterator[str]:
    """The sentences of one rung."""
    for said in (step.missing and f"not run: {step.missing}", step.wrong and f"wrong: {step.wrong}", *step.notes):
        if said:
            yield f"{step.number} {step.name}: {said}"


def duration(step: Step) -> str:
    found = step.interval
    if found is None:
        return "" if step.state == "right" else step.state
    return seconds(found.value)


def rate(step: Step) -> str:
    return f"{step.rate[0]:.3g} {step.rate[1]}" if step.rate is not None else ""


def share(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"


def published_share(step: Step) -> str:
    """The first share that a source names, and of what."""
    found = next((each for each in step.published if each["share"] is not None), None)
    return f"{share(found['share'])} of {found['of']}" if found is not None else ""


def times(value: float | None) -> str:
    return f"{value:.3g} x" if value is not None else ""


def error(step: Step) -> str:
    """The largest error in units of its bound: 1 would just be right."""
    if step.error_over_bound is None:
        return "wrong" if step.wrong else ""
    return "exact" if step.error_over_bound == 0 else f"{step.error_over_bound:.2g}"


def joules(step: Step) -> str:
    """The energy of a call, where it was measured."""
    energy = step.profile.get("energy")
    return f"{energy['joules']:.3g} J" if energy else ""


def plain(ladder: Ladder, numbers: Sequence[int]) -> Iterator[str]:
    """Idea, picture and source of rungs, to be read."""
    for number, flight, rung in ladder:
        if number in numbers:
            before = flight.before(rung)
            yield f"{ladder.name} {number}, {flight.name}: {rung.name}. {rung.title}\n\n{rung.idea}\n\n{rung.picture}\n"
            yield f"predicted: {share(1 / rung.predicted.times_floor)} of the roof; {rung.predicted.because}"
            if before is not None:
                yield f"predicted gain over '{before.name}': {times(predicted_gain(before, rung))}"
            yield from (f"published: {each.figure} ({each.source})" for each in rung.published)
            yield "\n" + rung.source
