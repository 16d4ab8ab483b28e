"""The suite `everyday`: its cases, its contenders, its tables, and the command from end to end, on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from commands import told
from support import own_cache
from weft.api.describe import TARGETS
from weft.errors import UnsupportedError, WeftError
from weft_bench.cases.everyday import EverydayCase, chosen, everyday
from weft_bench.cases.everyday.case import CPU_ELEMENTS, CPU_WORK, case
from weft_bench.compile_ahead import tasks
from weft_bench.entry import Entry
from weft_bench.everyday import tables
from weft_bench.everyday.calls import planned, tensors_of, torch_call, weft_call
from weft_bench.everyday.checking import check_alike, check_default, check_planned
from weft_bench.everyday.measuring import ALONE, PREDICTED, Everyday, Rounds, contenders
from weft_bench.everyday.ways import make
from weft_bench.records import CaseRecord, Result, Run, load

WORK, ELEMENTS = 1 << 12, 1 << 10  # of a case in these tests
DOMAINS = {case.domain for case in everyday()}


@pytest.fixture(autouse=True)
def library_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it: first calls are served at once, and nothing is compiled for them."""
    monkeypatch.setenv("WEFT_TIERS", "1")


def small(each: EverydayCase) -> EverydayCase:
    return each.shrunk(WORK, ELEMENTS)


def test_cases_have_names_of_their_own_and_sizes_for_both_devices() -> None:
    assert len(everyday()) >= 150
    assert len({each.name for each in everyday()}) == len(everyday())
    for each in everyday():
        on_cpu = each.on_cpu()
        assert not on_cpu._exceeds(CPU_WORK, CPU_ELEMENTS), each
        assert on_cpu.dtype not in (torch.float16, torch.bfloat16)
        assert on_cpu.terms == each.terms
        assert not small(each)._exceeds(WORK, ELEMENTS), each


@pytest.mark.parametrize("domain", sorted(DOMAINS - {"groups"}))
def test_every_case_is_right_by_each_kind_of_call(domain: str) -> None:
    for each in everyday():
        if each.domain == domain:
            tensors = tensors_of(small(each), "cpu", 1)
            check_default(small(each), tensors)
            check_alike(weft_call(small(each)), torch_call(small(each)), tensors)
            plans = planned(small(each), tensors, "library")
            check_planned(small(each), plans, tensors)
            assert plans.predicted is not None
            assert plans.schedule or each.count > 2


@pytest.mark.gpu
def test_every_case_is_right_on_a_gpu() -> None:
    for each in everyday():
        tensors = tensors_of(small(each), "cuda", 1)
        check_default(small(each), tensors)
        check_alike(weft_call(small(each)), torch_call(small(each)), tensors)


@pytest.mark.gpu
def test_a_gpus_own_time_is_held_against_the_prediction() -> None:
    each = small(next(each for each in everyday() if each.name == "1000 products 16x16, fp32"))
    run = Run("everyday", "a GPU", contenders(["torch"], tiers=True), {})
    Everyday(run, torch.device("cuda"), 3, Rounds.short()).go([Entry(each, each.domain, each.name)])
    assert not tables.failures(run)
    assert {miss.contender for miss in tables.misses(run)} == {"weft", "weft-now", "weft-library"}
    for miss in tables.misses(run):
        assert miss.measured <= run.cases[0].results[miss.contender].seconds.value * 1.5


def test_groups_are_right() -> None:
    for each in everyday():
        if each.domain == "groups":
            group = replace(small(each), dtype=torch.float64)  # one kernel is compiled
            tensors = tensors_of(group, "cpu", 1)
            check_default(group, tensors)
            check_alike(weft_call(group), torch_call(group), tensors)
            check_planned(group, planned(group, tensors, "now"), tensors)
            with pytest.raises(UnsupportedError, match="one kind of plan"):
                planned(group, tensors, "library")


@pytest.mark.parametrize("name", ["sums of 2", "trace", "tree node, chi 24", "nchw->nhwc, half", "batch, B broadcast"])
def test_a_wrong_result_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    each = next(small(each) for each in everyday() if each.name == name)
    tensors = tensors_of(each, "cpu", 1)
    right = weft_call(each)
    with pytest.raises(AssertionError, match="something else"):
        check_alike(right, lambda *given: 1.1 * right(*given), tensors)
    plans = planned(each, tensors, "library")
    with pytest.raises(AssertionError):
        check_planned(each, replace(plans, call=lambda *given: 1.1 * right(*given), checked=None), tensors)


@pytest.mark.parametrize("name", ["sums of 2", "tree node, chi 24", "nchw->nhwc, half"])
def test_a_later_call_that_leaves_something_out_is_seen(name: str) -> None:
    each = next(small(each) for each in everyday() if each.name == name)
    tensors = tensors_of(each, "cpu", 1)
    right, plans, kept = weft_call(each), planned(each, tensors, "library"), []

    def noted(*given: torch.Tensor) -> torch.Tensor:
        kept.append(right(*given) if len(kept) < 2 else kept[0])  # whose memory somebody has written to since
        return kept[-1]

    with pytest.raises(AssertionError, match=r"off|differ"):
        check_planned(each, replace(plans, call=noted), tensors)


def test_a_case_is_chosen_by_words_of_its_name_or_domain() -> None:
    assert {each.domain for each in chosen(everyday(), ["circuits"])} == {"circuits"}
    assert [each.name for each in chosen(everyday(), ["max-plus 128"])] == ["max-plus 128"]
    assert len(chosen(everyday(), [])) == len(everyday())


def test_kernels_of_cases_are_known_ahead() -> None:
    names = ("sums of 2", "gpt2 up, bias + GELU, 4096 rows", "heads split", "MPS x MPO step, by pairs, chi 8")
    entries = [Entry(each, each.domain, each.name) for each in everyday() if each.name in names]
    found = [description for description, _ in tasks(entries, TARGETS["sm_90"])]
    assert len(found) == 6  # one each, and three steps
    tensors = tensors_of(entries[0].case, "cpu")
    assert found[0] == weft.plan(
        "mk,nk->mn", *tensors[:2], epilogue=entries[0].case.fused.epilogue, operands={"bias": ("n", tensors[2])}
    ).contraction  # fmt: skip


def test_the_default_is_made_after_so_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    each, calls = small(case("sums", "counted", "mk,kn->mn", m=4, k=4, n=4)), 0
    contract = weft.contract

    def counted(*given: Any, **how: Any) -> Any:
        nonlocal calls
        calls += 1
        return contract(*given, **how)

    monkeypatch.setattr(weft, "contract", counted)
    waited: list[bool] = []
    made = make("weft", each, tensors_of(each, "cpu"), 7, lambda: waited.append(True))
    assert calls == 7 + 4  # one is validated, three are held against it
    assert waited
    assert made.plans is not None
    assert made.plans.tier


def record(name: str, times: dict[str, float], **about: float) -> CaseRecord:
    results = {
        contender: Result(samples=(seconds,) * 3, about=about if contender == "weft" else {})
        for contender, seconds in times.items()
    }
    return CaseRecord(
        name=name, group="sums", base=name, equation="", extents=[], dtypes=(), precision="", functions={},
        layouts=(), scaled=False, modes={}, work={}, floor={}, results=results,
    )  # fmt: skip


def test_ratios_are_of_the_best_of_torchs_ways_and_predictions_are_judged_in_both_directions() -> None:
    near = {PREDICTED: 1.2e-6, ALONE: 1e-6}
    far = {PREDICTED: 1e-6, ALONE: 5e-6}
    run = Run("everyday", "a GPU", ["weft", "weft-now", "torch", "compile"], {}, [
        record("a", {"weft": 2e-6, "weft-now": 1e-6, "torch": 9e-6, "compile": 4e-6}, **near),
        record("b", {"weft": 2e-6, "weft-now": 1e-6, "torch": 1e-6}, **far),
    ])  # fmt: skip
    assert [tables.ratio(each, "weft") for each in run.cases] == [2.0, 0.5]
    *_, default, plan = tables.domains(run).rows
    assert [cell.text for cell in default] == ["all", "default", "2", "1.00", "0.50", "1"]
    assert [cell.text for cell in plan] == ["all", "plan", "2", "2.00", "1.00", "0"]
    (kind,) = tables.predictions(run).rows
    assert [cell.text for cell in kind] == ["default", "2", "1 (50%)", "1", "5"]
    assert [row[0].text for row in tables.far(run).rows] == ["b"]


def test_the_command_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(monkeypatch, tmp_path / "cache")
    tiny = [small(each) for each in everyday() if each.name in ("trace", "mnist out, bias, 64 rows, fp32")]
    monkeypatch.setattr("weft_bench.cases.everyday.everyday", lambda: tuple(tiny))
    common = ["bench", "everyday", "--device", "cpu", "--quick", "--calls", "3", "--out", str(tmp_path / "run")]
    assert "predictions" in told(*common)
    run = load(tmp_path / "run")
    assert run.ended == "finished"
    assert {each.name for each in run.cases} == {each.name for each in tiny}
    assert all(each.results.keys() == {"weft", "weft-now", "torch"} for each in run.cases)
    assert run.commit
    told(*common, "--resume")
    assert load(tmp_path / "run").cases == run.cases
    assert "the time was up" in told(*common, "--budget", "0")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["cases"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("everyday", "--device", "cpu", "--only", "nothing"), "no case of everyday"),
        (("everyday", "--device", "cpu", "--peers", "numpy"), "no peer of everyday"),
        (("--device", "cpu", "everyday"), "everyday has options of its own, which come after it"),
    ],
)
def test_what_the_command_refuses(words: tuple[str, ...], said: str) -> None:
    assert said in told("bench", *words, code=2)


def test_lists_name_the_suite_and_its_cases() -> None:
    assert "everyday" in told("bench", "--list")
    assert "trace" in told("bench", "everyday", "--list", "--only", "trace")


def test_a_wrong_contender_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(monkeypatch, tmp_path / "cache")
    wrong = replace(small(next(each for each in everyday() if each.name == "trace")), plain=lambda x: 2 * x.trace())
    monkeypatch.setattr("weft_bench.cases.everyday.everyday", lambda: (wrong,))
    said = told("bench", "everyday", "--device", "cpu", "--quick", "--out", tmp_path / "run", code=1)
    assert "torch's way computes something else" in said
    assert load(tmp_path / "run").cases[0].results["torch"].samples == ()


def test_an_unknown_peer_is_named() -> None:
    from weft_bench.everyday.ways import check_peers

    with pytest.raises(WeftError, match="'jax': there are torch, compile"):
        check_peers(["torch", "jax"])
