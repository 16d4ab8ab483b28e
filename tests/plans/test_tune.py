"""`tune=` through the public calls, on the CPU's real schedules: what is measured, stored, found again and said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from commands import python
from support import own_cache
from weft.api.describe import choice_for, hypothetical
from weft.errors import UnsupportedError
from weft.machine.store import Store
from weft.planner import tuned as tuned_schedules
from weft.planner import validity
from weft.planner.schedule import Target
from weft.tune import tuner

A, B = torch.randn(40, 30, 20), torch.randn(20, 50)
EQUATION = "abk,kc->bca"


@pytest.fixture(autouse=True)
def empty_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    own_cache(monkeypatch, tmp_path)
    validity.outdate()  # plans of other tests are not found
    return tmp_path


@pytest.fixture
def tunings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is tuned while a test runs."""
    seen: list[Any] = []
    original: Callable[..., Any] = tuner.tune

    def noted(choice: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(choice.description)
        return original(choice, *arguments, **options)

    monkeypatch.setattr(tuner, "tune", noted)
    return seen


def origin(plan: Any) -> str:
    return plan._first().choice.origin.source


def let_the_slowest_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the candidate that the model likes least win, so that it is told from the model's choice."""
    monkeypatch.setattr(tuner, "NEAR", (1e9, 1e9))
    monkeypatch.setattr(
        tuner._Session, "_decided", lambda self, model, last: (_timed(self.candidates[-1]), _timed(self.candidates[0]))
    )


def _timed(candidate: Any) -> Any:
    candidate.samples = [1e-3]
    return candidate


def test_measuring_gives_right_results_and_stores_the_fastest(tunings: list[Any]) -> None:
    plan = weft.plan(EQUATION, A, B, tune="measure", epilogue=torch.tanh)
    assert origin(plan) == "tuned"
    assert len(tunings) == 1
    assert torch.allclose(plan(A, B), torch.tanh(torch.einsum(EQUATION, A, B)), atol=1e-4)
    assert len(list(Store("schedules").directory.iterdir())) == 1
    assert plan._first().choice.best.measured > 0


def test_later_calls_take_the_stored_and_measure_nothing(monkeypatch: pytest.MonkeyPatch, tunings: list[Any]) -> None:
    before = weft.plan(EQUATION, A, B)
    assert origin(before) == "model"
    let_the_slowest_win(monkeypatch)
    tuned = weft.plan(EQUATION, A, B, tune="measure")
    assert tuned.schedule != before.schedule
    after = weft.plan(EQUATION, A, B)
    assert (origin(after), after.schedule) == ("store", tuned.schedule)
    assert before.schedule == weft.plan(EQUATION, A, B, tune="model").schedule, "a plan keeps its schedule"
    assert origin(weft.plan("xyz,zw->ywx", A, B)) == "store"
    assert origin(weft.plan(EQUATION, A, B, tune="measure")) == "store"
    assert len(tunings) == 1
    assert torch.allclose(weft.contract(EQUATION, A, B), torch.einsum(EQUATION, A, B), atol=1e-4)


def test_another_stride_type_or_function_is_another_key(tunings: list[Any]) -> None:
    weft.plan(EQUATION, A, B, tune="measure")
    assert origin(weft.plan(EQUATION, A, B.T.contiguous().T)) == "model"
    assert origin(weft.plan(EQUATION, A.double(), B.double())) == "model"
    assert origin(weft.plan(EQUATION, A, B, epilogue=torch.tanh)) == "model"
    assert origin(weft.plan(EQUATION, A, B)) == "store"


def test_operands_coordinates_and_algebras(tunings: list[Any]) -> None:
    x, y, bias = torch.randn(60, 40), torch.randn(50, 40), torch.randn(50)
    options: dict[str, Any] = {"operands": {"bias": ("j", bias)}, "indices": {"i": "i"}}
    plan = weft.plan("ik,jk->ij", x, y, epilogue=lambda s, bias, i: s + bias - i, tune="measure", **options)
    expected = x @ y.T + bias - torch.arange(60)[:, None]
    assert torch.allclose(plan(x, y, operands={"bias": bias}), expected, atol=1e-3)
    longest = weft.contract("ik,jk->ij", x, y, algebra="max_plus", tune="measure")
    assert torch.equal(longest, (x[:, None] + y[None]).amax(2))


def test_permutations(tunings: list[Any]) -> None:
    x = torch.randn(30, 40, 50)
    tuned = weft.plan_permute(x, "abc->cba", tune="measure")
    if len(tuned._first().choice.ranked) > 1:
        assert origin(tuned) == "tuned"
        assert origin(weft.plan_permute(x, "abc->cba")) == "store"
    assert torch.equal(weft.permute(x, "abc->cba", tune="measure"), x.permute(2, 1, 0))


def test_einsum_tunes_every_step(tunings: list[Any]) -> None:
    a, b, c = torch.randn(30, 40), torch.randn(40, 50), torch.randn(50, 20)
    result = weft.einsum("ab,bc,cd->ad", a, b, c, tune="measure")
    assert torch.allclose(result, a @ b @ c, atol=1e-2)
    assert len(tunings) == 2


def test_empty_and_reference_plans_have_nothing_to_tune(tunings: list[Any]) -> None:
    assert weft.contract("ik,kj->ij", torch.ones(0, 3), torch.ones(3, 4), tune="measure").shape == (0, 4)
    dot = weft.contract("i,i->", A[0, 0], A[0, 0], tune="measure", backend="reference")
    assert torch.allclose(dot, A[0, 0] @ A[0, 0])
    assert tunings == []


@pytest.mark.parametrize("tune", ["Measure", True, "yes", ()])
def test_other_values_are_refused(tune: Any) -> None:
    with pytest.raises(UnsupportedError, match="tune="):
        weft.contract(EQUATION, A, B, tune=tune)
    with pytest.raises(UnsupportedError, match="tune="):
        weft.permute(A, "abc->cba", tune=tune)


def schedule_file() -> Path:
    (file,) = Store("schedules").directory.glob("*.json")
    return file


def anew(**options: Any) -> Any:
    """A plan that is made now."""
    validity.outdate()
    return weft.plan(EQUATION, A, B, **options)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry["value"].pop("serialized"),
        lambda entry: entry["value"]["serialized"].update(workers=99),
        lambda entry: entry["value"].update(seconds="soon"),
        lambda entry: entry["value"].update(seconds=0.0),
        lambda entry: entry["value"].update(seconds=10**400),
        lambda entry: entry["value"].update(tried=float("inf")),
        lambda entry: entry.update(value=[1, 2]),
        lambda entry: entry.update(value="fast"),
        lambda entry: entry.update(schema=99),
        lambda entry: entry["value"].update(code="another"),
        lambda entry: entry["key"].update(backend="another"),
    ],
)
def test_a_stored_schedule_that_is_not_understood_or_not_legal_counts_as_absent(damage: Callable[[dict], Any]) -> None:
    weft.plan(EQUATION, A, B, tune="measure")
    file = schedule_file()
    entry = json.loads(file.read_text())
    damage(entry)
    file.write_text(json.dumps(entry))
    assert origin(anew()) == "model"
    assert torch.allclose(weft.contract(EQUATION, A, B), torch.einsum(EQUATION, A, B), atol=1e-4)


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b'{"schema": 1, "key": {}, "value"'])
def test_a_corrupt_file_never_breaks_a_call(content: bytes) -> None:
    """Guards against corrupt, truncated or raced cache files: triton#11512, pytorch#172144, DeepGEMM#301."""
    weft.plan(EQUATION, A, B, tune="measure")
    schedule_file().write_bytes(content)
    assert origin(anew()) == "model"
    assert origin(anew(tune="measure")) == "tuned"
    assert origin(anew()) == "store"


def test_a_store_that_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="cannot write its cache"):
        plan = weft.plan(EQUATION, A, B, tune="measure")
    assert origin(plan) == "tuned"
    assert origin(anew()) == "model"


def test_another_machine_or_version_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against another GPU's cache: TensorRT-LLM#17664."""
    weft.plan(EQUATION, A, B, tune="measure")
    assert origin(anew()) == "store"
    real = tuned_schedules.environment
    for change in ({"torch": "9.9"}, {"name": "another"}, {"driver": "1"}):
        monkeypatch.setattr(tuned_schedules, "environment", lambda target, change=change: real(target) | change)
        assert origin(anew()) == "model"


def test_a_tuned_schedule_over_the_limit_of_workspace_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    let_the_slowest_win(monkeypatch)
    free = weft.plan(EQUATION, A, B)
    tuned = weft.plan(EQUATION, A, B, tune="measure")
    assert anew(workspace_limit=tuned.workspace_bytes).schedule == tuned.schedule
    least = min(rank.schedule.workspace_bytes for rank in free._first().choice.ranked)
    if least < tuned.workspace_bytes:
        limited = anew(workspace_limit=least)
        assert origin(limited) == "model"
        assert limited.workspace_bytes <= least


def test_two_processes_tune_at_once(empty_store: Path) -> None:
    """Guards against raced cache files: triton#11512, pytorch#172144, DeepGEMM#301."""
    program = (
        "import torch, weft\n"
        f"a, b = torch.randn(40, 30, 20), torch.randn(20, 50)\n"
        f"plan = weft.plan({EQUATION!r}, a, b, tune='measure')\n"
        f"assert torch.allclose(plan(a, b), torch.einsum({EQUATION!r}, a, b), atol=1e-4)\n"
    )
    started = [subprocess.Popen([sys.executable, "-W", "error", "-c", program]) for _ in range(2)]
    assert [each.wait(timeout=120) for each in started] == [0, 0]
    assert len(list(Store("schedules").directory.glob("*.json"))) == 1
    assert not list(empty_store.rglob("*.broken")) + list(empty_store.rglob("*.tmp"))


def test_another_process_finds_it() -> None:
    weft.plan(EQUATION, A, B, tune="measure")
    program = (
        "import torch, weft\n"
        f"plan = weft.plan({EQUATION!r}, torch.randn(40, 30, 20), torch.randn(20, 50))\n"
        "print(plan._first().choice.origin.source)"
    )
    threads = f"import torch; torch.set_num_threads({torch.get_num_threads()})\n"
    assert python(threads + program) == "store"


def test_a_key_has_the_threads_of_its_target() -> None:
    """Whatever number torch has when it is made first: a plan may be held while that changes."""
    threads = torch.get_num_threads()
    try:
        for now in (1, 2):
            torch.set_num_threads(now)
            validity.environment.cache_clear()
            assert validity.environment(Target("cpu", name="CPU", processors=2))["threads"] == 2
    finally:
        torch.set_num_threads(threads)


def test_a_device_that_is_not_here_has_no_tuned_schedules() -> None:
    request = hypothetical("ik,jk->ij", {"i": 64, "j": 64, "k": 64}, dtype=torch.float16, target="sm_90")
    _, choice = choice_for(request)
    assert choice is not None
    assert choice.origin.source == "model"
    weft.plan(EQUATION, A, B, tune="measure")
    extents = {"a": 40, "b": 30, "k": 20, "c": 50}
    _, here = choice_for(hypothetical(EQUATION, extents, backend="cpu"))
    assert here is not None
    assert here.origin.source == "store", "weft explain shows what a plan would be"


def test_the_explanation_says_where_the_schedule_came_from() -> None:
    assert "(not tuned)" in weft.plan(EQUATION, A, B).explain()
    tuned = weft.plan(EQUATION, A, B, tune="measure").explain()
    assert "tuned just now" in tuned
    assert " predicted, " in tuned
    assert " measured" in tuned
    stored = anew().explain()
    assert "stored by the tuning of 20" in stored
    assert max(len(text.splitlines()) for text in (tuned, stored)) <= 40
