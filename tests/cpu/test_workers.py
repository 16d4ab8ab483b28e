"""Blocks side by side, and what the calling thread has set."""

from __future__ import annotations

import dataclasses
import multiprocessing
import threading
from collections.abc import Iterator

import pytest
import torch

from cpu.problems import TARGET, Problem, operands
from weft.cpu import family as cpu
from weft.cpu.assembly import assemble
from weft.cpu.blocking import Targets
from weft.cpu.index_groups import dissect
from weft.cpu.schedule import CpuSchedule
from weft.cpu.shaping import block_extents, mode_order
from weft.cpu.workers import MAX_WORKERS, share, split
from weft.planner.schedule import Launch
from weft.spec import Role

EXTENTS = {"a": 24, "b": 40, "c": 30, "k": 20, "l": 6}
EQUATION = "akbl,lck->cba"


@pytest.fixture
def problem() -> Problem:
    return Problem(EQUATION, *operands(EQUATION, EXTENTS, integers=True))


@pytest.fixture
def two_threads() -> Iterator[None]:
    """torch may use two threads, as the schedules of these tests are made for."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def shared(problem: Problem, workers: int = 2) -> tuple[CpuSchedule, Launch]:
    """A schedule of many small blocks, several at once."""
    contraction = problem.contraction(torch.empty(problem.shape, dtype=problem.dtype))
    anatomy = dissect(contraction)
    order = mode_order(anatomy, frozenset())
    tile = block_extents(anatomy, order, Targets(64, 8, 30), {})
    one = assemble(anatomy, Role.M, order, tile, 2)
    schedule = dataclasses.replace(one, workers=workers, threads=1, workspace_bytes=workers * one.workspace_bytes)
    return schedule, cpu.build(contraction, schedule, TARGET)


def expected(problem: Problem) -> torch.Tensor:
    return torch.einsum(problem.equation, problem.a.double(), problem.b.double()).float()


@pytest.mark.usefixtures("two_threads")
def test_two_at_once(problem: Problem) -> None:
    _, launch = shared(problem)
    for _ in range(20):
        d = torch.full(problem.shape, torch.nan)
        launch(problem.a, problem.b, None, d, 1, 1)
        assert torch.equal(d, expected(problem))


@pytest.mark.usefixtures("two_threads")
def test_callers_at_once(problem: Problem) -> None:
    """One launch called from several threads: no state is shared between calls."""
    _, launch = shared(problem)
    results = [torch.full(problem.shape, torch.nan) for _ in range(4)]

    def call(d: torch.Tensor) -> None:
        for _ in range(5):
            launch(problem.a, problem.b, None, d, 1, 1)

    callers = [threading.Thread(target=call, args=(d,)) for d in results]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(torch.equal(d, expected(problem)) for d in results)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_of_the_calling_thread(problem: Problem, mode: type[torch.no_grad]) -> None:
    """Operands that require a gradient, and tensors made in inference mode."""
    with mode():
        a, b = problem.a.clone(), problem.b.clone()
        if mode is torch.no_grad:
            a.requires_grad_()
        d = torch.full(problem.shape, torch.nan)
        _, launch = shared(problem)
        launch(a, b, None, d, 1, 1)
    assert torch.equal(d, expected(problem))
    assert not d.requires_grad


@pytest.mark.usefixtures("two_threads")
def test_autocast_changes_nothing(problem: Problem) -> None:
    a, b = (torch.randn_like(x) for x in (problem.a, problem.b))
    _, launch = shared(problem, workers=1)
    plain, d = torch.empty(problem.shape), torch.empty(problem.shape)
    launch(a, b, None, plain, 1, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        launch(a, b, None, d, 1, 1)
    assert torch.equal(d, plain)


@pytest.mark.usefixtures("two_threads")
def test_torch_threads_stay_as_they_were(problem: Problem) -> None:
    """The workers' own number of threads is neither the caller's nor that of threads to come."""
    _, launch = shared(problem)
    launch(problem.a, problem.b, None, torch.empty(problem.shape), 1, 1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *seen] == [2, 2]


def test_fewer_threads_than_planned(problem: Problem, two_threads: None) -> None:
    """Who leaves torch one thread gets no workers."""
    _, launch = shared(problem)
    torch.set_num_threads(1)
    before = threading.active_count()
    d = torch.full(problem.shape, torch.nan)
    launch(problem.a, problem.b, None, d, 1, 1)
    assert torch.equal(d, expected(problem))
    assert threading.active_count() == before


def _call_in_child(launch: Launch, problem: Problem, d: torch.Tensor) -> None:
    launch(problem.a, problem.b, None, d, 1, 1)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_gets_workers_of_its_own(problem: Problem) -> None:
    _, launch = shared(problem)
    launch(problem.a, problem.b, None, torch.empty(problem.shape), 1, 1)
    d = torch.full(problem.shape, torch.nan).share_memory_()
    child = multiprocessing.get_context("fork").Process(target=_call_in_child, args=(launch, problem, d))
    child.start()
    child.join(30)
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0
    assert torch.equal(d, expected(problem))


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    done = []

    def work(tasks: Iterator[int]) -> None:
        for task in tasks:
            if task == 3:
                raise ValueError("task 3")
            done.append(task)

    with pytest.raises(ValueError, match="task 3"):
        share(work, iter(range(1000)), 2, 1)
    assert len(done) < 1000


@pytest.mark.parametrize("cores", [1, 2, 7, 8, 12, 64, 100])
def test_split(cores: int) -> None:
    workers, threads = split(cores)
    assert 1 <= workers <= MAX_WORKERS
    assert workers * threads <= cores < workers * (threads + 1)


def test_float32_products_are_never_shortened(problem: Problem) -> None:
    """Whatever `torch.set_float32_matmul_precision` allows: the same result to the last bit."""
    a, b = (torch.randn(300, 300) for _ in range(2))
    product = Problem("mk,kn->mn", a, b)
    (_, plain), *_ = product.results(every=False)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        (_, d), *_ = product.results(every=False)
        assert torch.backends.mkldnn.enabled
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(d, plain)
