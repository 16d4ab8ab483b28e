"""Compiling ahead: the workers' kernels are found in weft's store, and nothing that goes wrong there hurts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from forked import said
from tune_problems import choice_of, described
from weft.api.describe import TARGETS
from weft.planner.planner import choose
from weft.planner.schedule import Target
from weft.tune.compile_pool import Compiler, TravellingFunction, _pickled, default_jobs
from weft.tune.compile_worker import Task

# Run where Triton compiles: pytest's own process may have Triton interpret.
_PROGRAM = """
import json, os, sys, torch, weft
from weft.api.describe import TARGETS
from weft.planner.planner import choose
from weft.tune.compile_pool import Compiler

target = TARGETS["sm_90"]
a, b = torch.empty(64, 64, dtype=torch.half, device="meta"), torch.empty(64, 64, dtype=torch.half, device="meta")
contraction = weft.plan("ik,jk->ij", a, b, a_fn=torch.nn.functional.elu, backend="reference").contraction
choice = choose(contraction, "triton", target)
ranks = [rank for rank in choice.ranked if rank.schedule.family == "gett"][:2]
with Compiler(target, "triton", jobs=2) as compiler:
    answers = [compiler.submit(contraction, rank).result(timeout=200) for rank in ranks]
from weft.gpu.common import cubins
from weft.gpu.common.launch import KernelLaunch, collected

def never(launch): raise AssertionError("compiled again")
KernelLaunch.compile = never
with collected() as launches:
    for rank in ranks: rank.build(contraction, target)
print(json.dumps([answers, [cubins.code_of(launch).name for launch in launches]]))
"""


def test_another_process_finds_what_the_workers_compiled(tmp_path: Path) -> None:
    answers, found = json.loads(said(_PROGRAM, WEFT_CACHE_DIR=str(tmp_path)).splitlines()[-1])
    assert answers == [None, None]
    assert found == ["gett_kernel"] * 2


@pytest.mark.parametrize(
    ("target", "jobs"),
    [(Target("cpu"), 2), (Target("interpreter"), 2), (TARGETS["sm_90"], 0)],
    ids=["cpu", "interpreter", "none"],
)
def test_where_nothing_is_compiled_ahead_the_answer_is_there_at_once(target: Target, jobs: int) -> None:
    contraction = described("ik,jk->ij", (3, 4), (5, 4))
    rank = choice_of(contraction).best
    with Compiler(target, "cpu", jobs=jobs) as compiler:
        future = compiler.submit(contraction, rank)
        assert future.done()
        assert future.result() is None
        assert compiler.submit(contraction, rank) is future


def test_compilers_that_die_leave_everything_to_be_compiled_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "python").symlink_to("/bin/false")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    contraction = described("ik,jk->ij", (64, 64), (64, 64), dtype=torch.float16)
    rank = choose(contraction, "triton", TARGETS["sm_90"]).best
    with Compiler(TARGETS["sm_90"], "triton", jobs=1) as compiler:
        assert compiler.submit(contraction, rank).result(timeout=60) is None


def test_closing_answers_what_is_open() -> None:
    contraction = described("ik,jk->ij", (64, 64), (64, 64), dtype=torch.float16)
    rank = choose(contraction, "triton", TARGETS["sm_90"]).best
    compiler = Compiler(TARGETS["sm_90"], "triton", jobs=1)
    future = compiler.submit(contraction, rank)
    compiler.close()
    assert future.result(timeout=60) is None
    compiler.close()


def test_functions_travel_as_their_source() -> None:
    contraction = described("ik,jk->ij", (3, 4), (5, 4), a_fn=torch.nn.functional.elu)
    task = Task(contraction, choice_of(contraction).best)
    frame = _pickled(task)
    assert frame is not None
    import pickle

    arrived = pickle.loads(frame)
    assert isinstance(arrived.description.a_fn, TravellingFunction)
    for known in ("issue_slots", "at_zero"):  # what kernels' constants and prices depend on
        assert getattr(arrived.description.a_fn, known) == getattr(contraction.a_fn, known)
    assert arrived.description == contraction
    assert arrived.description.a_fn.source == contraction.a_fn.source


def test_what_does_not_travel_is_left_to_this_process() -> None:
    label = object()  # labels may be anything that can be hashed
    contraction = described("ik,jk->ij", (3, 4), (5, 4))
    assert _pickled(Task((contraction, lambda: label), None)) is None


def test_jobs_leave_a_core_to_the_measurement() -> None:
    assert 1 <= default_jobs() <= 16
