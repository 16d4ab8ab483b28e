"""Figures on pages, each by its name in a device's summary: `python tools/figures.py` writes them anew.

A comment names those of its section, in the order in which they stand after it:

    <!-- figures of h200: tccg.fp16_fp32.gm1_cutensor fusion.leaky_relu_vs_cutensor -->

`name:low` and `name:high` are the ends of its interval. Every number with a decimal point in prose is one, rounded to
as many decimals as it is written with. A whole table stands between two comments, as `tables` makes it of a record:

    <!-- table of tuning_draws -->
    <!-- end of table -->

A test holds pages to what this writes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import tables

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md", "docs/figures.md", "docs/functions.md", "docs/plans.md", "docs/limits.md", "docs/tuning.md",
    "docs/ladder.md", "docs/cookbook/index.md", "docs/commands/report.md", "docs/planning.md",
    "docs/benchmarks.md",
)  # fmt: skip
_TABLE = re.compile(r"(<!-- table of (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_SCOPE = re.compile(r"<!-- figures of (\w+):([^>]*?)-->(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"(?:```.*?```|<!-- table of.*?<!-- end of table -->)|(?<![\w.])\d+\.\d+(?![\w.]*\d)", re.DOTALL)
_LEFT = ("```", "<!--")  # what stands between these has figures of its own


def written(text: str) -> str:
    """A page with its figures as records have them; `ValueError` where names and numbers are not as many."""
    text = _TABLE.sub(lambda found: f"{found[1]}\n{tables.TABLES[found[2]]()}\n\n{found[3]}", text)
    return _SCOPE.sub(_of_scope, text)


def _of_scope(scope: re.Match[str]) -> str:
    device, listed, text = scope.groups()
    names = listed.split()
    summary = json.loads((ROOT / "results" / device / "summary.json").read_text())
    numbers = [found.group() for found in _NUMBER.finditer(text) if not found.group().startswith(_LEFT)]
    if len(numbers) != len(names):
        pairs = "; ".join(f"{number} {name}" for number, name in zip(numbers, names, strict=False))
        raise ValueError(f"{len(numbers)} figures, {len(names)} names: {pairs}")
    left = iter(names)

    def figure(found: re.Match[str]) -> str:
        if found.group().startswith(_LEFT):
            return found.group()
        name, _, end = next(left).partition(":")
        return f"{summary[name][end or 'value']:.{len(found.group().partition('.')[2])}f}"

    return f"<!-- figures of {device}:{listed}-->{_NUMBER.sub(figure, text)}"


if __name__ == "__main__":
    for page in PAGES:
        file = ROOT / page
        file.write_text(written(file.read_text()))
