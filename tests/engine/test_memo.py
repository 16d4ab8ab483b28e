"""Every cache of plans: an entry is served again, and never after what plans depend on has changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cotengra as ctg
import pytest
import torch

import weft
from support import own_cache
from weft.engine.memo import TABLES, Memo
from weft.planner import coefficients, tuned, validity, verdicts
from weft.planner.planner import choose
from weft.planner.target import target_of

A, B, C = torch.rand(6, 5), torch.rand(5, 4), torch.rand(4, 3)
CPU = target_of("cpu", torch.device("cpu"))


def _tree() -> Callable[[], Any]:
    import weft.hooks

    extents = {"i": 6, "j": 5, "k": 4, "l": 3}
    tree = ctg.ContractionTree.from_path(["ij", "jk", "kl"], "il", extents, path=[(0, 1), (0, 1)])
    return lambda: weft.hooks.contract_tree(tree, [A, B, C])


def _over_ranks() -> Callable[[], Any]:
    import weft.distributed

    return lambda: weft.distributed.contract("ij,jk->ik", A, B, placements={"a": "j", "b": "j"})


def _gradient() -> Callable[[], Any]:
    a = A.clone().requires_grad_()
    return lambda: weft.contract("ij,jk->ik", a, B, epilogue=_opaque)


def _jax_network() -> Callable[[], Any]:
    jax = pytest.importorskip("jax")
    import weft.jax

    arrays = [jax.numpy.asarray(each.numpy()) for each in (A, B, C)]
    return lambda: weft.jax.network("ij,jk,kl->il", *arrays)


CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    "plans": lambda: lambda: weft.plan(("ij", "jk", "ik"), A, B, epilogue=_opaque),
    "einsum: networks": lambda: lambda: weft.einsum("ij,jk,kl->il", A, B, C, alpha=2.0),
    "contract_tree: networks": _tree,
    "distributed: plans": _over_ranks,
    "jax: networks": _jax_network,
    "rules of products": _gradient,
}


class _Opaque:
    """A function that cannot be looked up: it is traced in each call."""

    def __init__(self) -> None:
        self.seen, self.name = [object()], "seen"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + len(getattr(self, self.name))


_opaque = _Opaque()


def other_threads() -> None:
    torch.set_num_threads(3 - torch.get_num_threads())


def tune() -> None:
    choice = choose(weft.plan("ij,jk->ik", A, C.new_ones(5, 7)).contraction, "cpu", CPU)
    best = choice.best
    assert tuned.remember(choice, None, tuned.TunedSchedule(best.schedule, 1e-6, best.schedule, 1e-6, 1))


def fail_a_self_test() -> None:
    verdict = verdicts.Verdict("a value is wrong", "2026-01-01", 0.1)
    verdicts.record("weft.cpu.gett.family", "cpu", CPU, {"of this test": verdict})


def fit() -> None:
    coefficients.keep(CPU, coefficients.coefficients(CPU))


CHANGES = [validity.outdate, other_threads, tune, fail_a_self_test, fit]


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    own_cache(monkeypatch, tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    verdicts.forget()


@pytest.fixture
def one_rank() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Values that caches find, with the name of the cache."""
    found: list[tuple[str, Any]] = []

    def noted(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def look(self: Any, key: Any) -> Any:
            value = original(self, key)
            if value is not None:
                found.append((self.name, value))
            return value

        monkeypatch.setattr(kind, name, look, raising=False)

    noted(Memo, "get")
    return found


def test_every_table_has_a_call_here() -> None:
    made = re.compile(r"\bMemo\(\s*\"([^\"]+)\"")
    source = Path(weft.__file__).parent
    assert {name for file in source.rglob("*.py") for name in made.findall(file.read_text())} == set(CALLS)
    assert {table.name for table in TABLES if isinstance(table, Memo)} <= {*CALLS, "test"}


@pytest.mark.keeps
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", CALLS)
def test_nothing_outdated_is_served(
    name: str, change: Callable[[], None], served: list[tuple[str, Any]], request: pytest.FixtureRequest
) -> None:
    if name.startswith("distributed"):
        request.getfixturevalue("one_rank")
    call = CALLS[name]()

    def found() -> list[Any]:
        served.clear()
        call()
        return [value for cache, value in served if cache == name]

    call()
    before = found()
    assert before, "the second call finds what the first one left"
    change()
    after = found()
    assert not any(new is old for new in after for old in before)
    assert found(), "and so does the second call after the change"


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_kept_where_that_is_turned_off(
    name: str, served: list[tuple[str, Any]], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("distributed"):
        request.getfixturevalue("one_rank")
    validity.outdate()
    monkeypatch.setenv("WEFT_REPLAY", "0")
    call = CALLS[name]()
    for _ in range(2):
        served.clear()
        call()
    assert [value for cache, value in served if cache == name] == []
    monkeypatch.delenv("WEFT_REPLAY")
    call()
    served.clear()
    call()
    assert [value for cache, value in served if cache == name]


@pytest.mark.keeps
def test_a_value_that_is_outdated_while_it_is_made_is_not_kept() -> None:
    memo = Memo("test", 4)

    def make() -> str:
        validity.outdate()
        return "old"

    assert memo.made("key", make) == "old"
    assert memo.get(memo.place("key")) is None
    assert memo.made("key", lambda: "new") == memo.made("key", lambda: "newer") == "new"


@pytest.mark.keeps
def test_entries_of_earlier_generations_go() -> None:
    memo = Memo("test", 64)
    for at in range(5):
        validity.outdate()
        memo.made(at, lambda: "value")
    assert len(memo._entries.values()) == 1


def test_a_plan_that_is_held_is_planned_anew_where_its_family_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.rand(70, 33), torch.rand(33, 50)
    plan, other = weft.plan("ij,jk->ki", a, b, epilogue=torch.relu), weft.plan_permute(a, "ij->ji")
    net = weft.network("ij,jk->ki", a, b)
    right = (a @ b).T
    for family in (plan.schedule.family, other.schedule.family):
        assert family not in ("reference", "library")
    torch.testing.assert_close(plan(a, b), right.relu())
    net(a, b)
    modules = {choice.best.family.__name__ for choice in (plan._first().choice, other._first().choice)}
    monkeypatch.setenv("WEFT_SELFTEST", "1")
    verdict = verdicts.Verdict("a value is wrong", "2026-01-01", 0.1)
    for family in modules:
        verdicts.record(family, "cpu", CPU, {"of this test": verdict})
    with pytest.warns(weft.WeftWarning, match="does without its family"):
        found = plan(a, b), other(a), net(a, b)
    for one, expected in zip(found, (right.relu(), a.T, right), strict=True):
        torch.testing.assert_close(one, expected)
    for each in (plan, other):
        assert each._first().choice.best.family.__name__ not in modules


def test_a_plan_that_is_held_follows_the_number_of_threads() -> None:
    a, b = torch.rand(300, 200), torch.rand(200, 300)
    plan = weft.plan("ij,jk->ik", a, b, epilogue=torch.relu)
    net = weft.network("ij,jk,kl->il", a, b, a)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.testing.assert_close(plan(a, b), (a @ b).relu())
        net(a, b, a)
        assert plan._first().choice.target.processors == threads
        assert all(call.variant.choice.target.processors == threads for call in net.latest.each)


def test_a_forced_schedule_stays() -> None:
    a, b = torch.rand(300, 200), torch.rand(200, 300)
    torch.set_num_threads(2)
    forced = weft.plan("ij,jk->ik", a, b, epilogue=torch.relu).schedule
    plan = weft.plan("ij,jk->ik", a, b, epilogue=torch.relu, schedule=forced)
    plan(a, b)
    torch.set_num_threads(1)
    torch.testing.assert_close(plan(a, b), (a @ b).relu())
    assert plan.schedule == forced


def test_what_is_first_made_in_inference_mode_serves_gradients_later() -> None:
    validity.outdate()
    with torch.inference_mode():
        weft.einsum("ij->i", torch.rand(3, 4, dtype=torch.float64))
        net = weft.network("ij,jk,kl->il", A, B, C)
        net(A, B, C)
        weft.grouped("ij,jk->ik", [(A, B), (A[:2], B)])
    x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    weft.einsum("ij->i", x).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    a = A.clone().requires_grad_()
    torch.testing.assert_close(net(a.detach(), B, C), A @ B @ C)
    net(a, B, C).sum().backward()
    torch.testing.assert_close(a.grad, torch.ones(6, 3) @ C.T @ B.T)
    assert len(weft.grouped("ij,jk->ik", [(A, B), (A[:2], B)])) == 2
