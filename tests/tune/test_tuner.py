"""The tuner itself, on schedules whose times are made up: what is tried, what may win, what is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tune_problems import CPU, choice_of, described
from weft.api.describe import TARGETS
from weft.errors import UnsupportedError, WorkspaceError
from weft.machine.store import Store
from weft.planner import tuned as tuned_schedules
from weft.planner.planner import Choice
from weft.planner.schedule import Origin, Ranked, ResourceError
from weft.planner.target import target_of
from weft.tune import tuner
from weft.tune.candidates import Effort, Journal, pick_candidates
from weft.tune.tuner import tune


@dataclass(frozen=True)
class Made:
    """A schedule that computes right, or not, and takes as long as it says."""

    name: str
    seconds: float
    behaviour: str = "right"
    family: str = "made"
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return self.name


@dataclass
class Machine:
    """A family of made-up schedules, and a clock that goes by what they say."""

    ran: list[str] = field(default_factory=list)
    timed: list[tuple[str, bool]] = field(default_factory=list)

    def build(self, contraction: Any, schedule: Made, target: Any) -> Callable[..., None]:
        if schedule.behaviour == "large":
            raise ResourceError("it needs 300000 of shared memory, the device has 232448")
        if schedule.behaviour == "broken":
            raise RuntimeError("PassManager::run failed\nand a long dump")

        def launch(a: Any, b: Any, c: Any, d: torch.Tensor, alpha: float, beta: float, aux: Any = ()) -> None:
            self.ran.append(schedule.name)
            if schedule.behaviour == "interrupt":
                raise KeyboardInterrupt
            if schedule.behaviour == "raises":
                raise ValueError("no")
            value = alpha * torch.einsum("ik,jk->ij", a, b)
            d.copy_(value if schedule.behaviour != "wrong" else value + 1)

        launch.schedule = schedule
        return launch

    def glance(self, call: Any, arguments: Any, device: Any) -> float:
        return self._schedule(call).seconds

    def measure(self, call: Any, sets: Any, *, quick: bool, **options: Any) -> Any:
        schedule = self._schedule(call)
        self.timed.append((schedule.name, quick))
        return SimpleNamespace(samples=(schedule.seconds,) * 3, seconds=schedule.seconds)

    def _schedule(self, call: Any) -> Made:
        return next(cell.cell_contents for cell in call.__closure__ if hasattr(cell.cell_contents, "schedule")).schedule


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    made = Machine()
    monkeypatch.setattr(FAMILY, "build", made.build)
    monkeypatch.setattr(tuner.timing, "measure", made.measure)
    monkeypatch.setattr(tuner.timing, "glance", made.glance)
    return made


FAMILY = SimpleNamespace(__name__="weft.library.family", NAME="made", build=None)  # `machine` builds for it
CONTRACTION = described("ik,jk->ij", (6, 5), (7, 5))


def choice(*schedules: Made) -> Choice:
    """A choice in which the model expects these in this order."""
    ranked = tuple(Ranked(schedule, 1e-6 * at, FAMILY) for at, schedule in enumerate(schedules, 1))
    return Choice(CONTRACTION, "cpu", target_of("cpu", CPU), ranked[0], ranked)


def test_the_fastest_wins_and_is_stored(machine: Machine) -> None:
    given = choice(Made("model", 30e-6), Made("slower", 40e-6), Made("best", 20e-6))
    outcome = tune(given)
    assert str(outcome.fastest.schedule) == "best"
    assert str(outcome.model.schedule) == "model"
    assert outcome.ratio == pytest.approx(2 / 3)
    assert outcome.choice.origin.source == "tuned"
    assert [str(rank.schedule) for rank in outcome.choice.ranked] == ["best", "model", "slower"]
    assert outcome.choice.best.measured == pytest.approx(20e-6)
    recalled = tuned_schedules.recalled(given, None)
    assert recalled is not None
    assert (str(recalled.best.schedule), recalled.origin.source) == ("best", "store")
    assert recalled.ranked[0] == recalled.best
    document = json.loads(json.dumps(outcome.document(), allow_nan=False))
    assert (document["legal"], document["tried"], document["excluded"]) == (3, 3, [])


def test_the_model_stands_where_the_difference_is_noise(machine: Machine) -> None:
    outcome = tune(choice(Made("model", 30e-6), Made("hardly faster", 29.9e-6)))
    assert str(outcome.fastest.schedule) == "model"
    assert outcome.ratio == 1.0


def test_what_is_wrong_fails_or_does_not_fit_never_wins(machine: Machine) -> None:
    outcome = tune(
        choice(
            Made("model", 30e-6),
            Made("wrong", 1e-6, "wrong"),
            Made("large", 1e-6, "large"),
            Made("broken", 1e-6, "broken"),
            Made("raises", 1e-6, "raises"),
            Made("far too slow", 3e-3),
        )
    )
    assert str(outcome.fastest.schedule) == "model"
    said = {str(each.schedule): (each.verdict, each.reason) for each in outcome.candidates}
    assert said["wrong"][0] == "wrong"
    assert said["large"] == ("refused", "it needs 300000 of shared memory, the device has 232448")
    assert said["broken"] == ("refused", "RuntimeError: PassManager::run failed")
    assert said["raises"] == ("wrong", "ValueError: no")
    assert said["far too slow"][0] == "slow"
    assert ("far too slow", True) not in machine.timed
    assert any("large: it needs 300000" in sentence for sentence in outcome.choice.excluded)


def test_a_glance_at_a_busy_host_excludes_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of 26 us seemed to take 340 while compilers kept the host from launching their second kernel."""
    glance = machine.glance
    late = {"best": 340e-6}
    monkeypatch.setattr(
        tuner.timing, "glance", lambda call, *rest: late.get(machine._schedule(call).name) or glance(call, *rest)
    )
    assert str(tune(choice(Made("model", 30e-6), Made("best", 26e-6))).fastest.schedule) == "best"


def test_a_wrong_first_choice_of_the_model_is_passed_over(machine: Machine) -> None:
    outcome = tune(choice(Made("model", 1e-6, "wrong"), Made("second", 30e-6), Made("third", 40e-6)))
    assert str(outcome.fastest.schedule) == str(outcome.model.schedule) == "second"


def test_nothing_that_can_be_measured_is_an_error_that_says_why(machine: Machine) -> None:
    with pytest.raises(UnsupportedError, match=r"no candidate can be measured; model: it is wrong"):
        tune(choice(Made("model", 1e-6, "wrong"), Made("second", 1e-6, "large")))
    assert tuned_schedules.recalled(choice(Made("model", 1e-6), Made("second", 1e-6)), None) is None


def test_only_the_last_few_are_measured_in_full(machine: Machine) -> None:
    tune(choice(*(Made(f"s{at}", (30 + 5 * (at % 7)) * 1e-6) for at in range(20))), effort=Effort(finals=2))
    in_full = [name for name, quick in machine.timed if not quick]
    assert len(set(in_full)) <= 3
    assert "s0" in in_full


def test_candidates_are_leaders_and_the_same_sample_for_the_same_seed() -> None:
    ranked = choice(*(Made(f"s{at}", 1.0) for at in range(100))).ranked
    first = [str(each.schedule) for each in pick_candidates(ranked, Effort(leaders=5, samples=10, seed=3))]
    assert first[:5] == [f"s{at}" for at in range(5)]
    assert len(set(first)) == 15
    assert first == [str(each.schedule) for each in pick_candidates(ranked, Effort(leaders=5, samples=10, seed=3))]
    assert first != [str(each.schedule) for each in pick_candidates(ranked, Effort(leaders=5, samples=10, seed=4))]
    assert len(pick_candidates(ranked[:4], Effort())) == 4


def test_after_the_budget_no_candidate_is_begun(machine: Machine) -> None:
    outcome = tune(choice(Made("model", 30e-6), Made("best", 10e-6)), effort=Effort(budget=0.0))
    assert [each.verdict for each in outcome.candidates] == ["measured", "waiting"]
    assert str(outcome.fastest.schedule) == "model"


def test_an_interrupted_tuning_goes_on_where_it_was(machine: Machine) -> None:
    given = choice(Made("model", 30e-6), Made("best", 20e-6), Made("stop", 25e-6, "interrupt"))
    with pytest.raises(KeyboardInterrupt):
        tune(given)
    assert tuned_schedules.recalled(given, None) is None
    machine.ran.clear()
    machine.timed.clear()
    going_on = choice(Made("model", 30e-6), Made("best", 20e-6), Made("stop", 25e-6, "interrupt"), Made("more", 22e-6))
    with pytest.raises(KeyboardInterrupt):
        tune(going_on)
    assert machine.ran == ["stop"], "what was measured before is measured again"
    machine.ran.clear()
    outcome = tune(choice(Made("model", 30e-6), Made("best", 20e-6), Made("more", 22e-6)))
    assert str(outcome.fastest.schedule) == "best"
    assert Store("tuning").directory.is_dir()
    assert not list(Store("tuning").directory.iterdir()), "the journal is gone once the fastest schedule is stored"


def test_a_candidate_that_took_the_process_along_is_left_out(machine: Machine) -> None:
    given = choice(Made("model", 30e-6), Made("crash", 1e-6))
    candidates = pick_candidates(given.ranked, Effort())
    candidates[0].verdict, candidates[0].seconds = "measured", 30e-6
    Journal(given, None).begin(candidates, candidates[1])  # and then the process is gone
    outcome = tune(given)
    assert "crash" not in machine.ran
    assert outcome.candidates[1].reason == "an earlier tuning did not survive its first run"
    assert str(outcome.fastest.schedule) == "model"


def test_a_candidate_that_loses_the_device_is_noted_before_the_error_leaves(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    given = choice(Made("model", 30e-6), Made("raises", 1e-6, "raises"))
    fails = tuner._Session._fails

    def lost(self: Any, candidate: Any, error: Exception) -> None:
        fails(self, candidate, error)
        raise RuntimeError("CUDA error: unspecified launch failure")  # what synchronising says then

    monkeypatch.setattr(tuner._Session, "_fails", lost)
    with pytest.raises(RuntimeError, match="launch failure"):
        tune(given)
    machine.ran.clear()
    monkeypatch.setattr(tuner._Session, "_fails", fails)
    assert str(tune(given).fastest.schedule) == "model"
    assert "raises" not in machine.ran


def test_too_little_memory_is_said_in_bytes(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    def exhausted(self: Any, seed: int) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("weft.oracle.problem.Problem.operands", exhausted)
    with pytest.raises(WorkspaceError, match=f"tensors of {4 * (30 + 35 + 42)} bytes"):
        tune(choice(Made("model", 30e-6), Made("best", 10e-6)))


def test_again_forgets_the_journal(machine: Machine) -> None:
    given = choice(Made("model", 30e-6), Made("crash", 1e-6))
    candidates = pick_candidates(given.ranked, Effort())
    Journal(given, None).begin(candidates, candidates[1])
    assert str(tune(given, again=True).fastest.schedule) == "crash"


def test_empty_descriptions_are_not_measured(machine: Machine) -> None:
    empty = choice_of(described("ik,jk->ij", (0, 5), (7, 5)))
    with pytest.raises(UnsupportedError, match="a mode is empty"):
        tune(empty)
    assert tuner.tuned(empty, None) is empty


def test_nothing_is_measured_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    """Guards against tuning during graph capture: triton#10596, #10712."""
    given = choice(Made("model", 30e-6), Made("best", 10e-6))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    on_gpu = Choice(given.description, "triton", TARGETS["sm_90"], given.best, given.ranked)
    with pytest.raises(UnsupportedError, match="captured"):
        tune(on_gpu)
    assert machine.ran == []


def test_two_threads_tune_once(machine: Machine) -> None:
    """Guards against two threads tuning at once: triton#11494."""
    from concurrent.futures import ThreadPoolExecutor

    given = choice(Made("model", 30e-6), Made("best", 20e-6))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: tuner.tuned(given, None), range(4)))
    assert {str(each.best.schedule) for each in found} == {"best"}
    assert sorted(each.origin.source for each in found) == ["store", "store", "store", "tuned"]


def test_a_limit_on_workspace_has_a_tuned_schedule_of_its_own(machine: Machine) -> None:
    small, large = Made("small", 30e-6), Made("large", 10e-6, workspace_bytes=1000)
    tune(choice(small, large))
    within = choice(small, Made("other", 20e-6))  # what is left under a limit of 100 bytes
    assert tuned_schedules.recalled(within, 100) is None
    tune(within, 100)
    recalled = tuned_schedules.recalled(within, 100)
    assert recalled is not None
    assert str(recalled.best.schedule) == "other"
    assert str(tuned_schedules.recalled(choice(small, large), None).best.schedule) == "large"
    assert Origin("model").date == ""


def test_a_candidate_that_another_process_runs_at_present_is_not_left_out(machine: Machine) -> None:
    given = choice(Made("model", 30e-6), Made("best", 20e-6))
    candidates = pick_candidates(given.ranked, Effort())
    journal = Journal(given, None)
    journal.begin(candidates, candidates[1])
    entry = journal._store.load(journal._key)
    journal._store.save(journal._key, entry | {"process": os.getppid()})
    assert str(tune(given).fastest.schedule) == "best"
