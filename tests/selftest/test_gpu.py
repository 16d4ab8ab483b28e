"""The self-test on a device: every family passes, in some seconds with its compilation, and once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.planner import verdicts
from weft.planner.registry import families
from weft.planner.target import target_of
from weft.selftest import trials
from weft.selftest.cases import TRIALS, Trial
from weft.selftest.trials import verdict

pytestmark = pytest.mark.gpu

WHOLE = """
import json, time, torch, weft
from weft.planner.target import target_of
from weft.selftest.whole import whole
torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
torch.cuda.synchronize()
target = target_of("triton", torch.device("cuda"))
import triton, weft.gpu.gett.kernel, weft.selftest.trials
start = time.perf_counter()
found = whole("triton", target)
seconds = time.perf_counter() - start
print(json.dumps([seconds, {f"{t.family} {t.name}": v and (v.reason, v.absent, v.seconds) for t, v in found.items()}]))
"""
FIRST_USE = """
import json, time, torch, weft
from weft.selftest import gate
spent = []
real = gate.run
def timed(*arguments):
    start = time.perf_counter()
    found = real(*arguments)
    spent.append([len(found), time.perf_counter() - start])
    return found
gate.run = timed
a, b = (torch.ones(512, 512, device="cuda", dtype=torch.float16) for _ in range(2))
weft.contract("mk,nk->mn", a, b, a_fn=torch.relu)
weft.permute(a, "mk->km")
print(json.dumps(spent))
"""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setenv("WEFT_SELFTEST", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    verdicts.forget()
    yield tmp_path
    verdicts.forget()


def fresh(code: str, folder: Path) -> Any:
    """What a new process prints that finds no compiled kernel but those in `folder`."""
    environment = {
        **os.environ, "WEFT_SELFTEST": "1", "WEFT_CACHE_DIR": str(folder / "weft"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("trial", [pytest.param(each, id=f"{each.family}-{each.name}") for each in TRIALS["triton"]])
def test_every_case(store: Path, trial: Trial) -> None:
    found = verdict(trial, "triton", target_of("triton", torch.device("cuda")))
    if found.absent is not None:
        pytest.skip(found.absent)
    assert found.reason is None


@pytest.mark.alone
def test_all_of_it_takes_some_seconds(store: Path) -> None:
    """With a CUDA context that is there and Triton imported; nothing is compiled before. An H200 takes 4 to 5."""
    seconds, found = fresh(WHOLE, store)
    assert not [name for name, result in found.items() if result is None or result[0] is not None]
    assert seconds < 7.0, found


def test_another_process_runs_nothing(store: Path) -> None:
    first, second = fresh(FIRST_USE, store), fresh(FIRST_USE, store)
    assert sum(count for count, _ in first) >= 2
    assert second == []


def test_a_family_that_fails_gives_way(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (torch.ones(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    plan = weft.plan("mk,nk->mn", a, b, a_fn=torch.relu)
    rooms = families(plan.contraction, "triton")
    [room] = [room for room in rooms if plan.schedule.family == room.NAME]
    real = room.build

    def broken(*arguments: Any) -> Any:
        launch = real(*arguments)
        return lambda a, b, c, d, alpha, beta, *extras: launch(a, b, c, d, 2 * alpha, beta, *extras)

    monkeypatch.setattr(room, "build", broken)
    verdicts.forget()
    for file in verdicts.Store(verdicts.ROOM).directory.glob("*.json"):
        file.unlink()
    with pytest.warns(weft.WeftWarning, match="excluded on this machine"):
        other = weft.plan("mk,nk->mn", a, b, a_fn=torch.relu)
    assert other.schedule.family != room.NAME
    assert torch.equal(other(a, b), torch.full_like(a, 256))


def test_nothing_runs_while_a_graph_is_captured(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    real = trials.verdict
    monkeypatch.setattr(trials, "verdict", lambda trial, *rest: names.append(trial.name) or real(trial, *rest))
    x = torch.arange(64.0 * 48, device="cuda").reshape(64, 48)
    place = torch.empty(48, 64, device="cuda")
    monkeypatch.setenv("WEFT_SELFTEST", "0")
    weft.permute(x, "ab->ba", out=place)  # compiled before the capture
    monkeypatch.setenv("WEFT_SELFTEST", "1")
    verdicts.forget()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weft.permute(x, "ab->ba", out=place)
    assert names == []
    graph.replay()
    assert torch.equal(place, x.t())
    weft.permute(x[:32], "ab->ba")
    assert names
