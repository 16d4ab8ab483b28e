"""A recipe is its page: the blocks of Python run in order, and the block marked ``times`` says what is measured.

That block defines `SIZES`, an extent each for "test", "cpu" and "cuda", and `measured(n, device)`, which returns calls
without arguments by their names. All of them compute the same, within `TOLERANCE` (relative and of the largest value;
1e-4 where the page says nothing), unless the page says ``SAME = False``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "cookbook"
TOLERANCE = 1e-4
_BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Recipe:
    """The ways of a page that are measured."""

    name: str
    sizes: dict[str, int]  # by "test", "cpu" and "cuda"
    measured: Callable[[int, str], Calls]
    tolerance: float
    same: bool  # whether all calls compute the same

    def calls(self, device: str, size: str | None = None) -> Calls:
        """The calls at the size of a kind of device, or at one that is named."""
        return self.measured(self.sizes[size or device], device)


def pages() -> list[Path]:
    """The pages of recipes, by name."""
    return sorted(page for page in FOLDER.glob("*.md") if page.stem != "index")


def read(page: Path, device: str = "cpu") -> Recipe:
    """Run a page's blocks, those for a GPU only on one, and return its recipe; a traceback shows the page's lines."""
    text = page.read_text()
    namespace: dict[str, Any] = {"__name__": f"cookbook_{page.stem}"}
    for block in _BLOCK.finditer(text):
        if "gpu" in block[1].split() and device != "cuda":
            continue
        lines = "\n" * text.count("\n", 0, block.start(2))
        exec(compile(lines + block[2], str(page), "exec"), namespace)
    return Recipe(
        page.stem, namespace["SIZES"], namespace["measured"], namespace.get("TOLERANCE", TOLERANCE),
        namespace.get("SAME", True),
    )  # fmt: skip
