"""The pages of docs/ladder say what the rungs say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import DOCS, docs_module
from weft_bench.ladder.counted import longest

ladder_pages = docs_module("ladder_pages")
climb = ladder_pages.climb
made = ladder_pages.pages()


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
    assert "| rung | written in | time | rate | over | gain | predicted |" in words("cpu")
    assert "joined" not in words("cpu")
    assert "none is recorded" not in words("cpu")


def test_recorded_sums_are_shown_with_their_counters() -> None:
    assert "`results/h200/ladder/ladder-reduce.json` has all of it" in words("reduce")
    assert "| 1 | neighbours | numba-cuda | 65.3 us | 1.03 TFLOP/s | 0.0479 J | 1.4 GFLOP | 99% |" in words("reduce")
    assert "| 0.0384 J | 1.75 GFLOP | 107% | shuffles | 1.12 x | 1.05 x |" in words("reduce")
    assert "| 4 | weft | 99.68 % | 60.36 % | 0.3256 | 4293 GB/s |" in words("reduce")


def test_a_record_of_several_cards_says_so() -> None:
    """What was joined by hand, and which rungs were timed at lower clocks, stand on the page."""
    for name in ("multiply", "transpose", "tensor", "reduce"):
        assert "Times are from more than one NVIDIA H200" in words(name)
        assert "joined by hand: rungs 1 to" in words(name)
    assert "The device held its clocks down while these were timed: 19 warp groups (1965 MHz" in words("multiply")


def test_what_the_overview_says_of_double_precision_and_of_two_sites() -> None:
    steps = {(step.flight, step.name): step for name in ("multiply", "tensor") for step in climb(name).steps}
    text = " ".join((DOCS / "ladder.md").read_text().split())
    flat = longest(steps["fp64", "flat tiles"])
    assert f"is busy {flat.get('alu'):.0f} % of the time and the FP64 pipe {flat.get('fp64'):.0f} %" in text
    assert f"{steps['fp64', 'flat tiles'].rate[0]:.1f} TFLOP/s of 34" in text
    sizes, products = (
        1e6 * steps["two-site", name].seconds["value"] for name in ("7 sizes for the shape", "two batched products")
    )
    said = f"{sizes:.0f} us with sizes for the shape, {products:.0f} as two"
    assert said in " ".join((DOCS / "figures.md").read_text().split())


def test_rungs_stand_under_the_roof_by_the_bytes_that_were_counted() -> None:
    assert "FLOP a byte of DRAM | of the roof at that intensity |" in words("multiply")
    assert "| 1 | naive | 100 % | 98.96 % | 0.2332 | 30.68 GB/s | 0.2774 GB/s | 16.1 | 1.0% |" in words("multiply")


def test_published_counters_stand_in_brackets_beside_those_of_double_precision() -> None:
    """Rungs in fp32 have no published gain of the thesis; those in fp64 have."""
    rows, _, doubles = words("transpose").partition("## fp64")
    assert "| predicted | published |" not in rows
    assert "| 17 | weft | weft | 525 us | 4.09 TB/s | 0.351 J | 6.12 GB | 97% |" in rows
    assert "published in double precision: Quadro P6000, nvprof" in doubles
    assert "| in place | numba-cuda | 560 us |" in doubles
    assert "| 68% | padded tiles | 1.14 x | 1 x | 1.43 x |" in doubles
    assert "| 19 | diagonal tiles | 99.98 % (99.71 %) |" in doubles
