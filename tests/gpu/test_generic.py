"""Shape-generic kernels: every schedule that the rule may offer is right, and shapes share kernels."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import weft
from permuting import any_bits, bits
from support import Backend
from weft import reference
from weft.gpu.common.generic_axes import magic
from weft.gpu.common.swap_ab import in_kernel_order
from weft.gpu.generic import family
from weft.gpu.generic.model import laid
from weft.gpu.generic.schedule import GenericSchedule
from weft.gpu.permute import generic as moving
from weft.gpu.permute.generic import laid as laid_out
from weft.gpu.permute.schedule import in_words
from weft.testing import poisoned

# Axes of several modes, D contiguous along m, n and a batch, modes of one operand, nothing to sum, nothing at all.
CASES = [
    ("ij,jk->ik", (33, 40), (40, 29)),
    ("ki,kj->ij", (24, 17), (24, 18)),
    ("abc,bd->dca", (9, 12, 5), (12, 17)),
    ("dac,dcb->ba", (7, 20, 9), (7, 9, 18)),
    ("akl,blk->ab", (16, 8, 12), (16, 12, 8)),
    ("xij,xjk->ikx", (3, 17, 18), (3, 18, 16)),
    ("bij,bjk->bik", (3, 2, 5), (3, 5, 3)),
    ("ijx,j->i", (18, 5, 3), (5,)),
    ("i,j->ij", (20,), (21,)),
    ("ij,ji->ij", (37, 30), (30, 37)),
    ("ij,ij->", (17, 300), (17, 300)),
    ("abcdefgh,hgfi->adbeci", (2, 3, 2, 2, 3, 2, 2, 3), (3, 2, 2, 5)),
    ("ij,jk->ik", (17, 0), (0, 18)),
]


def offered(plan: weft.Plan) -> list[GenericSchedule]:
    contraction, target = plan.contraction, plan._request.target
    assert family.supports(contraction, target) is None
    return list(family.schedules(contraction, target).schedules)  # type: ignore[arg-type]


def run(plan: weft.Plan, schedule: GenericSchedule, a: torch.Tensor, b: torch.Tensor, **given: Any) -> torch.Tensor:
    """D by one schedule, over poison."""
    guarded = poisoned(plan.shape, plan.dtype, device=str(a.device))
    contraction, target = plan.contraction, plan._request.target
    launch = family.build(contraction, schedule, target)
    launch(a, b, given.get("c"), guarded.tensor, given.get("alpha", 1.0), given.get("beta", 0.0))
    guarded.check_guards()
    return guarded.tensor


MOST_INTERPRETED = 300  # programs


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("equation", "a_shape", "b_shape"), CASES)
def test_every_schedule_gives_the_same_integers(
    equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], triton_backend: Backend
) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (
        torch.randint(-4, 5, shape, generator=generator).to(triton_backend.device, torch.float32)
        for shape in (a_shape, b_shape)
    )
    plan = weft.plan(equation, a, b, backend="triton", epilogue=torch.relu)
    expected = reference.contract(equation, a, b, epilogue=torch.relu)
    schedules = offered(plan)
    if triton_backend.device == "cpu":  # the interpreter takes milliseconds for each program
        schedules = [schedule for schedule in schedules if schedule.tiles * schedule.splits <= MOST_INTERPRETED]
    assert schedules
    for schedule in schedules:
        assert torch.equal(run(plan, schedule, a, b).double(), expected), str(schedule)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32], ids=str)
def test_a_split_sum_finishes_once(dtype: torch.dtype, triton_backend: Backend) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b, c = (
        torch.randint(-3, 4, shape, generator=generator).to(triton_backend.device, dtype)
        for shape in ((5, 2100), (2100, 7), (5, 7))
    )
    plan = weft.plan("ik,kj->ij", a, b, c=c, out_dtype=dtype, backend="triton", epilogue=torch.abs)
    expected = (2 * (a.double() @ b.double()) - c.double()).abs()
    split = [schedule for schedule in offered(plan) if schedule.splits > 1]
    assert split
    factors = (2, -1) if dtype is torch.int32 else (2.0, -1.0)
    for schedule in split[:3]:
        found = run(plan, schedule, a, b, c=c, alpha=factors[0], beta=factors[1])
        assert torch.equal(found.double(), expected), str(schedule)
        assert schedule.workspace_bytes > 0


@pytest.mark.parametrize("algebra", ["max_plus", "or_and"])
def test_algebras(algebra: str, triton_backend: Backend) -> None:
    dtype = torch.bool if algebra == "or_and" else torch.float32
    a, b = (torch.randint(0, 2, shape).to(triton_backend.device, dtype) for shape in ((5, 300), (300, 6)))
    plan = weft.plan("ik,kj->ji", a, b, algebra=algebra, backend="triton")
    expected = weft.contract("ik,kj->ji", a, b, algebra=algebra, backend="reference").to(dtype)
    quick = [schedule for schedule in offered(plan) if schedule.k.tile < 128 or schedule.splits > 1]
    for schedule in quick[:3]:  # the interpreter takes seconds for long tiles
        assert torch.equal(run(plan, schedule, a, b), expected), str(schedule)


def test_stated_runs_are_true(triton_backend: Backend) -> None:
    """Large operands whose runs are stated to the compiler, odd ones beside them where nothing may be."""
    a, b = torch.ones(64, 8200, device=triton_backend.device), torch.ones(8200, 264, device=triton_backend.device)
    stated = offered(weft.plan("mk,kn->mn", a, b, backend="triton"))
    assert any(schedule.vectors == (4, 4, 1, 4) for schedule in stated)
    odd = torch.ones(64, 8201, device=triton_backend.device)[:, 1:]
    assert all(schedule.vectors[0] == 1 for schedule in offered(weft.plan("mk,kn->mn", odd, b, backend="triton")))


def test_shapes_share_kernels() -> None:
    """What is compiled depends neither on extents nor on how many modes there are, within a few."""
    found = set()
    for equation, a_shape, b_shape in (
        ("ij,jk->ik", (33, 40), (40, 29)),
        ("ji,jk->ki", (41, 40), (41, 64)),
        ("aibj,jbk->kia", (3, 5, 4, 7), (7, 4, 60)),
        ("acb,bd->cad", (7, 5, 11), (11, 13)),
    ):
        a, b = torch.zeros(a_shape), torch.zeros(b_shape)
        contraction = weft.plan(equation, a, b, backend="reference").contraction
        target = weft.plan(equation, a, b, backend="triton")._request.target
        first = next(each for each in family.schedules(contraction, target).schedules if each.kernel == "dot")  # type: ignore[attr-defined]
        found.add(laid(in_kernel_order(contraction, first), first, target).params)  # type: ignore[arg-type]
    assert len(found) == 1


def test_magic_numbers_divide() -> None:
    rng = random.Random(4)
    divisors = [*range(1, 70), 127, 128, 129, 2**20 - 1, 2**20, 2**20 + 1, 2**30 + 7, 2**31 - 2**13]
    for divisor in divisors:
        multiplier, shift = magic(divisor)
        assert -(2**31) <= multiplier < 2**31
        near = [q * divisor + r for q in (0, 1, 2, 2**31 // divisor - 1) for r in (-1, 0, 1)]
        for index in (*near, 2**31 - 1, *(rng.randrange(2**31) for _ in range(50))):
            if 0 <= index < 2**31:
                high = (multiplier % 2**32) * index >> 32
                assert high + index < 2**32
                assert (high + index) >> shift == index // divisor, (index, divisor)


MOVES = [
    ("abc->cba", (17, 9, 33)),
    ("abc->bac", (17, 30, 3)),
    ("abcd->dbca", (5, 3, 40, 7)),
    ("abcdef->fbdaec", (2, 3, 4, 2, 5, 3)),
    ("ab->ab", (7, 300)),
    ("a->ba", (5,)),
    ("aab->ba", (4, 4, 3)),
    ("->", ()),
    ("abc->bca", (4, 0, 3)),
]


@pytest.mark.parametrize(("equation", "shape"), MOVES)
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float64, torch.complex128], ids=str)
def test_permutations_move_every_bit(
    equation: str, shape: tuple[int, ...], dtype: torch.dtype, triton_backend: Backend
) -> None:
    x = any_bits(shape, dtype, 3, device=triton_backend.device)
    extents = {"b": 3} if equation == "a->ba" else None
    plan = weft.plan_permute(x, equation, extents=extents, backend="triton", specialize="never")
    assert plan.schedule.family == moving.NAME
    expected = weft.permute(x, equation, extents=extents, backend="reference")
    guarded = poisoned(plan.shape, dtype, device=triton_backend.device)
    plan(x, out=guarded.tensor)
    guarded.check_guards()
    assert torch.equal(bits(guarded.tensor), bits(expected))


def test_permutations_compute_and_add(triton_backend: Backend) -> None:
    x = torch.randint(-9, 9, (9, 14, 5), device=triton_backend.device).float()
    out = torch.randint(-9, 9, (5, 9, 14), device=triton_backend.device).double()
    expected = 2 * torch.relu(x.double()).permute(2, 0, 1) - out
    scaled = {"alpha": 2.0, "beta": -1.0, "c": out, "out": out}
    weft.permute(x, "abc->cab", fn=torch.relu, **scaled, backend="triton", specialize="never")
    assert torch.equal(out, expected)


def test_permutations_share_kernels() -> None:
    found = set()
    for equation, shape in (("abc->cba", (17, 9, 33)), ("abcd->dcba", (5, 2, 3, 61)), ("ab->ba", (30, 71))):
        plan = weft.plan_permute(torch.zeros(shape), equation, backend="triton")
        words = in_words(plan.permutation)
        schedule = moving.schedules(plan.permutation, plan._request.target).schedules[0]
        found.add(laid_out(words, schedule)[0])  # type: ignore[arg-type]
    assert len(found) == 1
