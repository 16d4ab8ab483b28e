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


def words(name: str) -> str:
    return " ".join(made[DOCS / "ladder" / f"{name}.md"].replace("&nbsp;", " ").split())


def test_the_cpu_page_quotes_its_record_and_no_gpu() -> None:
    assert "`results/cpu/ladder/ladder-cpu.json` has all of it" in words("cpu")
    assert "| rung | written in | time | over | gain | predicted |" in words("cpu")
    assert "none is recorded" not in words("cpu")


def test_recorded_sums_are_shown_but_for_the_rung_that_torch_served() -> None:
    assert "`results/h200/ladder-counters/ladder-reduce.json` has all of it" in words("reduce")
    assert "| 1 | neighbours | numba-cuda | 64.7 us | 100% |" in words("reduce")
    assert "| 4 | weft | weft | | | shuffles | | 1.05 x |" in words("reduce")
    assert "*weft* has no time here: torch served these calls" in words("reduce")


def test_published_counters_stand_in_brackets_and_double_precision_apart() -> None:
    """Rungs in fp32 have no published gain of the thesis; those in fp64 have, and say that no time is recorded."""
    rows, _, doubles = words("transpose").partition("## fp64")
    assert "| 2 | diagonal tiles | 100 % (99.71 %) | 95.57 % (71.63 %) |" in rows
    assert "published in double precision: Quadro P6000, nvprof" in rows
    assert "| predicted | published |" not in rows
    assert "| in place | numba-cuda | padded tiles | 1 x | 1.43 x |" in doubles
    assert "No time of these rungs is recorded yet: `weft ladder transpose --rung 19-25`" in doubles
    assert "| 19 | diagonal tiles | 99.71 % | 71.63 % |" in doubles
