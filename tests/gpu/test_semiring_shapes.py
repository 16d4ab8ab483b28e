"""Blocks of the algebra kernel: sides in pieces, tiles along two runs, and sums of exponentials."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft import reference
from weft.algebra import Algebra
from weft.api.describe import hypothetical
from weft.engine.ways import Arguments
from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.operation import sums_exponentials
from weft.gpu.common.tiling import TiledAxis
from weft.gpu.semiring import family as semiring
from weft.gpu.semiring.family import thread_tile
from weft.gpu.semiring.schedule import MOST_HELD, fitting
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout, Role
from weft.testing import poisoned, random_operand


def candidates(contraction: Contraction, target: Any) -> list[Any]:
    return list(semiring.schedules(contraction, target).schedules)


def described(equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> tuple[Contraction, Any, weft.Plan]:
    plan = weft.plan(equation, a, b, backend="triton", **options)
    return plan.contraction, plan._request.target, plan


def run(schedule: Any, contraction: Contraction, target: Any, plan: weft.Plan, *given: Any) -> torch.Tensor:
    """D over poison; `given` are A, B and, where something is added, C."""
    guarded = poisoned(plan.shape, plan.dtype, device=given[0].device)
    a, b, c = (*given, None)[:3]
    launch: Any = semiring.build(contraction, schedule, target)
    launch(a, b, c, guarded.tensor, 1.0, 1.0)
    guarded.check_guards()
    return guarded.tensor


def quickest(found: list[Any], count: int) -> list[Any]:
    """Those that the interpreter is done with first, no two with the same pieces."""
    by_subtiles: dict[Any, Any] = {}
    for schedule in sorted(found, key=lambda each: math.prod(each.tile)):
        by_subtiles.setdefault((schedule.subtiles, schedule.registers), schedule)
    return list(by_subtiles.values())[:count]


@pytest.mark.parametrize("extent", [9, 12, 20, 24, 33, 40, 72, 96])
def test_pieces_fit_a_short_side(extent: int) -> None:
    found = fitting(extent, 4)
    assert found
    for shape in found:
        subtiles, covered = shape.subtiles[1], shape.subtiles[1] * shape.n
        assert extent <= covered < extent + shape.n
        assert covered <= 0.9 * power_of_two(extent)
        assert shape.rows * shape.columns * subtiles <= MOST_HELD[4]
        assert shape.m // shape.rows * (shape.n // shape.columns) == 32 * shape.warps


def test_sides_that_fit_a_power_of_two_or_are_long_have_no_pieces() -> None:
    assert not any(fitting(extent, size) for extent in (8, 16, 31, 64, 121, 128, 312) for size in (4, 8))


def test_threads_side_by_side_read_side_by_side() -> None:
    """Neighbours in shared memory belong to one thread only as far as one load takes them."""
    x = torch.ones(64, 64)
    contraction, _, _ = described("mk,kn->mn", x, x, algebra="max_plus")
    depth, row, column = (TiledAxis(contraction.of_role(role), 8) for role in (Role.K, Role.M, Role.N))
    of_a, of_b = (row._replace(tile=128),), (column._replace(tile=128),)
    assert thread_tile(of_a, 8, 1, 4, depth, 0).run == 1  # A lies along k
    assert thread_tile(of_b, 8, 1, 4, depth, 1).run == 4  # B along n
    assert thread_tile(of_b, 8, 1, 2, depth, 1).run == 8
    assert thread_tile(of_b, 8, 1, 4, depth, 0).run == 1  # neither of the two
    assert thread_tile((column._replace(tile=32),), 2, 3, 4, depth, 1) == (3, 4, 2, 2, 4, 2)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("mk,nk->mn", ((130, 9), (12, 9))),  # exact pieces, k overhangs
        ("mk,kn->nm", ((130, 8), (8, 11))),  # a piece overhangs, B along n
        ("km,nk->mn", ((8, 20), (130, 8))),  # pieces of A's side
        ("xkm,xnlk->xmln", ((2, 8, 130), (2, 5, 2, 8))),  # a batch; two modes in pieces
    ],
)
def test_pieces_are_exact(equation: str, shapes: Any, triton_backend: Backend) -> None:
    a, b = (
        random_operand(each, torch.float32, seed, integers=True, device=triton_backend.device)
        for seed, each in enumerate(shapes)
    )
    expected = reference.contract(equation, a, b, algebra="max_plus")
    contraction, target, plan = described(equation, a, b, algebra="max_plus")
    pieced = [s for s in candidates(contraction, target) if max(s.subtiles) > 1]
    assert pieced
    for schedule in quickest(pieced, 3):
        got = run(schedule, contraction, target, plan, a, b)
        assert torch.equal(got.double(), expected.double()), str(schedule)


def test_pieces_of_split_reductions_with_c_and_epilogue(triton_backend: Backend) -> None:
    a, b, c = (
        random_operand(shape, torch.float32, seed, device=triton_backend.device)
        for seed, shape in enumerate(((130, 530), (11, 530), (11, 130)))
    )
    plan = weft.plan("mk,nk->nm", a, b, c=c, algebra="min_plus", epilogue=torch.neg, backend="triton")
    plan.prepare(Arguments(a, b, c))
    (variant,) = (each for each in plan._variants.values() if each.description.c is not None)
    target = replace(plan._request.target, processors=8)
    found = candidates(variant.description, target)
    (schedule,) = quickest([s for s in found if s.splits > 1 and max(s.subtiles) > 1], 1)
    expected = -torch.minimum((a[None] + b[:, None]).amin(-1), c)
    assert torch.equal(run(schedule, variant.description, target, plan, a, b, c), expected)


def test_tiles_hold_a_run_of_the_operand_and_one_of_d(triton_backend: Backend) -> None:
    a, b = (
        random_operand(shape, torch.float32, seed, device=triton_backend.device)
        for seed, shape in enumerate(((17, 9, 19), (8, 9)))
    )
    contraction, target, plan = described("adb,cd->cba", a, b, algebra="max_plus")
    found = [s for s in candidates(contraction, target) if len(s.m) == 2]
    assert {(s.m[0].modes[0].name, s.m[1].modes[0].name) for s in found} == {("a", "b")}
    (schedule,) = quickest(found, 1)
    expected = (a[None] + b[:, None, :, None]).amax(2).transpose(1, 2)
    assert torch.equal(run(schedule, contraction, target, plan, a, b), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
class TestSumsOfExponentials:
    def check(self, a: torch.Tensor, b: torch.Tensor, combine: Any = lambda x, y: y + x) -> None:
        own = Algebra(combine, torch.logaddexp, "lowest", "own")
        contraction, target, plan = described("mk,nk->mn", a, b, algebra=own)
        assert sums_exponentials(contraction)
        target = replace(target, processors=8)
        found = candidates(contraction, target)
        split, whole = ([s for s in found if (s.splits > 1) == wanted] for wanted in (True, False))
        expected = combine(a.double()[:, None], b.double()[None]).logsumexp(-1)
        sizes = [each[each.isfinite()].abs().max() for each in (a, b, expected) if each.isfinite().any()]
        bound = 4 * torch.finfo(a.dtype).eps * (1 + float(max(sizes)))
        for schedule in (*quickest(whole, 2), *quickest(split, 1)):
            got = run(schedule, contraction, target, plan, a, b).double()
            for kind in (torch.isnan, torch.isposinf, torch.isneginf):
                assert torch.equal(kind(got), kind(expected)), str(schedule)
            inside = expected.isfinite()
            assert (got - expected)[inside].abs().max() <= bound, str(schedule)

    @pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0, 1e4])
    def test_of_any_spread(self, spread: float, dtype: torch.dtype, triton_backend: Backend) -> None:
        a, b = (spread * random_operand((9, 67), dtype, seed, device=triton_backend.device) for seed in (1, 2))
        self.check(a, b)
        self.check(a.sort(descending=True)[0], b.sort(descending=True)[0])

    def test_infinities_and_nan(self, dtype: torch.dtype, triton_backend: Backend) -> None:
        a, b = (random_operand((9, 67), dtype, seed, device=triton_backend.device) for seed in (1, 2))
        a[1], b[2], a[3, ::2], b[3, 1::2] = (-math.inf,) * 4
        a[6, :40] = -math.inf  # nothing in the first steps
        a[7] -= 200.0
        a[5, 4] = math.inf
        self.check(a, b)
        b[7, 2] = math.nan
        self.check(a, b)

    def test_of_another_combination(self, dtype: torch.dtype, triton_backend: Backend) -> None:
        a, b = (random_operand((9, 67), dtype, seed, device=triton_backend.device) for seed in (1, 2))
        self.check(a, b, torch.mul)

    def test_only_where_the_identity_is_minus_infinity(self, dtype: torch.dtype, triton_backend: Backend) -> None:
        x = torch.ones(9, 9, dtype=dtype, device=triton_backend.device)
        for reduce, identity in ((torch.logaddexp, -100.0), (torch.maximum, "lowest"), (torch.logaddexp2, "lowest")):
            contraction, _, _ = described("mk,nk->mn", x, x, algebra=Algebra(torch.add, reduce, identity))
            assert not sums_exponentials(contraction)


H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)


def chosen(equation: str, extents: dict[str, int], dtype: torch.dtype = torch.float32) -> Any:
    """The model's choice for an H200, which nothing here runs."""
    request = hypothetical(equation, extents, dtype=dtype, algebra="max_plus", backend="triton", target="sm_90")
    layout = Layout.contiguous([extents[label] for label in request.notation.output], request.d_dtype)
    contraction = request.contraction(None, layout, [])
    return min(candidates(contraction, H200), key=lambda each: semiring.predict(contraction, each, H200))


def test_the_model_prefers_what_an_h200_ran_fastest() -> None:
    """Orders that were measured: 256x24 with both runs over 128x32, 72 in pieces of 8, many splits, small blocks."""
    tiled_dim = {"a": 312, "b": 312, "c": 24, "d": 312}
    first = chosen("adb,cd->cba", tiled_dim)
    assert first.computed[1] == 24
    assert [cut.modes[0].name for cut in first.m] == ["a", "b"]
    ninth = chosen("ae,dcbe->dcba", dict.fromkeys("abcde", 72))
    assert (ninth.computed[0], ninth.subtiles) == (72, (9, 1))
    deep = chosen("dca,cbd->ba", {"a": 312, "b": 296, "c": 296, "d": 312})
    assert deep.splits > 40
    assert chosen("fbea,ecfd->dcba", dict.fromkeys("abcdef", 72)).warps == 2


def test_deep_steps_are_for_single_precision_along_k() -> None:
    square = dict.fromkeys("mnk", 4096)
    assert chosen("mk,kn->mn", square).tile[2] == 16
    assert chosen("km,kn->mn", square).tile[2] == 8
    assert chosen("mk,kn->mn", square, torch.float16).tile[2] == 8


@pytest.mark.parametrize("name", ["max_plus", "min_plus"])
def test_nan_of_either_operand_stays_in_double(name: str, triton_backend: Backend) -> None:
    """Doubles are compared, as no instruction takes the larger of two; no comparison may hide NaN."""
    a, b = (random_operand((9, 20), torch.float64, seed, device=triton_backend.device) for seed in (1, 2))
    a[2, 3], a[4, 19], b[5, 0] = math.nan, math.nan, math.nan
    result = weft.contract("mk,nk->mn", a, b, algebra=name, backend="triton")
    pairs = a[:, None] + b[None]
    expected = pairs.amax(-1) if name == "max_plus" else pairs.amin(-1)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.nan_to_num(), expected.nan_to_num())
