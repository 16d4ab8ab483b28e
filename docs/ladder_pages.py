"""The pages of docs/ladder, one for each ladder, made of the rungs themselves and of a climb that was measured.

`python docs/ladder_pages.py` writes them anew; a test holds the pages against this.
"""

from __future__ import annotations

import json
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from weft.base.figures import duration
from weft_bench.ladder import LADDERS, Flight, Ladder, Rung
from weft_bench.ladder.recorded import recordings
from weft_bench.ladder.rung import predicted_gain, published_gain
from weft_bench.ladder.text import share, times

FOLDER = Path(__file__).parent / "ladder"
MEASURED = FOLDER.parents[1] / "results" / "h200" / "ladder"
_WIDTH = 119


def pages() -> dict[Path, str]:
    """The text of each page by its file."""
    return {FOLDER / f"{each.name}.md": page(each) for each in LADDERS.values()}


def page(ladder: Ladder) -> str:
    """A table of all rungs, then each of them."""
    parts = [f"# {ladder.name.capitalize()}", ladder.says, _filled(measured_by(ladder))]
    told: set[str] = set()  # kernels that serve several flights are told of once
    for flight in ladder.flights:
        parts += [f"## {flight.name}", flight.says, table(ladder, flight)]
        for number, of, rung in ladder:
            if of is flight and rung.module not in told:
                parts.append(rung_text(number, rung))
                told.add(rung.module)
            elif of is flight and rung.published:
                figures = "; ".join(f"{each.figure} ({each.source})" for each in rung.published)
                parts.append(_filled(f"*{rung.name}*, a kernel that is shown above, was published as {figures}."))
    return "\n\n".join(parts) + "\n"


def table(ladder: Ladder, flight: Flight) -> str:
    """The time of each rung, on other GPUs too where it was recorded, and its gain over the rung before it."""
    others = [each for each in recordings() if each.device != climb(ladder.name)["device"]]
    heads = (
        "rung", "written in", "time", *(each.brief for each in others), "roof", "over", "gain", "predicted", "published"
    )  # fmt: skip
    lines = [f"| | {' | '.join(heads)} |", "|-" * (len(heads) + 1) + "|"]
    for number, of, rung in ladder:
        if of is flight:
            before, step = flight.before(rung), _step(ladder.name, flight.name, rung.name)
            elsewhere = [each.of(ladder.name, flight.name, rung.name) for each in others]
            own = step["seconds"]["value"] if step.get("seconds") else None
            taken = [own, *(each[0] if each else None for each in elsewhere)]
            gains = step.get("gain"), predicted_gain(before, rung), published_gain(rung)
            found = (
                str(number), rung.name, rung.tool, *(_together(duration(each)) if each else "" for each in taken),
                share(step.get("share")), before.name if before is not None else "",
                *(_together(times(each)) for each in gains),
            )  # fmt: skip
            lines.append(f"| {' | '.join(found)} |")
    return "\n".join(lines)


def _together(text: str) -> str:
    """A number and its unit, which no line break parts."""
    return text.replace(" ", "&nbsp;")


def measured_by(ladder: Ladder) -> str:
    """Where the times of the page are from."""
    found = climb(ladder.name)
    if not found["steps"]:
        return f"Times of a machine are shown by `weft ladder {ladder.name}`; none is recorded yet."
    command = found["environment"]["artifacts"]["command"].removeprefix("python -m ")
    file = f"results/h200/ladder/ladder-{ladder.name}.json"
    return (
        f"Times are from one {found['device']}, {found['date'][:10]}: `{command}`. *roof* is the share of the roofline "
        "floor that a rung reaches; *gain* is over the rung that is named before it, beside what was predicted and "
        f"what the source published for its own machine. The file `{file}` has all of it."
    )


@cache
def climb(name: str) -> dict[str, Any]:
    """A ladder as it was measured; without steps where it was not."""
    file = MEASURED / f"ladder-{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"device": "", "steps": []}
    return found


def _step(ladder: str, flight: str, rung: str) -> dict[str, Any]:
    """A rung as it was measured; empty for one that was not."""
    named = ((step["flight"], step["name"], step) for step in climb(ladder)["steps"])
    return next((step for of, name, step in named if (of, name) == (flight, rung)), {})


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
