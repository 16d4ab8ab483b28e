"""Records that pages quote hold nothing that cannot be, and what is doubtful in them stands on a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pages import DOCS, ROOT
from weft.machine.datasheets import datasheet
from weft_bench.profiling.counters import HIT_RATES
from weft_bench.records import CaseRecord, load

RESULTS = ROOT / "results"
RUNS = sorted(file for device in ("h200", "h100") for file in (RESULTS / device).glob("*/run.json"))
#: Algebras by logarithms multiply in short types, so that they exceed the rate of the type that they are asked in.
BY_TERMS = ("log",)
#: Less work than is counted: sums before the product, three operands in pairs, a view of an operand.
REWRITTEN = {("14-divide-sum-scaling", "weft"), ("0057-10x", "weft"), ("0073-9x", "torch"), ("0073-9x", "cupy")}


def name(file: Path) -> str:
    return str(file.parent.relative_to(RESULTS))


def rate(case: CaseRecord) -> str:
    """The name of the fastest rate that a case's products could have."""
    if "tf32" in case.precision:
        return "tf32"
    dtype = case.dtypes[0]
    if dtype.startswith("complex"):
        return {"complex64": "float32", "complex128": "float64"}[dtype]
    return "int8" if dtype.startswith("float8") or dtype == "uint8" else dtype


def under_the_datasheet(file: Path) -> Iterator[str]:
    """Times that are less than the maker's peaks allow."""
    run = load(file)
    sheet = datasheet(run.device)
    if run.mode != "cold" or sheet is None:
        return
    for case in run.cases:
        if not case.work or case.group in BY_TERMS:
            continue
        peak = sheet.matrix.get(rate(case), max(sheet.matrix.values()))
        for contender, result in case.results.items():
            if result.samples and (case.name, contender) not in REWRITTEN:
                seconds = result.summary.median
                if case.work["bytes"] / seconds > sheet.bandwidth or case.work["flops"] / seconds > peak:
                    yield f"{case.group} {case.name} {contender}: {seconds:.3g} s"


@pytest.mark.parametrize("file", RUNS, ids=name)
def test_no_time_is_under_what_the_maker_says_is_possible(file: Path) -> None:
    assert list(under_the_datasheet(file)) == []


def values(document: Any, keys: tuple[str, ...]) -> Iterator[Any]:
    """What stands under one of these keys, anywhere in a document."""
    if isinstance(document, dict):
        yield from (value for key, value in document.items() if key in keys)
        document = list(document.values())
    if isinstance(document, list):
        for each in document:
            if isinstance(each, dict | list):
                yield from values(each, keys)


def test_hit_rates_over_a_hundred_are_told() -> None:
    """One case of one record, which the page that quotes the record names."""
    wrong = set()
    for file in RESULTS.glob("**/*.json"):
        document = json.loads(file.read_text())
        for value in values(document, (*HIT_RATES, "hits")):
            rates = value.values() if isinstance(value, dict) else [value]
            if any(isinstance(each, int | float) and each > 100 for each in rates):
                wrong.add(str(file.relative_to(RESULTS)))
    assert wrong == {"h200/tuning-orders/study.json"}
    assert "those of case 41 are over 100 % and so wrong" in " ".join((DOCS / "tuning.md").read_text().split())


def test_doubts_of_microbenchmarks_are_told() -> None:
    text = " ".join((DOCS / "commands" / "micro.md").read_text().split())
    for file in RESULTS.glob("*/micro/micro.json"):
        for each in json.loads(file.read_text())["found"]:
            if each["doubt"]:
                sizes = each["doubt"].partition("n = ")[2].partition(":")[0]
                assert f"row `{each['name']}` for n = {sizes} is in doubt" in text


def test_records_of_several_devices_or_commits_say_so_on_their_pages() -> None:
    """Of a folder with an HTML page, that page; see `test_ladder_pages` for those of docs."""
    for file in RESULTS.glob("**/*.json"):
        document = json.loads(file.read_text())
        for said in values(document, ("joined by hand",)):
            assert said
            page = file.with_name("index.html")
            assert not page.exists() or "joined by hand of several devices or commits" in page.read_text(), file
