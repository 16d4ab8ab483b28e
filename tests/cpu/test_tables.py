"""Blocks of many small modes, moved element by element."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch

from cpu.problems import TARGET, Problem, check, operands
from weft.cpu import family as cpu
from weft.cpu.gather_tables import tables
from weft.cpu.schedule import CpuSchedule

DTYPES = [torch.bool, torch.uint8, torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES += [torch.int16, torch.int64, torch.complex64, torch.complex128]

ORDER, TILE, EXTENTS, STRIDES = (1, 0, 2), (2, 3, 2), (4, 8, 2), (41, 5, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_block_is_moved(dtype: torch.dtype) -> None:
    """To the bit, whatever lies between its elements; odd blocks have tables of their own."""
    found = tables(ORDER, TILE, EXTENTS, STRIDES)
    assert set(found) == {(3, 2, 2), (2, 2, 2)}
    for shape, table in found.items():
        memory = torch.randint(0, 256, (400 * dtype.itemsize,), dtype=torch.uint8)
        if dtype is torch.bool:
            memory &= 1
        before, start = memory.clone(), 7
        steps = [STRIDES[at] for at in ORDER]
        places = [
            start + sum(i * s for i, s in zip(at, steps, strict=True)) for at in itertools.product(*map(range, shape))
        ]
        values = torch.zeros(len(places), dtype=dtype)
        table.gather(memory.view(dtype), start, values)
        rows = memory.view(-1, dtype.itemsize)
        assert torch.equal(values.view(torch.uint8).view(-1, dtype.itemsize), rows[places])
        rows[places] = 0
        between = memory.clone()
        table.scatter(values, memory.view(dtype), start)
        assert torch.equal(memory, before)
        assert not torch.equal(between, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_blocks_that_interleave_are_written_at_once(dtype: torch.dtype) -> None:
    """Two threads, each to every other element: neither writes back what the other has overwritten."""
    count, rounds = 20000, 40
    (table,) = tables((0,), (count,), (count,), (2,)).values()
    memory = torch.zeros(2 * count, dtype=dtype)

    def write(start: int) -> None:
        for value in range(1, rounds + 1):
            table.scatter(torch.full((count,), value, dtype=dtype), memory, start)
            seen = memory[start::2]
            assert bool((seen == value).all())

    failed = []
    threading.excepthook, hook = failed.append, threading.excepthook
    try:
        writers = [threading.Thread(target=write, args=(start,)) for start in (0, 1)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    finally:
        threading.excepthook = hook
    assert not failed


def by_table(problem: Problem) -> list[CpuSchedule]:
    contraction = problem.contraction(torch.empty(problem.shape, dtype=problem.dtype))
    schedules = cpu.schedules(contraction, TARGET).schedules
    return [schedule for schedule in schedules if schedule.a.by_table or schedule.b.by_table or schedule.d_by_table]


SHUFFLED = {
    "packed": "abcdefghijkl,kcxeaygz->zhbyldfxij",
    "in one operand": "abcdefghijkl,kcea->lhbgdfji",
    "no sum": "abcdefghijkl,->gkbfjaeidhlc",
    "batch": "abcdefghijkl,hgfedcxa->dbalcjkxigef",
}


@pytest.mark.parametrize("equation", SHUFFLED.values(), ids=SHUFFLED.keys())
@pytest.mark.parametrize("extent", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64, torch.int32])
def test_shuffled_modes(equation: str, extent: int, dtype: torch.dtype) -> None:
    extents = dict.fromkeys("abcdefghijklxyz", extent) | (dict.fromkeys("abcd", 2) if extent == 3 else {})
    a, b = operands(equation, extents, dtype)
    problem = Problem(equation, a, b)
    assert by_table(problem)
    check(problem, every=False)


def test_function_addend_epilogue_and_conversion() -> None:
    """Everything that happens to a block on its way in and out happens by table too."""
    equation = SHUFFLED["packed"]
    a, b = operands(equation, dict.fromkeys("abcdefghijklxyz", 2), torch.float16)
    c = torch.randn(Problem(equation, a, b).shape).half()
    functions = {"a_fn": torch.tanh, "b_fn": torch.sin, "epilogue": torch.cos}
    problem = Problem(equation, a, b, c=c, alpha=0.5, beta=2, functions=functions)
    assert by_table(problem)
    check(problem, every=False)


def test_epilogue_of_another_type() -> None:
    equation = SHUFFLED["packed"]
    a, b = operands(equation, dict.fromkeys("abcdefghijklxyz", 2))
    problem = Problem(equation, a, b, functions={"epilogue": lambda x: x > 0})
    assert by_table(problem)
    expected = (torch.einsum(equation, a.double(), b.double()) > 0).float()
    for schedule, d in problem.results(every=False):
        assert torch.equal(d, expected), schedule


def test_conjugate_view() -> None:
    """Views that torch reads as conjugate are copied, not gathered bit by bit."""
    equation = SHUFFLED["packed"]
    a, b = operands(equation, dict.fromkeys("abcdefghijklxyz", 2), torch.complex64)
    problem = Problem(equation, a.conj(), b, conjugate=(False, True))
    assert by_table(problem)
    check(problem, every=False)
