"""The pages of docs/ladder, one for each ladder, made of the rungs themselves and of climbs that were measured.

`python docs/ladder_pages.py` writes them anew; a test holds the pages against this.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from weft.base.figures import duration
from weft_bench.dense_thesis import counted_how
from weft_bench.ladder import LADDERS, Climb, Flight, Ladder, Rung, Step
from weft_bench.ladder.counted import SHARED, counted_bytes, longest
from weft_bench.ladder.published import counters_of
from weft_bench.ladder.record import PREFIX, read
from weft_bench.ladder.recorded import recordings
from weft_bench.ladder.rung import predicted_gain, published_gain
from weft_bench.ladder.text import joules, rate, share, times
from weft_bench.profiling.counters import CounterSet

FOLDER = Path(__file__).parent / "ladder"
ROOT = FOLDER.parents[1]
RESULTS = ("results/h200/ladder", "results/cpu/ladder")
DOUBLE = "fp64"  # the flights in the type of the source that has counters
_WIDTH = 119
_JOINED = "The record was joined by hand: {}. Gains between parts hold two cards against each other. "
_ENERGY = "Joules are of calls one after another without the rests that times have, so at lower clocks. "


def pages() -> dict[Path, str]:
    """The text of each page by its file."""
    return {FOLDER / f"{each.name}.md": page(each) for each in LADDERS.values()}


def page(ladder: Ladder) -> str:
    """A table of all rungs, then each of them."""
    parts = [f"# {ladder.name.capitalize()}", ladder.says, _filled(measured_by(ladder))]
    told: set[str] = set()  # kernels that serve several flights are told of once
    for flight in ladder.flights:
        parts += [f"## {flight.name}", flight.says, *timed_of(ladder, flight)]
        parts += [table(ladder, flight), *remarks(ladder, flight)]
        parts += counters(ladder, flight)
        for number, of, rung in ladder:
            if of is flight and rung.module not in told:
                parts.append(rung_text(number, rung))
                told.add(rung.module)
            elif of is flight and rung.published:
                figures = "; ".join(f"{each.figure} ({each.source})" for each in rung.published)
                parts.append(_filled(f"*{rung.name}*, shown above, was published with {figures}."))
    return "\n\n".join(parts) + "\n"


def timed_of(ladder: Ladder, flight: Flight) -> list[str]:
    """The problems that the recorded times of a flight are of."""
    steps = [_step(climb(ladder.name), flight, rung) for _, rung in _rungs(ladder, flight)]
    problems = dict.fromkeys(step.problem for step in steps if step is not None)
    return [_filled(f"Timed: {'; '.join(problems)}.")] if problems else []


def table(ladder: Ladder, flight: Flight) -> str:
    """The time of each rung, on other GPUs too where it was recorded, and its gain over the rung before it."""
    known = climb(ladder.name)
    others = [each for each in recordings() if known is None or each.device != known.device]
    rows = []
    for number, rung in _rungs(ladder, flight):
        before, step = flight.before(rung), _step(known, flight, rung)
        elsewhere = [each.of(ladder.name, flight.name, rung.name) for each in others]
        taken = [step.seconds["value"] if step else None, *(each[0] if each else None for each in elsewhere)]
        below = _step(known, flight, before) if before is not None else None
        gain = below.seconds["value"] / step.seconds["value"] if step and below else None
        gains = gain, predicted_gain(before, rung), published_gain(rung)
        rows.append((
            str(number), rung.name, rung.tool, *(_together(duration(each)) if each else "" for each in taken),
            *(_together(each) for each in (_rate_and_energy(step) if step else ("", "", ""))),
            share(step.share if step else None), before.name if before is not None else "",
            *(_together(times(each)) for each in gains),
        ))  # fmt: skip
    heads = ("rung", "written in", "time", *(each.brief for each in others), "rate", "energy", "work a joule", "roof")
    return _markdown((*heads, "over", "gain", "predicted", "published"), rows)


def _rate_and_energy(step: Step) -> tuple[str, str, str]:
    """Work in a second, the energy of a call, and work for each joule, where they are known."""
    spent = step.profile.get("energy")
    if not spent:
        return rate(step), "", ""
    work, unit = (step.flops, "GFLOP") if step.flops else (step.bytes, "GB")
    return rate(step), joules(step), f"{work / spent['joules'] / 1e9:.3g} {unit}"


def remarks(ladder: Ladder, flight: Flight) -> list[str]:
    """A sentence on a flight of which no rung has a time, and on rungs that were timed at lower clocks."""
    known = climb(ladder.name)
    if known is None:
        return []
    steps = [step for _, rung in _rungs(ladder, flight) if (step := _step(known, flight, rung))]
    if steps:
        slowed = [
            f"{step.number} {step.name} ({clocks['sm_mhz']} MHz: {', '.join(clocks['throttled'])})"
            for step in steps
            if (clocks := step.profile.get("timing", {}).get("clocks")) and clocks["throttled"]
        ]
        said = f"The device held its clocks down while these were timed: {'; '.join(slowed)}."
        return [_filled(said)] if slowed else []
    numbers = [number for number, _ in _rungs(ladder, flight)]
    command = f"weft ladder {ladder.name} --rung {numbers[0]}-{numbers[-1]}"
    return [_filled(f"No times of these rungs are recorded yet: `{command}` measures them.")]


def counters(ladder: Ladder, flight: Flight) -> list[str]:
    """Counters of the rungs of a flight, and those that a source has of the same kernels."""
    known = climb(ladder.name)
    found = [(number, rung, _step(known, flight, rung)) for number, rung in _rungs(ladder, flight)]
    own = {number: longest(step) for number, _, step in found if step is not None}
    if any(own.values()) and known is not None:
        rows = [(number, rung, own[number]) for number, rung, _ in found if own.get(number)]
        said = f"Counters of an {known.device}, {known.date[:10]}: `{_command(known)}`."
        told = f" In brackets: the same kernels, published in double precision: {counted_how()}."
    elif flight.name == DOUBLE:
        rows = [(number, rung, None) for number, rung, _ in found if counters_of(rung)]
        said, told = "Counters of the same kernels", f", published in double precision: {counted_how()}."
    else:
        return []
    cells = [
        (str(number), rung.name, *_beside(counted, counters_of(rung)), *_under_the_roof(_step(known, flight, rung)))
        for number, rung, counted in rows
    ]
    if any(counters_of(rung) for _, rung, _ in rows):
        said += told
    heads = ("rung", *(each.name for each in SHARED), "FLOP a byte of DRAM", "of the roof at that intensity")
    return [_filled(said), _markdown(heads, cells)]


def _under_the_roof(step: Step | None) -> tuple[str, str]:
    """The intensity by the bytes that were counted, and the share of what the roofline allows there."""
    moved = counted_bytes(step) if step is not None else None
    if step is None or not moved or not step.seconds:
        return "", ""
    memory = step.floor["memory"] * moved / step.bytes  # of what was moved, at the rate of the compulsory bytes
    reached = max(memory, step.floor["compute"]) / step.seconds["value"]
    return f"{step.flops / moved:.3g}" if step.flops else "", share(reached)


def _beside(own: CounterSet | None, source: Mapping[str, float]) -> Iterator[str]:
    """Counters, a source's in brackets behind; alone where there are no others."""
    for metric in SHARED:
        here, there = _together(metric.of(own)), _together(metric.published(source))
        yield f"{here} ({there})" if here and there else here or there


def measured_by(ladder: Ladder) -> str:
    """Where the times of the page are from."""
    found = climb(ladder.name)
    if found is None:
        return f"Times of a machine are shown by `weft ladder {ladder.name}`; none is recorded yet."
    has_roof = any(each.share for each in found.steps)
    joined = found.environment["artifacts"].get("joined by hand", "")
    has_sources = any(published_gain(rung) for _, rung in ladder.rungs)
    return (
        f"Times are from {f'more than one {found.device}' if joined else f'one {found.device}'}, {found.date[:10]}, "
        f"commit {str(found.environment['artifacts']['commit'])[:8]}: `{_command(found)}`. "
        f"{_JOINED.format(joined) * bool(joined)}"
        f"{_ENERGY * any(each.profile.get('energy') for each in found.steps)}"
        f"{'*roof* is the share of the roofline floor that a rung reaches; ' * has_roof}"
        "*gain* is the speedup over the rung named before it, next to the predicted one"
        f"{' and the one that the source published for its own machine' * has_sources}. "
        f"The file `{_file(ladder.name)}` has all of it."
    )


@cache
def climb(name: str) -> Climb | None:
    """A ladder as it was measured; None where it was not."""
    folders = [ROOT / folder for folder in RESULTS if (ROOT / folder).is_dir()]
    return next((each for folder in folders for each in read(folder) if each.ladder == name), None)


def _file(name: str) -> str:
    files = (f"{folder}/{PREFIX}{name}.json" for folder in RESULTS)
    return next(each for each in files if (ROOT / each).exists())


def _command(found: Climb) -> str:
    """The command of a record, without the folder that it was written to."""
    command: str = found.environment["artifacts"]["command"]
    return command.removeprefix("python -m ").partition(" --out")[0]


def _rungs(ladder: Ladder, flight: Flight) -> Iterator[tuple[int, Rung]]:
    return ((number, rung) for number, of, rung in ladder if of is flight)


def _step(known: Climb | None, flight: Flight, rung: Rung) -> Step | None:
    """A rung as it was measured; None for one that was not."""
    step = known.step(flight.name, rung.name) if known is not None else None
    return step if step is not None and step.seconds else None


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table under a column of numbers and these heads, without the columns that are empty throughout."""
    kept = [at for at in range(len(heads)) if any(row[at + 1] for row in rows)]
    lines = [f"| {' | '.join((row[0], *(row[at + 1] for at in kept)))} |" for row in rows]
    return "\n".join([f"| | {' | '.join(heads[at] for at in kept)} |", "|-" * (len(kept) + 1) + "|", *lines])


def _together(text: str) -> str:
    """A number and its unit, which no line break parts."""
    return text.replace(" ", "&nbsp;")


def rung_text(number: int, rung: Rung) -> str:
    """Idea, picture, prediction, sources and kernel."""
    file = f"packages/weft-bench/src/weft_bench/ladder/{rung.module.replace('.', '/')}.py"
    predicted = f"Predicted: {share(1 / rung.predicted.times_floor)} of the roof; {rung.predicted.because}."
    sources = [f"* {each.figure}: {each.source}" for each in rung.published]
    first = rung.text.count("\n") - rung.source.count("\n") + 1
    parts = [
        f"### {number} {rung.name}",
        *(_filled(each) for each in (f"**{rung.title}.**", *rung.idea.split("\n\n"))),
        f"```text\n{rung.picture}\n```",
        _filled(predicted),
        *(["Published:\n\n" + "\n".join(_filled(each, "  ") for each in sources)] if sources else []),
        f"The kernel, `{file}`:",
        f"```{{literalinclude}} ../../{file}\n:language: python\n:lines: {first}-\n```",
    ]
    return "\n\n".join(parts)


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        file.write_text(text)
