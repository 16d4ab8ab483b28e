"""The pages of docs/ladder say what the rungs say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import DOCS, docs_module

made = docs_module("ladder_pages").pages()


@pytest.mark.parametrize("file", sorted(made), ids=lambda file: file.stem)
def test_pages_are_up_to_date(file: Path) -> None:
    """`python docs/ladder_pages.py` writes them anew."""
    assert file.read_text() == made[file]


def test_no_other_page_is_there() -> None:
    assert sorted((DOCS / "ladder").glob("*.md")) == sorted(made)


def test_kernels_are_shown_from_their_first_line_on() -> None:
    """The lines that a page takes of a file begin after its docstring."""
    text = made[DOCS / "ladder" / "multiply.md"]
    file = DOCS.parent / "packages" / "weft-bench" / "src" / "weft_bench" / "ladder" / "multiply" / "naive.py"
    first = int(text.partition("multiply/naive.py\n:language: python\n:lines: ")[2].partition("-")[0])
    assert file.read_text().splitlines()[first - 1].startswith("from weft_bench.ladder.threads import")
