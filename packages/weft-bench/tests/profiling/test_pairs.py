"""Counters of three benchmark pairs, from tables as Nsight Compute prints them; the profiler itself is stood in for."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.errors import UnsupportedError
from weft_bench.micro import computing, pairs, published
from weft_bench.micro.page import save
from weft_bench.micro.record import Micro, Micros
from weft_bench.micro.suite import run
from weft_bench.profiling import ncu

SAMPLES = Path(__file__).with_name("data") / "pairs"
CUDA = torch.device("cuda", 0)


def variant_of(recipe: Any) -> str:
    """The pair and variant that a recipe of another process makes."""
    if isinstance(recipe, pairs.BranchRecipe):
        return f"divergence-by-{'lane' if recipe.by_lane else 'warp'}"
    known = {("multiply", 1): "product-naive", ("multiply", 14): "product-cuBLAS"}
    direct, ordered = (pairs.recipe("two-site", variant, "cuda:0") for variant in ("direct", "ordered"))
    known |= {("tensor", direct.number): "two-site-direct", ("tensor", ordered.number): "two-site-ordered"}  # type: ignore[attr-defined]
    return known[recipe.ladder, recipe.number]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose profiler prints the stored tables."""

    def count(replayed: Path, *, processors: int, device: str, environment: Any) -> ncu.Counted:
        table = (SAMPLES / f"{variant_of(pickle.loads(replayed.read_bytes()))}.csv").read_text()
        return ncu.Counted(tuple(ncu.read(table, processors=processors, device=device)), version="2025.3")

    monkeypatch.setattr(ncu, "count", count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))


def test_each_pair_has_its_ten_counters(counted: None) -> None:
    found = pairs.pairs(CUDA, "NVIDIA H200", 0.1)
    rows = {(row["pair"], row["variant"]): row for row in found.rows}
    assert list(rows) == [(pair.name, variant) for pair in pairs.PAIRS for variant in pair.variants]
    lane = rows["divergence", "by lane"]
    assert [lane[pairs.column(f"K{number}")] for number in range(1, 11)] == [
        46.5, 0.01, 0.06, 0, 46.2, 98.2, 16, pytest.approx(1.9), 93.1, pytest.approx(50.35)
    ]  # fmt: skip
    assert lane["kernel"] == "branch"
    assert lane["under the profiler us"] == pytest.approx(234.592)
    assert rows["divergence", "by warp"]["K10 %"] == 100
    assert rows["two-site", "ordered"]["kernel"] == "second"  # of two launches the longer


def test_a_finding_says_which_counters_do_not_part_a_pair(counted: None) -> None:
    """Direct sums of the sample issue more than the ordered products do, which is not what the thesis expects."""
    found = pairs.pairs(CUDA, "NVIDIA H200", 0.1)
    assert found.finding == "K9 does not part two-site"
    assert found.figures["divergence: K10 of by lane over by warp"] == pytest.approx(0.5035)
    assert found.figures["product: K1 of naive over cuBLAS"] == pytest.approx(54.32 / 98.45)


def test_published_values_stand_beside(counted: None, tmp_path: Path) -> None:
    page = save(Micros([pairs.pairs(CUDA, "NVIDIA H200", 0.1)]), tmp_path).read_text()
    assert "No counters were read." not in page
    assert page.count(">98.67<") == 2
    columns = {name for row in published.PAIRS for name in row} - {"pair", "variant"}
    assert columns <= {pairs.column(f"K{number}") for number in range(1, 11)}


def test_without_a_profiler_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "found", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    with pytest.raises(UnsupportedError, match="counters need Nsight Compute"):
        pairs.pairs(CUDA, "NVIDIA H200", 0.1)
    with pytest.raises(UnsupportedError, match="the microbenchmark 'pairs' is of a GPU, not of 'cpu'"):
        run(["pairs"], torch.device("cpu"))


def test_a_branch_is_called_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(computing.cuda, "kernel", lambda name: lambda *given: calls.append((name, *given)))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=2))
    for by_lane in (False, True):
        sent = pickle.dumps(pairs.recipe("divergence", "by lane" if by_lane else "by warp", "cpu"))
        call, tensors = pickle.loads(sent).make()
        call(*tensors)
        name, blocks, threads, out, side, _ = calls[-1]
        assert (name, blocks, threads, out.numel(), side) == ("branch", 32, 256, 32 * 256, int(by_lane))


def test_a_missing_pair_of_values_is_named() -> None:
    sets = {(pair.name, variant): ncu.read((SAMPLES / f"{pair.name}-{variant.replace(' ', '-')}.csv").read_text())[0]
            for pair in pairs.PAIRS for variant in pair.variants}  # fmt: skip
    values = dict(sets["product", "naive"].values)
    del values["K5"]
    sets["product", "naive"] = type(sets["product", "naive"])("naive", values)
    found: Micro = pairs.compared(sets, "NVIDIA H200")
    assert "K5 of product is not known" in found.finding
    assert found.rows[1]["K5 %"] is None
