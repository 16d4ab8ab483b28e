"""One pass over memory: values of every form, type, layout and tile; workspace, infinities, threads, and times."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import weft
from cpu.memory_forms import DOTS, FORMS, OF_THREE, operands, shapes
from weft.cpu.stream import family
from weft.cpu.stream.nest import StreamSchedule, nests, room, types_of
from weft.oracle.bounds import expectation
from weft.planner.schedule import Target
from weft.testing import assert_close, poisoned, random_operand

# A type of operands is a kernel to compile: of each kind one is quick, and single numbers beside double ones.
KINDS = [torch.float32, torch.float64, torch.complex128, torch.int64,
         *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.complex64, torch.int32))]
STORED = [torch.float16, torch.int8,
          *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.bfloat16, torch.uint8, torch.int16))]
TILES = ["ac,abc->cb", "ij,ji->", "ijab,ijba->", "ij,ji->ij", "abc,->cb", "ab,cd->acbd", "bij,bjk->bik", "ii,->i"]


def of_two(equation: str) -> str:
    return equation if "," in equation else equation.replace("->", ",->")


def run(
    equation: str, a: torch.Tensor, b: torch.Tensor, threads: int = 1, tile: int | None = None, alpha: Any = 1,
    layout: str = "contiguous", **options: Any,
) -> None:  # fmt: skip
    """D, over poison between guards, is within its bound of the oracle; `tile`: which of all choices, not the best."""
    expected, bound = expectation(equation, a, b, alpha=alpha, **options)
    dtype = options.get("out_dtype") or a.dtype
    guarded = poisoned(tuple(expected.shape), dtype, layout=layout)
    planned = weft.plan(equation, a, b, backend="reference", out=guarded.tensor, **options)
    contraction, target = planned.contraction, Target("cpu", name="CPU", processors=threads)
    assert family.supports(contraction, target) is None
    for schedule in family.schedules(contraction, target).schedules:
        if tile is not None:
            every = list(nests(contraction))
            x, y, nest = every[tile % len(every)]
            schedule = StreamSchedule(x, y, threads, room(nest, types_of(contraction)))
        family.build(contraction, schedule, target)(a, b, None, guarded.tensor, alpha, 0)
        guarded.check_guards()
        assert_close(guarded.tensor, expected, bound)


def pair(equation: str, dtype: torch.dtype, layout: str = "contiguous") -> list[torch.Tensor]:
    given = shapes(equation, FORMS[equation.replace(",->", "->")], 0.5)
    found = [random_operand(shape, dtype, seed, layout=layout) for seed, shape in enumerate(given, 1)]
    return [*found, torch.full((), 3, dtype=dtype)] if len(found) == 1 else found


@pytest.mark.parametrize("dtype", KINDS)
def test_values(dtype: torch.dtype) -> None:
    for equation in map(of_two, FORMS):
        run(equation, *pair(equation, dtype))
        run(equation, *pair(equation, dtype, "strided"), layout="strided")


@pytest.mark.parametrize("dtype", STORED)
def test_types_that_sums_are_wider_than(dtype: torch.dtype) -> None:
    for equation in map(of_two, FORMS):
        run(equation, *pair(equation, dtype), out_dtype=torch.float32 if dtype.is_floating_point else torch.int32)
        if dtype.is_floating_point:
            run(equation, *pair(equation, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex128])
@pytest.mark.parametrize("equation", TILES)
def test_every_tile(equation: str, dtype: torch.dtype) -> None:
    extents = dict(zip("abcdijk", (3, 70, 9, 66, 67, 130, 5), strict=True))
    given = [tuple(extents[label] if equation != "ii,->i" else 67 for label in term)
             for term in equation.split("->")[0].split(",")]  # fmt: skip
    a, b = (random_operand(shape, dtype, seed) for seed, shape in enumerate(given, 1))
    if equation in ("ij,ji->", "ij,ji->ij", "ijab,ijba->"):
        b = random_operand(given[1], dtype, 2)
    count = len(list(nests(weft.plan(equation, a, b, backend="reference").contraction)))
    for tile in range(count):
        run(equation, a, b, tile=tile)


def test_sums_are_scaled_by_alpha() -> None:
    for dtype, alpha in ((torch.float32, 0.5), (torch.int64, 3), (torch.complex64, 1 - 2j)):
        for equation in ("ij,j->i", "i,i->i", "abc,->cb", "ij,ji->"):
            run(equation, *pair(equation, dtype), alpha=alpha)


@pytest.mark.parametrize("equation", ["i,i->", "ij,ji->", "ij,ij->ij", "abc,->b", "ac,abc->cb"])
def test_threads_share_blocks_or_sums(equation: str) -> None:
    given = operands(equation.replace(",->", "->"), FORMS[equation.replace(",->", "->")], torch.float32, 2.0)
    given += [torch.ones(())] * (2 - len(given))
    run(equation, *given, threads=2)
    assert torch.allclose(weft.contract(equation, *given), torch.einsum(equation, *given), atol=1e-2, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_an_infinity_of_a_complex_sum_stays_one(dtype: torch.dtype) -> None:
    x = torch.ones(60, 40, dtype=dtype)
    x[3, 5] = torch.inf
    assert weft.einsum("ij->j", x)[5] == x.sum(0)[5] == torch.inf
    one, three = torch.ones((), dtype=dtype), torch.full((), 3, dtype=dtype)
    for equation, place in (("ij,->j", 5), ("ij,->i", 3), ("ij,->", ())):
        expected, target = x.sum([at for at, label in enumerate("ij") if label not in equation[4:]]), Target("cpu")
        contraction = weft.plan(equation, x, three, backend="reference").contraction
        for x_at, y_at, nest in nests(contraction):
            schedule = StreamSchedule(x_at, y_at, 1, room(nest, types_of(contraction)))
            for number, alpha in ((one, 1), (three, 2)):
                d = torch.full_like(expected, torch.nan)
                family.build(contraction, schedule, target)(x, number, None, d, alpha, 0)
                assert d[place] == expected[place] == torch.inf


@pytest.mark.parametrize(
    ("equation", "first", "second"),
    [("ij,i->j", (3000, 70), (3000,)), ("ij,j->i", (70, 3000), (3000,)), ("ij,ij->", (300, 700), (300, 700)),
     ("abc,->b", (50, 70, 60), ()), ("ij,ji->", (300, 700), (700, 300))],
)  # fmt: skip
def test_long_sums_lose_little(equation: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """Of 3000 and more positive terms in float32; one after the other they lose ten times as much."""
    a, b = torch.rand(first), torch.rand(second)
    contraction = weft.plan(equation, a, b, backend="reference").contraction
    exact, target = weft.reference.contract(equation, a.double(), b.double()), Target("cpu", name="CPU")
    found = torch.empty(exact.shape)
    (schedule,) = family.schedules(contraction, target).schedules
    family.build(contraction, schedule, target)(a, b, None, found, 1, 0)
    assert ((found - exact).abs() / exact).max() < 4e-7


def test_dots_of_permuted_operands_take_no_workspace() -> None:
    for equation, extents in DOTS.items():
        a, b = operands(equation, extents, torch.float32, 4.0)
        assert weft.plan(equation, a, b).workspace_bytes <= 1 << 18, equation
        odd = weft.plan(equation, a, b, algebra="max_plus")  # which has no kernel for few rows
        assert odd.workspace_bytes <= 4 << 20, equation
        exact = weft.reference.contract(equation, a, b, algebra="max_plus")
        assert torch.allclose(odd(a, b).double(), exact), equation


@pytest.mark.keeps
def test_a_call_like_an_earlier_one_takes_few_frames() -> None:
    x = torch.randn(30, 30)
    for call in (lambda: weft.einsum("ij,ij->i", x, x), lambda: weft.einsum("ij->j", x)):
        call(), call()
        frames = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal frames
            frames += event == "call"

        sys.setprofile(count)
        call()
        sys.setprofile(None)
        assert frames <= 18


def test_equations_that_are_none_are_refused_as_before() -> None:
    with pytest.raises(weft.NotationError):
        weft.einsum("i->->", torch.ones(3))
    with pytest.raises(weft.NotationError):
        weft.einsum()


def best(call: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of each, the least of many in turns."""
    for each in (call, other):
        each(), each()
    times = [float("inf")] * 2
    end = time.perf_counter() + 0.25
    while time.perf_counter() < end:
        for at, each in enumerate((call, other)):
            start = time.perf_counter()
            each()
            times[at] = min(times[at], time.perf_counter() - start)
    return times[0], times[1]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.float16, torch.int64])
def test_no_form_takes_much_longer_than_by_torch(dtype: torch.dtype) -> None:
    """On one thread at most 1.6 times as long (2.2 of complex numbers, which are slow in tiles that are turned)
    and 4 us more, which is what calls differ by; half of the forms less."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    slow, ratios = {}, []
    try:
        for equation, extents in {**FORMS, **OF_THREE}.items():
            given = operands(equation, extents, dtype, 2.0)
            ours, torchs = best(partial(weft.einsum, equation, *given), partial(torch.einsum, equation, *given))
            ratios.append(ours / torchs)
            if ours > (2.2 if dtype.is_complex else 1.6) * torchs + 4e-6:
                slow[equation] = round(ours * 1e6), round(torchs * 1e6)
    finally:
        torch.set_num_threads(threads)
    assert not slow, slow
    assert sorted(ratios)[len(ratios) // 2] < 1
