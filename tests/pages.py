"""The pages of the documentation, as tests read them: README and all of docs/, and their fenced blocks."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: the words after its language, its text, and the line of the page that it starts at."""

    marks: tuple[str, ...]
    text: str
    line: int


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[Block]:
    """The blocks of one language, from top to bottom."""
    text = page.read_text()
    return [
        Block(tuple(found[2].split()), found[3], text.count("\n", 0, found.start(3)))
        for found in _FENCE.finditer(text)
        if found[1] == language
    ]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def docs_module(name: str) -> ModuleType:
    """A Python file of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
