"""The table of cases: every family has one, and each can be run on the schedules that it stands for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from commands import python
from support import slowness
from weft.api.describe import TARGETS
from weft.machine.store import cache_directory
from weft.planner.planner import Choice
from weft.planner.registry import FAMILIES, PERMUTATION_FAMILIES
from weft.planner.target import target_of
from weft.selftest.cases import INEXACT, TRIALS, InPlaceCase, Trial
from weft.selftest.trials import problem, schedules, verdict
from weft_bench.cases import FUNCTIONS, Case

CPU = target_of("cpu", torch.device("cpu"))
ON_CPU = [pytest.param(trial, id=f"{trial.family}-{trial.name}") for trial in TRIALS["cpu"]]
ON_GPU = [
    pytest.param(trial, id=f"{trial.family}-{trial.name}")
    for trial in TRIALS["triton"]
    if not isinstance(trial.case, InPlaceCase)
]
# Those that the interpreter runs in a second or two.
QUICK = ("weft.gpu.permute.family-float16", "weft.gpu.transpose.family-square")


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_every_family_has_a_case(backend: str) -> None:
    tested = {trial.family for trial in TRIALS[backend]}
    assert tested >= {*FAMILIES[backend], *PERMUTATION_FAMILIES[backend]}
    assert any("transpose" in family for family in tested)


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_names_tell_the_cases_of_a_family_apart(backend: str) -> None:
    names = [(trial.family, trial.name) for trial in TRIALS[backend]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("trial", ON_CPU)
def test_on_the_cpu(trial: Trial) -> None:
    found = verdict(trial, "cpu", CPU)
    assert (found.reason, found.absent) == (None, None)


@pytest.mark.parametrize("trial", ON_GPU)
def test_an_h200_has_a_schedule_for_each(trial: Trial) -> None:
    """Planned without a device: a case that none of its family's schedules suits would test nothing."""
    pytest.importorskip("triton")
    found = schedules(trial, problem(trial.case, torch.device("cpu")).description, "triton", TARGETS["sm_90"])
    if "weft.gpu.warp_specialized" in trial.family and isinstance(found, str) and "Gluon" in found:
        pytest.skip(found)
    assert isinstance(found, Choice), found
    assert trial.covers(found.description, found.best.schedule)


@pytest.mark.parametrize("name", QUICK)
def test_in_the_interpreter(name: str) -> None:
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels are not interpreted")
    [trial] = [each for each in TRIALS["triton"] if f"{each.family}-{each.name}" == name]
    found = verdict(trial, "triton", target_of("triton", torch.device("cpu")))
    assert (found.reason, found.absent) == (None, None)


@pytest.mark.parametrize("trial", [*ON_CPU, *ON_GPU])
def test_what_is_held_to_be_exact_is(trial: Trial) -> None:
    """Whole numbers that the type of D holds, so that no order of summation rounds."""
    case = trial.case
    if not isinstance(case, Case) or case.algebra == "log" or {case.a_fn, case.b_fn, case.epilogue} & set(INEXACT):
        pytest.skip("it is held to a bound")
    assert {case.a_fn, case.b_fn, case.c_fn, case.epilogue} <= {None, *FUNCTIONS}
    wanted = problem(case, torch.device("cpu"))._wanted
    assert torch.equal(wanted.to(case.dtypes[2]).to(wanted.dtype), wanted)
    if case.dtypes[2].is_floating_point:
        largest = max(abs(float(wanted.min())), abs(float(wanted.max())))
        assert largest * torch.finfo(case.dtypes[2]).eps <= 0.5
        assert wanted.unique().numel() > 3, "a constant would hide what is written to the wrong place"


@pytest.mark.slow
def test_kernels_are_compiled_by_other_processes(tmp_path: Path) -> None:
    """For a device that is not here; the process that runs the trials finds all of them in weft's store."""
    pytest.importorskip("triton")
    code = (
        "from weft.gpu.common import cubins\n"
        "from weft.api.describe import TARGETS\n"
        "from weft.selftest import whole\n"
        "from weft.selftest.cases import TRIALS\n"
        "from weft.tune.compile_worker import in_place_of_the_driver\n"
        "target, wanted = TARGETS['sm_90'], ('permute', 'transpose', 'simt', 'complex')\n"
        "few = [each for each in TRIALS['triton'] if each.family.split('.')[2] in wanted]\n"
        "few = [each for each in few if 'real' not in each.family]\n"  # its steps need a library
        "assert set(whole._as_compiled(few, whole._compiled_ahead(few, 'triton', target))) == set(few)\n"
        "in_place_of_the_driver(target)\n"
        "launches = [launch for trial in few for launch in whole._launches(trial, 'triton', target)]\n"
        "keys = [cubins.key_of(launch) for launch in launches]\n"
        "assert all(cubins.found(key, 90) for key in keys)\n"
        "print(len(launches), len({launch.kernel.fn.__name__ for launch in launches}))\n"
    )
    environment = {"TRITON_INTERPRET": "0", "WEFT_CACHE_DIR": str(tmp_path), "WEFT_SELFTEST": "1"}
    launches, kernels = map(int, python(code, limit=300, **environment).split())
    assert launches >= 10
    assert kernels >= 6


def test_on_the_cpu_it_takes_little_time(tmp_path: Path) -> None:
    """All of it in 0.3 s of one processor, half a second where others take its caches, in one of three new processes.

    The kernels that numba compiles are there: what loading them takes is bounded in `tests/cpu/test_engine.py`.
    """
    (tmp_path / "cpu").symlink_to(cache_directory() / "cpu")
    code = (
        "import time, torch, weft\n"
        "from weft.cpu.gett import entries, params\n"
        "for kind in ('float32', 'float64', 'complex64', 'complex128', 'int32', 'int64'):\n"
        "    entries.macro_kernel(kind), entries.micro_kernel(kind, params.OPERATIONS[0])\n"
        "from weft.planner.target import target_of\n"
        "from weft.selftest.whole import whole\n"
        "start = time.process_time()\n"
        "found = whole('cpu', target_of('cpu', torch.device('cpu')))\n"
        "assert all(verdict.reason is None for verdict in found.values())\n"
        "print(time.process_time() - start)"
    )
    environment = {"OMP_NUM_THREADS": "1", "WEFT_SELFTEST": "1", "WEFT_CACHE_DIR": str(tmp_path)}
    assert any(float(python(code, **environment)) < 0.5 * slowness() for _ in range(3))
