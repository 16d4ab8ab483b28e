"""A directive for recipes: ``{times}`` shows what `python -m cookbook` measured of the page that it stands on.

Figures are read from results/*/cookbook.json, so that none is typed by hand. A machine has a column.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from weft.base.figures import duration

ON_A_GPU = "PYTHONPATH=src:tools python -m cookbook {name} --device cuda --out results/h200/cookbook.json"
RESULTS = Path(__file__).resolve().parent.parent / "results"


def records() -> list[tuple[Path, dict[str, Any]]]:
    """Every file of results, CPUs first."""
    found = [(file, json.loads(file.read_text())) for file in sorted(RESULTS.glob("*/cookbook.json"))]
    return sorted(found, key=lambda each: each[1]["machine"]["kind"] != "cpu")


def described(name: str) -> str:
    """Markdown: a table of times, a row for each way, and how they were measured."""
    known = [(file, record) for file, record in records() if name in record["recipes"]]
    lines: list[str] = []
    if known:
        heads = [f"{_machine(record['machine'])}, n = {record['recipes'][name]['size']}" for _, record in known]
        lines += [f"| | {' | '.join(heads)} |", "|-|" + "-:|" * len(known)]
        times = [record["recipes"][name]["times"] for _, record in known]
        for way in dict.fromkeys(way for each in times for way in each):
            lines.append(f"| {way} | {' | '.join(_cell(each.get(way)) for each in times)} |")
        lines += ["", "Medians, in brackets the interval that holds them with 95 % confidence.", ""]
        if any(_with_host(time) for each in times for time in each.values()):
            lines += ["(host): the host's work included, as these calls cannot be captured in a CUDA graph.", ""]
    for file, record in known:
        recipe = record["recipes"][name]
        when = f"at commit {recipe['commit'][:7]}, {recipe['date'][:10]} (`results/{file.parent.name}`)"
        lines += [f"`{command(record, name)}` {when}.", ""]
    if not any(record["machine"]["kind"] != "cpu" for _, record in known):
        lines.append(f"Not measured on a GPU yet: `{ON_A_GPU.format(name=name)}`.")
    return "\n".join(lines)


def command(record: dict[str, Any], name: str) -> str:
    """The command of a record for one recipe alone: others that it named, or left out, are not of this page."""
    words = [word for word in record["command"].split() if word not in record["recipes"] and word != "--missing"]
    at = words.index("cookbook") + 1
    return " ".join([*words[:at], name, *words[at:]])


def _machine(stamp: dict[str, Any]) -> str:
    threads = stamp.get("threads")
    name = stamp["name"].replace("|", " ")
    return f"{name}, {threads} thread{'s' if threads != 1 else ''}" if threads else name


def _cell(time: dict[str, Any] | None) -> str:
    if time is None:
        return ""
    if "cannot" in time:
        return str(time["cannot"]).replace("|", " ")
    host = " (host)" if _with_host(time) else ""
    return f"{duration(time['seconds'])} [{duration(time['low'])}, {duration(time['high'])}]{host}"


def _with_host(time: dict[str, Any]) -> bool:
    return any(note.startswith("not captured") for note in time.get("notes", ()))


class Times(SphinxDirective):
    """Takes nothing: the recipe is the page."""

    def run(self) -> list[nodes.Node]:
        for file, _ in records():
            self.env.note_dependency(str(file))
        return self.parse_text_to_nodes(described(self.env.docname.rpartition("/")[2]))


def setup(sphinx: Sphinx) -> dict[str, bool]:
    sphinx.add_directive("times", Times)
    return {"parallel_read_safe": True}
