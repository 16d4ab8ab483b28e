"""The page in a real browser: it renders, sorts on a click, has nothing to complain of, and fetches nothing."""

import html
from dataclasses import replace
from pathlib import Path

import pytest

import browser as browsing
from browser import Browser
from runs import case, run
from weft_bench.records import Result, Run
from weft_bench.report.page import Cell, Table, case_table, run_page
from weft_bench.report.plots import draw
from weft_bench.report.summary import compare, comparison_page

browser = browsing.browser
TIMES = {"tccg-01": (9.5, 100.0), "tccg-02": (120.0, 60.0), "tccg-10": (33.0, 33.0)}
HOSTILE = '<img src=http://127.0.0.1:9/x onerror=alert(1)> & "quotes"'


def known_run() -> Run:
    found = run(*(case(name, weft=ours, torch=theirs) for name, (ours, theirs) in TIMES.items()))
    found.cases[1].results["cutensor"] = Result(cannot=HOSTILE)
    found.contenders.append("cutensor")
    found.environment["platform"]["topology"] = "GPU0\tX <b>"
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = known_run()
    file = tmp_path_factory.mktemp("page") / "index.html"
    file.write_text(run_page(found, draw(found)), encoding="utf-8")
    return file


@pytest.fixture
def shown(browser: Browser, page: Path) -> Browser:
    browser.messages.clear()
    browser.requests.clear()
    browser.open(page)
    return browser


CASES = 'document.querySelectorAll("table")[1]'


def column(browser: Browser, at: int) -> list[str]:
    return browser.run(f"[...{CASES}.tBodies[0].rows].map((row) => row.cells[{at}].textContent)")


def click(browser: Browser, head: str) -> str:
    """Click a column's head; what the column says of its order then."""
    return browser.run(
        f"(() => {{ const head = [...{CASES}.tHead.rows[0].cells].find((cell) => cell.textContent === {head!r});"
        ' head.querySelector("button").click(); return head.getAttribute("aria-sort"); })()'
    )


def test_it_renders(shown: Browser) -> None:
    assert shown.run("document.title") == "weft bench tccg"
    assert shown.run('[...document.querySelectorAll("h2")].map((head) => head.textContent)') == [
        "Figures", "Plots", "Cases", "Remarks", "Threats to validity", "How it was measured"
    ]  # fmt: skip
    assert shown.run("document.images.length") == 3
    assert shown.run("[...document.images].every((image) => image.complete && image.naturalWidth > 600)")
    assert shown.run("getComputedStyle(document.querySelector('td.number')).textAlign") == "right"
    assert shown.run("document.documentElement.scrollWidth <= window.innerWidth")  # wide tables scroll by themselves


def test_it_sorts_on_a_click(shown: Browser) -> None:
    assert column(shown, 0) == ["tccg-01", "tccg-02", "tccg-10"]
    assert click(shown, "weft us") == "ascending"
    assert column(shown, 0) == ["tccg-01", "tccg-10", "tccg-02"]  # 9.5, 33, 120: as numbers, not as text
    assert click(shown, "weft us") == "descending"
    assert column(shown, 0) == ["tccg-02", "tccg-10", "tccg-01"]
    assert click(shown, "torch / weft") == "ascending"
    assert column(shown, 0) == ["tccg-02", "tccg-10", "tccg-01"]
    assert click(shown, "case") == "ascending"
    assert column(shown, 0) == ["tccg-01", "tccg-02", "tccg-10"]
    assert shown.run(f'{CASES}.querySelectorAll("th[aria-sort]").length') == 1


def test_it_complains_of_nothing_and_fetches_nothing(shown: Browser) -> None:
    for head in ("weft us", "case", "binds", "cutensor us"):
        click(shown, head)
    shown.run("document.querySelector('details').open = true")
    shown.run("new Promise((done) => setTimeout(done, 100))")
    assert shown.messages == []
    assert shown.requests
    assert {address.partition(":")[0] for address in shown.requests} <= {"file", "data"}


def test_the_browser_would_tell(browser: Browser, tmp_path: Path) -> None:
    """The two tests above can fail: an error, a warning and a request are seen."""
    file = tmp_path / "bad.html"
    file.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("one"); undefined.two</script>')
    browser.messages.clear()
    browser.open(file)
    assert any("one" in message for message in browser.messages)
    assert any("two" in message for message in browser.messages)
    assert "http://127.0.0.1:9/x.png" in browser.requests


def test_a_comparison_renders_too(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "compared.html"
    file.write_text(comparison_page(compare([known_run(), known_run()], ["before", "after"])), encoding="utf-8")
    browser.messages.clear()
    browser.open(file)
    assert browser.run("document.title") == "weft bench tccg: 2 runs"
    assert browser.run(f"{CASES}.tBodies[0].rows.length") == 6
    assert browser.messages == []


def test_text_is_escaped(page: Path) -> None:
    content = page.read_text()
    assert HOSTILE not in content
    assert html.escape(HOSTILE) in content
    assert "GPU0\\tX &lt;b&gt;" in content


def test_everything_is_inside(page: Path) -> None:
    content = page.read_text()
    assert "http" not in content.replace("http-equiv", "").replace(html.escape(HOSTILE), "")
    assert content.count('src="data:image/png;base64,') == 3


def test_cells_sort_by_numbers_where_they_show_numbers() -> None:
    table = case_table(known_run())
    at = list(table.heads).index("weft us")
    assert [row[at] for row in table.rows] == [
        Cell("9.5", pytest.approx(9.5)),
        Cell("120", pytest.approx(120)),
        Cell("33", pytest.approx(33)),
    ]
    assert 'class="number"' in Table(("n",), [(Cell("1", 1.0),)]).html()
    assert "data-key" not in Table(("n",), [(Cell("one"),)]).html()


def test_energy_and_waves_have_columns_where_a_run_has_them() -> None:
    plain, found = known_run(), known_run()
    about = found.cases[0].results["weft"].about
    about["energy"] = {"joules": 0.025, "watts": 512.0, "flops_per_joule": 4.8e8, "edp": 2.4e-7}
    small = {"programs": 1, "warps": 4, "waves": 0.1, "slots_used": 0.1, "blocks_per_sm": 9, "occupancy": 0.9}
    about["kernels"] = [
        small | {"limited_by": ["warps"]},
        small | {"programs": 500, "waves": 1.894, "limited_by": ["registers", "shared memory"]},
    ]
    heads = ("weft waves", "slots used", "blocks an SM", "occupancy", "limited by", "weft J", "weft W", "weft FLOP/J")
    assert not set(heads) & set(case_table(plain).heads)
    table = case_table(found)
    row = dict(zip(table.heads, table.rows[0], strict=True))
    assert [row[head].text for head in heads] == [
        "1.89", "10%", "9", "90%", "registers and shared memory", "0.025", "512", "4.8e+08"
    ]  # fmt: skip
    assert dict(zip(table.heads, table.rows[1], strict=True))["weft J"].text == ""


def test_published_times_stand_beside_double_precision_alone() -> None:
    """The library and the fastest kernel of the thesis, at the extents that it has; a rate of bytes beside any type."""
    name = "dense-square-5000x5000x5000"
    wide = replace(case(name, weft=5000, cublas=5100), dtypes=("float64",) * 3)
    single = case(name, weft=5000, cublas=5100)
    made = run(wide, single, replace(wide, scaled=True), case("dense-square-200x200x200", weft=4), suite="dense")
    table = case_table(made)
    heads = ("published library us (V100, fp64)", "published kernel us (V100, fp64)", "published in")
    shown = [[row[table.heads.index(head)].text for head in heads] for row in table.rows]
    assert shown == [["33696 cuBLAS", "113034 kernel 1.6", "table 4.5"], *[["", "", ""]] * 3]
    assert table.heads.index(heads[0]) == table.heads.index("cublas us") + 1
    assert "published TB/s (V100, fp64)" not in table.heads
    assert "printed for a Tesla V100 in double precision" in run_page(made, {})
    assert "Tesla" not in run_page(run(case("tccg-01", weft=9)), {})

    moved = replace(case("transpose-square-5000x5000", weft=50), extents=[("a", 5000), ("b", 5000)],
                    dtypes=("float32", "float32"), work={"bytes": 200_000_000})  # fmt: skip
    table = case_table(run(moved, suite="permute"))
    (row,) = table.rows
    assert row[table.heads.index("published TB/s (V100, fp64)")].text == "0.414 kernel 2.3"
    assert row[table.heads.index("published in")].text == "table 4.17"
    assert heads[0] not in table.heads
