"""Which kernels serve a call by what `specialize` says: the library tier, or a specialised kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.planner import planner, promotion
from weft.planner.schedule import Target
from weft.planner.target import standing_for

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Empty caches, on disk and of plans."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    weft.planner.validity.outdate()
    yield
    weft.planner.validity.outdate()


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(3, 20, generator=generator), torch.randn(20, 4, generator=generator)


def planned(**options: Any) -> weft.Plan:
    a, b = operands()
    return weft.plan("ik,kj->ij", a, b, **options)


@pytest.mark.parametrize("call", ["contract", "plan", "einsum", "matmul", "permute", "plan_permute"])
def test_another_word_is_a_clear_error(call: str) -> None:
    x = torch.ones(3, 3)
    moved = (x, "ab->ba")
    arguments = {"matmul": (x, x), "permute": moved, "plan_permute": moved}.get(call, ("ab,bc->ac", x, x))
    with pytest.raises(weft.UnsupportedError, match="specialize='later' is none of 'auto', 'now', 'never', 'library'"):
        getattr(weft, call)(*arguments, specialize="later")


@pytest.mark.parametrize(("specialize", "tier"), [("never", "library"), ("library", "library"), ("now", "specialised")])
def test_never_is_the_library_and_now_is_specialised(specialize: str, tier: str) -> None:
    a, b = operands()
    plan = planned(specialize=specialize)
    assert f"tier        {tier}: asked for" in plan.explain()
    assert torch.allclose(plan(a, b).double(), a.double() @ b.double(), atol=1e-5)
    x = torch.arange(60.0).reshape(3, 4, 5)
    moved = weft.plan_permute(x, "abc->cab", specialize=specialize)
    assert f"tier        {tier}: asked for" in moved.explain()
    assert torch.equal(moved(x), x.permute(2, 0, 1))


def test_a_plan_is_specialised_by_default() -> None:
    assert planned()._first().tier.name == "specialised"  # type: ignore[union-attr]


def test_never_is_specialised_where_the_library_cannot_do_it() -> None:
    """Torch has no operations for Triton's interpreter; asked for by name, the library is an error."""
    a, b = operands()
    plan = planned(backend="triton", specialize="never")
    assert "tier        specialised: the library tier cannot do this: torch's operations are not for" in plan.explain()
    assert torch.allclose(plan(a, b).double(), a.double() @ b.double(), atol=1e-5)
    with pytest.raises(weft.UnsupportedError, match="the library tier cannot do this"):
        planned(backend="triton", specialize="library")._first()


@pytest.mark.parametrize("specialize", ["auto", "now", "never"])
def test_calls_whose_bits_may_not_depend_on_extents_are_specialised(specialize: str) -> None:
    plan = planned(invariant="i", specialize=specialize)
    assert "specialised: its bits may not depend on extents" in plan.explain()


def test_a_long_sum_that_no_family_shares_out_is_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for a specialised kernel, a plan takes what is predicted to take half of its time, and says so."""
    monkeypatch.setattr("weft.planner.planner.Choice.built", lambda choice: (choice, lambda *_: None))
    monkeypatch.setattr("weft.plans.select.admitted", lambda choice: True)
    for extent, tier in ((2_000_000, "library"), (200, "specialised")):
        with standing_for(H200):
            a, b = torch.empty(4, extent), torch.empty(4, extent, 12)
            plan = weft.plan("bk,bkn->bn", a, b, specialize="now", backend="triton")
            assert plan._first().tier.name == tier  # type: ignore[union-attr]
            if tier == "library":
                assert "library: specialised kernels would take twice as long" in plan.explain()


def test_other_backends_have_one_kind_of_kernel() -> None:
    a, b = operands()
    plan = weft.plan("ik,kj->ij", a, b, backend="reference", specialize="never")
    assert "tier" not in plan.explain()
    assert torch.equal(plan(a, b), (a.double() @ b.double()).float())


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
    expected = [expected_of("bcyxuv,ocuv->boyx", each, weights) - promotion.LEAST for each in (seen, copied)]
    assert expected[0] < 0.5 * expected[1]


def test_large_products_are_expected_at_the_rate_of_the_library() -> None:
    """IEEE products of float32: matrix instructions make none, and Triton's own way runs at a third of the rate."""
    a = torch.empty(4096, 4096, device="meta")
    assert 2 * 4096**3 / 51e12 < expected_of("mk,kn->mn", a, a) < 2 * 4096**3 / 30e12


def test_tuning_is_specialised() -> None:
    assert planned(specialize="auto", tune="model")._first().tier.name == "specialised"  # type: ignore[union-attr]


HALF, COMPLEX = torch.float16, torch.complex64
CASES = (
    ("mk,kn->mn", (4096, 4096), (4096, 4096), HALF),
    ("mk,kn->mn", (2048, 2048), (2048, 2048), torch.float32),
    ("ebad,ce->abcd", (40, 20, 20, 40), (20, 40), torch.float32),
    ("abcdef,fbdg->gace", (12, 3, 14, 5, 12, 3), (3, 3, 5, 6), torch.float32),
    ("mki,kn->mn", (40, 50, 6), (50, 30), torch.float32),
    ("bk,bkn->bn", (4, 2_000_000), (4, 2_000_000, 12), torch.float32),  # the library's, though asked for specialised
    ("mk,kn->mn", (300, 200), (200, 100), COMPLEX),
)


@pytest.fixture
def rankings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Counter[Any]]:
    """How often each description was ranked among the same families; nothing is compiled."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    weft.planner.validity.outdate()
    real, seen = planner.choose_among, Counter[Any]()

    def counted(found: Any, description: Any, *rest: Any) -> Any:
        seen[description, tuple(family.__name__ for family in found)] += 1
        return real(found, description, *rest)

    monkeypatch.setattr(planner, "choose_among", counted)
    monkeypatch.setattr(planner.Choice, "built", lambda choice: (choice, lambda *_: None))
    yield seen
    weft.planner.validity.outdate()


@pytest.mark.parametrize("specialize", ["now", "auto", "never"])
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]} {case[3]}" for case in CASES])
def test_a_plan_for_a_gpu_ranks_once(case: Any, specialize: str, rankings: Counter[Any]) -> None:
    equation, left, right, dtype = case
    with standing_for(H200):
        a, b = (torch.empty(shape, dtype=dtype) for shape in (left, right))
        plan = weft.plan(equation, a, b, backend="triton", specialize=specialize)
        assert plan.schedule is not None
    assert bool(rankings) is (specialize != "never")  # the library's choice compares nothing
    assert max(rankings.values(), default=1) == 1, [key[0].text for key, count in rankings.items() if count > 1]


def test_a_permutation_for_a_gpu_ranks_once(rankings: Counter[Any]) -> None:
    with standing_for(H200):
        plan = weft.plan_permute(torch.empty(300, 200, 50), "abc->cba", backend="triton", specialize="now")
        assert plan.schedule is not None
    assert rankings
    assert max(rankings.values()) == 1


@pytest.mark.parametrize("call", ["plan", "contract", "einsum", "plan_permute"])
def test_on_the_cpu_too(call: str, rankings: Counter[Any]) -> None:
    a, b = torch.ones(17, 33), torch.ones(33, 19)
    if call == "plan_permute":
        assert weft.plan_permute(a, "ab->ba", backend="cpu").schedule is not None
    else:
        getattr(weft, call)("ik,kj->ij", a, b, backend="cpu")
    assert rankings
    assert max(rankings.values()) == 1
