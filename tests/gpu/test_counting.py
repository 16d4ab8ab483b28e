"""Algebras of truth values by counting pairs on matrix units, whichever schedule the planner would choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft import reference
from weft.engine.ways import Arguments
from weft.gpu.composite import counting, ttgt
from weft.planner.planner import choose
from weft.planner.schedule import Target
from weft.spec import Contraction, Role
from weft.testing import poisoned, random_operand

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
A100 = Target("cuda", 0, "NVIDIA A100", 80, 108, 166912)
CASES = [
    ("mk,nk->nm", (18, 37), (17, 37)),  # k overhangs its steps
    ("mk,kn->mn", (33, 300), (300, 35)),  # more pairs than a byte counts
    ("ambk,cnk->abmcn", (3, 5, 2, 8), (3, 7, 8)),  # flattened axes
    ("xkm,xkln->xmn", (2, 9, 8), (2, 9, 2, 9)),  # a batch, a mode of B alone
    ("m,n->mn", (18,), (9,)),  # nothing to sum
    ("mk,kn->mn", (1, 5), (5, 1)),
    ("mk,nk->mn", (9, 0), (8, 0)),  # the identity
    ("mk,nk->mn", (0, 3), (8, 3)),
]


by_another_name = weft.Algebra(lambda x, y: x.logical_and(y), lambda p, q: p.logical_or(q), 0, "mine")


def described(equation: str, *operands: torch.Tensor, **options: Any) -> tuple[weft.Plan, Contraction, Target]:
    """The plan of a call, its contraction, and a device with matrix units of sm_90."""
    a, b, *c = operands
    plan = weft.plan(equation, a, b, c=c[0] if c else None, backend="triton", **options)
    if c:
        operands = {name: given for name, (_, given) in options.get("operands", {}).items()}
        plan.prepare(Arguments(a, b, c[0], operands=operands))
    variant = next(each for each in plan._variants.values() if (each.description.c is not None) == bool(c))
    target = plan._request.target
    return plan, variant.description, replace(target, capability=target.capability or 90)


def check(equation: str, *operands: torch.Tensor, named: Any = (), **options: Any) -> None:
    """Every schedule of the family, over poison, equal to the reference."""
    plan, contraction, target = described(equation, *operands, **options)
    a, b, *c = operands
    expected = reference.contract(equation, a, b, c=c[0] if c else None, **options)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert counting.supports(contraction, target) is None
    schedules = counting.schedules(contraction, target).schedules
    assert schedules
    for schedule in schedules:
        guarded = [poisoned(plan.shape, dtype, device=a.device) for dtype in plan.dtypes]
        d, *others = (each.tensor for each in guarded)
        launch = counting.build(contraction, schedule, target)  # type: ignore[arg-type]
        launch(a, b, c[0] if c else None, d, 1.0, 1.0, (*named, *others))
        for got, want in zip(guarded, expected, strict=True):
            got.check_guards()
            assert torch.equal(got.tensor, want.to(got.tensor.dtype)), str(schedule)


def bytes_of(shape: tuple[int, ...], seed: int, device: str) -> torch.Tensor:
    """Truth values of which half are false and the others any other byte."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, shape, generator=generator) * torch.randint(0, 2, shape, generator=generator)
    return values.to(torch.uint8).view(torch.bool).to(device)


@pytest.mark.parametrize("algebra", ["or_and", "gf2"])
def test_is_exact(algebra: str, triton_backend: Backend) -> None:
    for seed, (equation, *shapes) in enumerate(CASES):
        a, b = (random_operand(shape, torch.bool, seed, device=triton_backend.device) for shape in shapes)
        check(equation, a & a.roll(1), b, algebra=algebra)


@pytest.mark.parametrize(("algebra", "k"), [("or_and", 256), ("gf2", 129), ("or_and", 20_001)])
def test_counts_past_a_byte(algebra: str, k: int, triton_backend: Backend) -> None:
    """All true, all false, and one pair at the end: 256 is zero in eight bits, and 129 and 20001 are past them."""
    a, b = (torch.ones(16, k, dtype=torch.bool, device=triton_backend.device) for _ in range(2))
    a[3], b[5] = False, False
    a[4], a[4, -1] = False, True
    b[6, -1] = False
    check("mk,nk->mn", a, b, algebra=algebra)


@pytest.mark.parametrize("algebra", ["or_and", "gf2"])
def test_any_byte_but_zero_is_true(algebra: str, triton_backend: Backend) -> None:
    """Of bytes as they are 1 * 1 + 255 * 1 is zero in eight bits with a sign, and 2 * 1 is even."""
    a, b = (bytes_of((16, 40), seed, triton_backend.device) for seed in (1, 2))
    a.view(torch.uint8)[0, :2], a[0, 2:] = torch.tensor([1, 255], dtype=torch.uint8), False
    b[0] = True
    check("mk,nk->mn", a, b, algebra=algebra)
    check("mk,kn->mn", a, b.T.contiguous(), algebra=algebra)


@pytest.mark.parametrize("capability", [90, 80])
def test_packed_operands(capability: int, monkeypatch: pytest.MonkeyPatch, triton_backend: Backend) -> None:
    """Bytes as they are in memory are packed as 0 and 1, for warp-specialised kernels where they run."""
    family = "gett " if capability == 80 or triton_backend.interpreted else "ws."
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 0)
    monkeypatch.setattr(counting, "KEPT", 1 << 10)
    shapes = [(512, 512), (512, 512)] if family == "ws." else [(33, 20), (20, 40)]
    a, b = (bytes_of(shape, seed, triton_backend.device) for seed, shape in enumerate(shapes))
    plan, contraction, target = described("mk,kn->mn", a, b, algebra="or_and")
    target = replace(target, capability=capability)
    expected = reference.contract("mk,kn->mn", a, b, algebra="or_and")
    found = map(str, schedules := counting.schedules(contraction, target).schedules)
    at = next(at for at, text in enumerate(found) if "; ttgt A as" in text and f"; {family}" in text)
    d = poisoned(plan.shape, torch.bool, device=a.device)
    counting.build(contraction, schedules[at], target)(a, b, None, d.tensor, 1.0, 1.0)  # type: ignore[arg-type]
    d.check_guards()
    assert torch.equal(d.tensor, expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_integers_of_eight_bits(dtype: torch.dtype, triton_backend: Backend) -> None:
    """A value is true where it is not zero: of two sums of products of the values themselves one would be zero."""
    a, b = (bytes_of((16, 40), seed, triton_backend.device).view(dtype) for seed in (3, 4))
    check("mk,nk->mn", a, b, algebra="or_and", out_dtype=torch.int32)
    check("mk,nk->mn", a, b, algebra="or_and", out_dtype=torch.int64, accumulate=torch.int64)


@pytest.mark.parametrize("algebra", ["or_and", "gf2"])
def test_functions_operands_and_results(algebra: str, triton_backend: Backend) -> None:
    device = triton_backend.device
    a, b, c = (bytes_of((21, 21), seed, device) for seed in (5, 6, 7))
    gate = bytes_of((21,), 8, device)
    options: dict[str, Any] = {
        "algebra": algebra, "a_fn": lambda x, gate, k: (x ^ gate) & (k != 3), "b_fn": torch.logical_not,
        "epilogue": lambda found, m: (found & (m > 1), ~found), "operands": {"gate": ("k", gate)},
        "indices": {"k": "k", "m": "m"},
    }  # fmt: skip
    with_c = options | {"c_fn": torch.logical_not}
    plan, *_ = described("mk,kn->nm", a, b, **options)
    named = [gate if each.kind == "operand" else None for each in plan.contraction.aux if each.kind != "output"]
    check("mk,kn->nm", a, b, named=named, **options)
    check("mk,kn->nm", a, b, c, named=named, **with_c)
    check("mk,kn->nm", a, b, c, algebra=algebra)


def test_c_of_integers(triton_backend: Backend) -> None:
    """A negative value of C would take from the count what would make it zero."""
    a, b = (torch.ones(16, 3, dtype=torch.int8, device=triton_backend.device) for _ in range(2))
    c = torch.full((16, 16), -3, dtype=torch.int32, device=triton_backend.device)
    a[1], c[1, 3] = 0, 0
    check("mk,nk->mn", a, b, c, algebra="or_and", out_dtype=torch.int32)


def test_what_it_is_not_for(triton_backend: Backend) -> None:
    x = torch.ones(16, 16, device=triton_backend.device)
    for dtype, options, words in (
        (torch.float32, {"algebra": "or_and"}, "would be cut before they are seen"),
        (torch.int32, {"algebra": "or_and"}, "would be cut before they are seen"),
        (torch.int32, {"algebra": "gf2"}, "only sums of truth values"),
        (torch.float32, {}, "only sums of truth values"),
    ):
        _, contraction, target = described("mk,nk->mn", x.to(dtype), x.to(dtype), **options)
        assert words in str(counting.supports(contraction, target))
    truth, wide = x.bool(), {"accumulate": torch.int64, "out_dtype": torch.int64}
    _, contraction, target = described("mk,nk->mn", truth, truth, x.long(), algebra="boolean", **wide)
    assert "C's values of int64" in str(counting.supports(contraction, target))
    _, contraction, target = described("bmk,bk->bm", truth.repeat(2, 1, 1), truth[:2], algebra="or_and")
    assert "nothing for a matrix instruction to share" in str(counting.supports(contraction, target))
    _, contraction, target = described("mk,nk->mn", truth, truth, algebra=by_another_name)
    assert counting.supports(contraction, target) is None
    longer = tuple(mode._replace(extent=2**31 - 1) if mode.role is Role.K else mode for mode in contraction.modes)
    assert "may be too many for int32" in str(counting.supports(replace(contraction, modes=longer), target))


@pytest.mark.parametrize("target", [H200, A100], ids=["sm_90", "sm_80"])
def test_large_products_are_counted(target: Target) -> None:
    """The model finds matrix units ahead of an instruction for each pair; without workspace they are, too."""
    x = torch.empty(4096, 4096, dtype=torch.bool, device="meta")
    contraction = weft.plan("ik,kj->ij", x, x, algebra="or_and", backend="reference").contraction
    found = choose(contraction, "triton", target)
    direct = next(each for each in found.ranked if each.schedule.family == "semiring")
    assert found.best.schedule.family == "counting"
    assert str(found.best.schedule).startswith("counting pairs; ttgt ")
    assert 10 * found.best.seconds < direct.seconds
    assert str(choose(contraction, "triton", target, 0).best.schedule).startswith("counting pairs; gett ")


def test_small_ones_stay_where_they_are() -> None:
    for equation, *shapes in (("bmk,bkn->bmn", (10000, 4, 4), (10000, 4, 4)), ("mk,k->m", (4096, 4096), (4096,))):
        a, b = (torch.empty(shape, dtype=torch.bool, device="meta") for shape in shapes)
        contraction = weft.plan(equation, a, b, algebra="or_and", backend="reference").contraction
        assert choose(contraction, "triton", H200).best.schedule.family != "counting"
