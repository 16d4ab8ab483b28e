"""Which kernels serve a call: shape-generic or specialised ones, and when one takes over from the other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch

import weft
from weft.planner import promotion
from weft.planner.schedule import Target
from weft.plans import promoting, tiers

pytest.importorskip("triton")
from weft.gpu.common.launch import KernelLaunch

HAND = ("at_hand", "permute_at_hand")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Empty caches, on disk and of plans, and compilers that are never started: the interpreter needs none."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    weft.planner.validity.outdate()
    yield
    weft.planner.validity.outdate()


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(3, 20, generator=generator), torch.randn(20, 4, generator=generator)


def planned(**options: Any) -> weft.Plan:
    a, b = operands()
    return weft.plan("ik,kj->ij", a, b, backend="triton", **options)


def promoted_after(monkeypatch: pytest.MonkeyPatch, calls: int) -> int:
    """Make compiling take half as long as this many calls; returns the call that is to run the other kernel."""
    plan = planned(specialize="never")
    seconds = plan._first().choice.best.seconds
    monkeypatch.setattr(promotion, "expected", lambda description, target: seconds - 1e-6)
    monkeypatch.setattr(promotion, "FASTER", 1.0)
    monkeypatch.setattr(promotion, "WORTH", 0.0)
    monkeypatch.setattr(promotion, "COMPILING", calls / 2 * seconds * 1.001)
    return calls + 1


@pytest.mark.parametrize("call", ["contract", "plan", "einsum", "matmul", "permute", "plan_permute"])
def test_another_word_is_a_clear_error(call: str) -> None:
    x = torch.ones(3, 3)
    moved = (x, "ab->ba")
    arguments = {"matmul": (x, x), "permute": moved, "plan_permute": moved}.get(call, ("ab,bc->ac", x, x))
    with pytest.raises(weft.UnsupportedError, match="specialize='later' is none of 'auto', 'now', 'never', 'library'"):
        getattr(weft, call)(*arguments, specialize="later")


def test_never_is_shape_generic_and_now_is_specialised() -> None:
    a, b = operands()
    expected = a.double() @ b.double()
    for specialize, hand in (("never", True), ("now", False)):
        plan = planned(specialize=specialize)
        assert (plan.schedule.family in HAND) is hand
        assert torch.allclose(plan(a, b).double(), expected, atol=1e-5)
        assert f"tier        {'shape-generic' if hand else 'specialised'}: asked for" in plan.explain()
    assert planned().schedule.family not in HAND  # the default of a plan


def test_a_permutation_has_the_same_words() -> None:
    x = torch.arange(60.0).reshape(3, 4, 5)
    for specialize, hand in (("never", True), ("now", False)):
        plan = weft.plan_permute(x, "abc->cab", backend="triton", specialize=specialize)
        assert (plan.schedule.family in HAND) is hand
        assert torch.equal(plan(x), x.permute(2, 0, 1))


def test_other_backends_have_one_kind_of_kernel() -> None:
    a, b = operands()
    plan = weft.plan("ik,kj->ij", a, b, backend="reference", specialize="never")
    assert "tier" not in plan.explain()
    assert torch.equal(plan(a, b), (a.double() @ b.double()).float())


def test_a_contraction_is_promoted_at_the_call_that_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = promoted_after(monkeypatch, 6)
    a, b = operands()
    plan = planned(specialize="auto")
    assert f"specialised from call {switch} on" in plan.explain()
    hand, made = planned(specialize="never"), planned(specialize="now")
    monkeypatch.setattr(promoting, "is_faster", lambda choice, seconds: True)
    for call in range(1, switch + 3):
        found = plan(a, b)
        assert torch.equal(found, (hand if call < switch else made)(a, b)), call
        assert (plan.schedule.family in HAND) is (call < switch), call
    assert f"it took over at call {switch}" in plan.explain()


def test_two_runs_agree_bit_for_bit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    promoted_after(monkeypatch, 4)
    monkeypatch.setattr(promoting, "is_faster", lambda choice, seconds: True)
    a, b = operands()
    runs = []
    for folder in ("one", "two"):
        monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / folder))
        weft.planner.validity.outdate()
        runs.append([weft.contract("ik,kj->ij", a, b, backend="triton") for _ in range(8)])
    assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))


def test_the_next_process_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = promoted_after(monkeypatch, 3)
    monkeypatch.setattr(promoting, "is_faster", lambda choice, seconds: True)
    a, b = operands()
    plan = planned(specialize="auto")
    for _ in range(switch):
        plan(a, b)
    weft.planner.validity.outdate()  # as a new process, which finds what is on disk
    again = planned(specialize="auto")
    assert again.schedule.family not in HAND
    assert "it served in an earlier process" in again.explain()
    assert planned(specialize="never").schedule.family in HAND


def test_a_kernel_that_is_not_faster_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = promoted_after(monkeypatch, 3)
    monkeypatch.setattr(promoting, "is_faster", lambda choice, seconds: False)
    a, b = operands()
    plan = planned(specialize="auto")
    for _ in range(switch + 2):
        plan(a, b)
    assert "no specialised kernel would be a tenth faster" in plan.explain()
    weft.planner.validity.outdate()
    assert planned(specialize="auto").schedule.family in HAND


def test_a_kernel_that_cannot_be_built_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = promoted_after(monkeypatch, 4)
    a, b = operands()
    hand, plan = planned(specialize="never")(a, b), planned(specialize="auto")

    def fails(*_: Any) -> Any:
        raise weft.UnsupportedError("no kernel today")

    monkeypatch.setattr(tiers, "chosen_and_built", fails)
    for _ in range(switch + 2):
        assert torch.equal(plan(a, b), hand)
    assert (
        "the specialised kernel does not take over: none could be built: UnsupportedError: no kernel today"
        in plan.explain()
    )
    assert plan.schedule.family in HAND


def test_what_loses_that_much_in_one_call_is_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "COMPILING", 1e-12)
    monkeypatch.setattr(promotion, "expected", lambda description, target: 0.0)
    plan = planned(specialize="auto")
    assert plan.schedule.family not in HAND
    assert "the first call of a shape-generic kernel would lose more" in plan.explain()


H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)


def expected_of(equation: str, a: torch.Tensor, b: torch.Tensor) -> float:
    """Of tensors of float32 that lie as these do, on an H200."""
    d = weft.plan(equation, a, b, backend="reference").contraction
    return promotion.expected(d, H200)


def test_windows_count_as_the_memory_that_they_show() -> None:
    """Overlapping windows of three by three are read nine times and lie there once."""
    image = torch.empty(1, device="meta").as_strided((4, 3, 256, 256), (3 << 16, 1 << 16, 256, 1))
    seen, copied = image.unfold(2, 3, 1).unfold(3, 3, 1), torch.empty(4, 3, 254, 254, 3, 3, device="meta")
    weights = torch.empty(2, 3, 3, 3, device="meta")
    assert expected_of("bcyxuv,ocuv->boyx", seen, weights) < 0.5 * expected_of("bcyxuv,ocuv->boyx", copied, weights)


def test_large_products_are_expected_at_the_rate_of_the_library() -> None:
    """IEEE products of float32: matrix instructions make none, and Triton's own way runs at a third of the rate."""
    a = torch.empty(4096, 4096, device="meta")
    assert 2 * 4096**3 / 51e12 < expected_of("mk,kn->mn", a, a) < 2 * 4096**3 / 30e12


def test_compilers_that_die_and_caches_that_vanish_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    switch = promoted_after(monkeypatch, 4)
    monkeypatch.setattr(promoting, "is_faster", lambda choice, seconds: True)

    def dies(*_: Any) -> Any:
        raise RuntimeError("no compiler")

    a, b = operands()
    plan = planned(specialize="auto")
    with monkeypatch.context() as patch:
        patch.setattr("weft.tune.compile_pool.Compiler.submit", dies)
        patch.setenv("WEFT_CACHE_DIR", str(tmp_path / "gone"))
        for _ in range(switch):
            found = plan(a, b)
    assert torch.equal(found, planned(specialize="now")(a, b))


def test_threads_share_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever thread makes the call that exchanges the kernels. The interpreter runs one kernel at a time."""
    promoted_after(monkeypatch, 5)
    monkeypatch.setattr(promoting, "is_faster", lambda choice, seconds: True)
    launch, one_at_a_time = KernelLaunch.__call__, Lock()

    def alone(*arguments: Any) -> None:
        with one_at_a_time:
            launch(*arguments)

    monkeypatch.setattr(KernelLaunch, "__call__", alone)
    a, b = operands()
    plan = planned(specialize="auto")
    expected = (a.double() @ b.double()).float()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: plan(a, b), range(16)))
    assert all(torch.allclose(each, expected, atol=1e-5) for each in found)
    assert plan.schedule.family not in HAND


def test_tuning_is_specialised() -> None:
    assert planned(specialize="auto", tune="model").schedule.family not in HAND
