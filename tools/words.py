"""Check the words of docstrings and pages: `python -m words [file or folder ...]`, a part of `make lint`.

Two rules:

* a docstring does not begin with "What", "Those", "The same" or "Of": its subject is a noun of the field;
* no docstring and no page has a clause with "of which" after a comma.

Without arguments all sources, the tools and the pages are checked. The tests are not held yet.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLEAN = (
    "src", "packages/weft-bench/src", "packages/weft-bench/README.md", "packages/weft-kernels/src",
    "packages/weft-kernels/README.md", "tools", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
)  # fmt: skip
_BEGINNING = re.compile(r"(What|Those|The same|Of)\b")
_WITHIN = re.compile(r",\s+of\s+which\b")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def of_docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Line and message of each fault in the docstrings of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        found = ast.get_docstring(node)
        if found is None:
            continue
        line = node.body[0].lineno
        if begins := _BEGINNING.match(found):
            yield line, f'the docstring begins with "{begins[1]}": begin with the noun'
        for within in _WITHIN.finditer(found):
            yield line + found.count("\n", 0, within.start()), 'the docstring says ", of which": make it two clauses'


def of_page(text: str) -> Iterator[tuple[int, str]]:
    """Line and message of each fault in a page, outside of its fenced blocks."""
    prose = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
    for within in _WITHIN.finditer(prose):
        yield prose.count("\n", 0, within.start()) + 1, 'the page says ", of which": make it two clauses'


def faults(path: Path) -> Iterator[str]:
    """Faults of a file, or of all Python and Markdown files in a folder, each as one line of text."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        check = {".py": of_docstrings, ".md": of_page}.get(file.suffix)
        for line, message in sorted(check(file.read_text())) if check else ():
            yield f"{file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}:{line}: {message}"


def main(*paths: str) -> int:
    """The exit code: 1 where anything was found."""
    found = [fault for path in map(Path, paths or (str(ROOT / room) for room in CLEAN)) for fault in faults(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
