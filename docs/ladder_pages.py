"""The pages of docs/ladder, one for each ladder, made of the rungs themselves.

`python docs/ladder_pages.py` writes them anew; a test holds the pages against this.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from weft.ladder import LADDERS, Flight, Ladder, Rung
from weft.ladder.rung import predicted_gain, published_gain
from weft.ladder.text import share, times

FOLDER = Path(__file__).parent / "ladder"
_WIDTH = 119


def pages() -> dict[Path, str]:
    """The text of each page by its file."""
    return {FOLDER / f"{each.name}.md": page(each) for each in LADDERS.values()}


def page(ladder: Ladder) -> str:
    """A table of all rungs, then each of them."""
    parts = [f"# {ladder.name.capitalize()}", ladder.says]
    told: set[str] = set()  # kernels that serve several flights are told of once
    for flight in ladder.flights:
        parts += [f"## {flight.name}", flight.says, table(ladder, flight)]
        for number, of, rung in ladder:
            if of is flight and rung.module not in told:
                parts.append(rung_text(number, rung))
                told.add(rung.module)
    return "\n\n".join(parts) + "\n"


def table(ladder: Ladder, flight: Flight) -> str:
    """Gains over the rung that each is held against."""
    lines = ["| | rung | written in | over | predicted gain | published gain |", "|-|-|-|-|-|-|"]
    for number, of, rung in ladder:
        if of is flight:
            before = flight.before(rung)
            over = before.name if before is not None else ""
            gains = f"{times(predicted_gain(before, rung))} | {times(published_gain(rung))}"
            lines.append(f"| {number} | {rung.name} | {rung.tool} | {over} | {gains} |")
    return "\n".join(lines)


def rung_text(number: int, rung: Rung) -> str:
    """Idea, picture, prediction, sources and kernel."""
    file = f"src/weft/ladder/{rung.module.replace('.', '/')}.py"
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
