"""The kernels of algebras and of functions with operands, whichever schedule the planner would choose."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft import reference
from weft.algebra import plus_times_mod
from weft.engine.ways import Arguments
from weft.gpu.composite import logsumexp
from weft.gpu.gett import family as matrix
from weft.gpu.semiring import family as algebra
from weft.gpu.simt import family as vector
from weft.planner.schedule import Target
from weft.spec import Contraction
from weft.testing import poisoned, random_operand

CASES = [
    ("mk,nk->nm", (18, 37), (17, 37)),  # k overhangs its steps
    ("ambk,cnk->abmcn", (3, 5, 2, 8), (3, 7, 8)),  # flattened axes, whole steps
    ("xkm,xkln->xmn", (2, 9, 8), (2, 9, 2, 9)),  # a batch, a mode of B alone
    ("m,n->mn", (18,), (9,)),  # nothing to reduce
    ("mk,nk->mn", (9, 0), (8, 0)),  # the identity
]
ALGEBRAS: list[tuple[Any, torch.dtype]] = [
    ("max_plus", torch.float32), ("min_plus", torch.float16), ("max_times", torch.float64), ("min_max", torch.int64),
    ("or_and", torch.bool), ("gf2", torch.int32), (plus_times_mod(7), torch.int32), ("max_plus", torch.int8),
    ("plus_times", torch.int64),
]  # fmt: skip


def described(equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> tuple[weft.Plan, Contraction, Target]:
    plan = weft.plan(equation, a, b, backend="triton", **options)
    return plan, plan.contraction, plan._request.target


def launched(room: Any, schedule: Any, plan: weft.Plan, a: torch.Tensor, b: torch.Tensor, *named: Any) -> list[Any]:
    """The results of one schedule, written over poison; operands of functions stand in `named`, None for indices."""
    contraction, target = plan.contraction, plan._request.target
    guarded = [poisoned(plan.shape, dtype, device=a.device) for dtype in plan.dtypes]
    results = [each.tensor for each in guarded]
    aux = ((*named, *results[1:]),) if contraction.aux else ()
    room.build(contraction, schedule, target)(a, b, None, results[0], 1.0, 1.0, *aux)
    for each in guarded:
        each.check_guards()
    return results


def small(schedule: Any) -> bool:
    """Whether the interpreter is done with it soon."""
    tile = getattr(schedule, "tile", (16, 16, 16))
    return tile[0] * tile[1] <= 16 * 64


@pytest.mark.parametrize(("name", "dtype"), ALGEBRAS, ids=[f"{getattr(n, 'name', n)}-{d}" for n, d in ALGEBRAS])
def test_every_algebra_and_type_is_exact(name: Any, dtype: torch.dtype, triton_backend: Backend) -> None:
    for seed, (equation, *shapes) in enumerate(CASES):
        a, b = (random_operand(shape, dtype, seed, integers=True, device=triton_backend.device) for shape in shapes)
        options: dict[str, Any] = {"algebra": name, "out_dtype": torch.int32 if dtype is torch.int8 else dtype}
        expected = reference.contract(equation, a, b, **options)
        plan, contraction, target = described(equation, a, b, **options)
        assert algebra.supports(contraction, target) is None
        schedules = list(filter(small, algebra.schedules(contraction, target).schedules))
        split = [schedule for schedule in schedules if schedule.splits > 1]
        for schedule in (*schedules[-1:], *split[:1]):
            (result,) = launched(algebra, schedule, plan, a, b)
            assert torch.equal(result, expected), str(schedule)


def test_reductions_are_split_in_a_fixed_order(triton_backend: Backend) -> None:
    a, b = (random_operand((16, 1030), torch.float32, seed, device=triton_backend.device) for seed in (1, 2))
    c = random_operand((16, 16), torch.float32, 3, device=triton_backend.device)
    plan = weft.plan("mk,nk->mn", a, b, c=c, algebra="max_plus", epilogue=torch.neg, backend="triton")
    plan.prepare(Arguments(a, b, c))
    (variant,) = (each for each in plan._variants.values() if each.description.c is not None)
    target = replace(plan._request.target, processors=8)
    split = [s for s in algebra.schedules(variant.description, target).schedules if s.splits > 1 and small(s)]
    assert split
    out = torch.empty(16, 16, device=a.device)
    algebra.build(variant.description, split[0], target)(a, b, c, out, 1.0, 1.0)
    assert torch.equal(out, -torch.maximum((a[:, None] + b[None]).amax(-1), c))


def test_algebra_refuses_what_others_do_better(triton_backend: Backend) -> None:
    x = torch.ones(16, 16, device=triton_backend.device)
    _, contraction, target = described("mk,nk->mn", x.half(), x.half())
    assert "float16 products" in str(algebra.supports(contraction, target))
    _, contraction, target = described("mk,nk->mn", x, x[:4].contiguous(), algebra="max_plus")
    assert "under 8" in str(algebra.supports(contraction, target))
    assert matrix.supports(contraction, target) == "no matrix instruction computes in the algebra max_plus"


def everything(x: Any, row: Any, k: Any, m: Any) -> Any:
    return x * row + k - m


def results(x: Any, bias: Any, gate: Any, m: Any) -> Any:
    return torch.where(gate, x + bias, -x), x > bias, m


@pytest.mark.parametrize("room", [matrix, vector, algebra], ids=lambda room: room.NAME)
def test_functions_take_operands_and_coordinates_and_yield_several_results(room: Any, triton_backend: Backend) -> None:
    device, dtype = triton_backend.device, torch.int32 if room is algebra else torch.float16
    size = 24 if room is vector else 40  # vector goes along the sum one by one, which takes the interpreter long
    a, b = (random_operand((size, size), dtype, 1, integers=True, device=device) for _ in range(2))
    row, bias = (random_operand(shape, dtype, 2, integers=True, device=device) for shape in ((size,), (size, size)))
    gate = (torch.arange(size) % 3 == 0).to(device)
    options: dict[str, Any] = {
        "a_fn": everything, "b_fn": lambda x, row: x + row, "epilogue": results, "indices": {"k": "k", "m": "m"},
        "operands": {"row": ("k", row), "bias": ("nm", bias), "gate": ("n", gate)},
        "out_dtype": (torch.int32 if room is algebra else torch.float32, None, None),
    }  # fmt: skip
    expected = reference.contract("mk,kn->mn", a, b, **options)
    plan = weft.plan("mk,kn->mn", a, b, backend="triton", **options)
    contraction = plan.contraction
    named = [options["operands"].get(each.name, (None, None))[1] for each in contraction.aux][:-2]
    target = plan._request.target
    target = target if device == "cuda" else replace(target, capability=90)
    schedules = [each for each in room.schedules(contraction, target).schedules if device == "cuda" or smallest(each)]
    assert schedules
    split = [schedule for schedule in schedules if getattr(schedule, "splits", 1) > 1]
    for schedule in (*schedules[-1:], *split[:1]):
        for got, want in zip(launched(room, schedule, plan, a, b, *named), expected, strict=True):
            assert torch.equal(got.double(), want.double()), str(schedule)


def smallest(schedule: Any) -> bool:
    tile = getattr(schedule, "tile", (16, 16, 16))
    return tile[0] * tile[1] <= 64 * 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
class TestLog:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(logsumexp, "LEAST_FLOPS", 0)

    def check(self, a: torch.Tensor, b: torch.Tensor, ulps: float, **options: Any) -> None:
        """Every schedule of the family within some units in the last place of the largest of what is added."""
        plan, contraction, target = described("mk,nk->mn", a, b, algebra="log", **options)
        expected = (a.double()[:, None] + b.double()[None]).logsumexp(-1)
        schedules = logsumexp.schedules(contraction, target).schedules
        assert schedules
        finite = [x[x.isfinite()].abs().max() for x in (a, b, expected) if x.isfinite().any()]
        bound = ulps * torch.finfo(a.dtype).eps * (1 + float(max(finite)))
        for schedule in schedules:
            assert str(schedule).startswith("logsumexp ")
            (result,) = launched(logsumexp, schedule, plan, a, b)
            for kind in (torch.isnan, torch.isposinf, torch.isneginf):
                assert torch.equal(kind(result), kind(expected)), str(schedule)
            inside = expected.isfinite()
            assert not inside.any() or (result.double() - expected)[inside].abs().max() <= bound

    @pytest.mark.one_of(3)
    @pytest.mark.parametrize("spread", [1e-3, 1.0, 20.0, 300.0, 1e5])
    def test_of_any_spread(self, spread: float, dtype: torch.dtype, triton_backend: Backend) -> None:
        a, b = (spread * random_operand((9, 33), dtype, seed, device=triton_backend.device) for seed in (1, 2))
        self.check(a, b, 4)

    def test_peaks_that_do_not_meet(self, dtype: torch.dtype, triton_backend: Backend) -> None:
        """The largest of A's row and of B's stand at different k, far above all else: every factor there vanishes."""
        a, b = (random_operand((9, 33), dtype, seed, device=triton_backend.device) for seed in (1, 2))
        a[:, 3], b[:, 5] = 2000.0, 2000.0
        a[:, 5], b[:, 3] = -1900.0, -1900.0
        self.check(a, b, 4)

    def test_infinities_and_nan(self, dtype: torch.dtype, triton_backend: Backend) -> None:
        a, b = (random_operand((9, 33), dtype, seed, device=triton_backend.device) for seed in (1, 2))
        a[1], b[2], a[3, ::2], b[3, 1::2] = (-math.inf,) * 4
        a[5, 4] = math.inf
        self.check(a, b, 4)
        b[7, 2] = math.nan
        self.check(a, b, 4)

    def test_of_other_contractions_is_refused(self, dtype: torch.dtype, triton_backend: Backend) -> None:
        x = torch.ones(9, 9, dtype=dtype, device=triton_backend.device)
        bias = torch.ones(9, dtype=dtype, device=triton_backend.device)
        for options, words in (
            ({"algebra": "max_plus"}, "only the algebra log"),
            ({}, "only the algebra log"),
            (
                {"algebra": "log", "a_fn": lambda v, bias: v + bias, "operands": {"bias": ("m", bias)}},
                "for the direct form only",
            ),
        ):
            _, contraction, target = described("mk,nk->mn", x, x, **options)
            assert words in str(logsumexp.supports(contraction, target))


def test_log_with_functions_and_several_results(monkeypatch: pytest.MonkeyPatch, triton_backend: Backend) -> None:
    monkeypatch.setattr(logsumexp, "LEAST_FLOPS", 0)
    device = triton_backend.device
    a, b = (random_operand((2, 9, 20), torch.float16, seed, device=device) for seed in (1, 2))
    gate = random_operand((9,), torch.float32, 3, device=device)
    options: dict[str, Any] = {
        "a_fn": lambda x: 2 * x, "epilogue": lambda x, n, gate: (x + gate, n + x), "operands": {"gate": ("m", gate)},
        "indices": {"n": "n"}, "algebra": "log", "out_dtype": (torch.float32, torch.float32),
    }  # fmt: skip
    plan, contraction, target = described("bmk,bnk->nbm", a, b, **options)
    expected = reference.contract("bmk,bnk->nbm", a, b, **options)
    for schedule in logsumexp.schedules(contraction, target).schedules:
        named = [gate if each.kind == "operand" else None for each in contraction.aux if each.kind != "output"]
        for got, want in zip(launched(logsumexp, schedule, plan, a, b, *named), expected, strict=True):
            assert torch.allclose(got, want, rtol=1e-6, atol=3e-6)
