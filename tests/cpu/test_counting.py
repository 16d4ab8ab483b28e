"""Truth values counted by products of bytes on the CPU: values, and where the model takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft.cpu import blas, counting
from weft.cpu.host import multiplies_bytes
from weft.planner.planner import choose
from weft.planner.schedule import Target
from weft.spec import Contraction
from weft.testing import poisoned

CPU = Target("cpu", name="CPU", processors=1)
EQUATIONS = [  # a matrix product as it lies and turned, several modes in turn, a vector, a dot product, a mode twice
    ("mk,kn->mn", (9, 37), (37, 7)), ("km,nk->nm", (37, 9), (7, 37)), ("akb,ckd->acbd", (3, 11, 4), (5, 11, 2)),
    ("mkl,lkn->nm", (6, 5, 7), (7, 5, 9)), ("mk,k->m", (9, 37), (37,)), ("k,k->", (37,), (37,)),
    ("mk,kn->mn", (1, 2), (2, 1)), ("mmk,kn->mn", (5, 5, 6), (6, 3)), ("mk,nk->nm", (33, 20_001), (17, 20_001)),
]  # fmt: skip

needs_bytes = pytest.mark.skipif(not multiplies_bytes(), reason="the host has no products of bytes")


def bytes_of(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    """Truth values of which most are false and the others any other byte."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 256, shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.2)
    return values.to(torch.uint8).view(dtype)


def described(equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> Contraction:
    return weft.plan(equation, a, b, **{"algebra": "or_and", "backend": "reference"} | options).contraction


def counted(equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    """The family's result, over poison."""
    contraction = described(equation, a, b, **options)
    assert counting.supports(contraction, CPU) is None
    (schedule,) = counting.schedules(contraction, CPU).schedules
    d = poisoned(contraction.d.shape, contraction.d.dtype)
    counting.build(contraction, schedule, CPU)(a, b, None, d.tensor, 1, 1)  # type: ignore[arg-type]
    d.check_guards()
    return d.tensor


def pairs(equation: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many are true in both, in float64, which has them all."""
    return torch.einsum(equation, (a.view(torch.uint8) != 0).double(), (b.view(torch.uint8) != 0).double())


@needs_bytes
@pytest.mark.parametrize(("equation", "of_a", "of_b"), EQUATIONS, ids=[f"{e} {a}" for e, a, _ in EQUATIONS])
def test_is_exact(equation: str, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
    a, b = bytes_of(of_a, 1), bytes_of(of_b, 2)
    expected = pairs(equation, a, b)
    assert torch.equal(counted(equation, a, b), expected > 0)
    assert torch.equal(counted(equation, a, b, algebra="gf2"), expected % 2 == 1)
    numbers = counted(equation, a.view(torch.int8), b.view(torch.int8), out_dtype=torch.int32)
    assert torch.equal(numbers, (expected > 0).int())


@needs_bytes
@pytest.mark.parametrize("value", [0, 1, 2, 128, 255])
def test_all_of_one_byte(value: int) -> None:
    """256 pairs are zero in eight bits, and so is 255 * 1 + 1 * 1."""
    a, b = (torch.full((8, 256), byte, dtype=torch.uint8).view(torch.bool) for byte in (value, 1))
    assert counted("mk,nk->mn", a, b).eq(value != 0).all()
    assert not counted("mk,nk->mn", a, b, algebra="gf2").any()
    assert counted("mk,nk->mn", a[:, 1:], b[:, 1:], algebra="gf2").eq(value != 0).all()


@needs_bytes
def test_views_are_read_where_they_lie() -> None:
    whole = bytes_of((40, 60), 3)
    a, b = whole[1:20, 2:50:3], whole.T[5:21, 3:30]
    out = torch.zeros(27, 38, dtype=torch.bool).T[::2]
    weft.contract("mk,kn->mn", a, b, algebra="or_and", backend="cpu", schedule=str(_only(a, b)), out=out)
    assert torch.equal(out, pairs("mk,kn->mn", a.contiguous(), b.contiguous()) > 0)


def _only(a: torch.Tensor, b: torch.Tensor) -> Any:
    return counting.schedules(described("mk,kn->mn", a, b), CPU).schedules[0]


@needs_bytes
def test_is_chosen_by_what_it_costs() -> None:
    for n, family in ((16, "gett"), (1024, "counting")):
        x = torch.empty(n, n, dtype=torch.bool, device="meta")
        assert choose(described("mk,kn->mn", x, x), "cpu", CPU).best.schedule.family == family
    x = bytes_of((400, 400), 4)
    p = weft.plan("mk,kn->mn", x, x, algebra="or_and", backend="cpu")
    assert "counting pairs: torch._int_mm" in str(p.explain())
    assert torch.equal(p(x, x), pairs("mk,kn->mn", x, x) > 0)


def test_what_it_is_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "multiplies_bytes", lambda: True)
    x, stack = bytes_of((8, 8), 5), bytes_of((2, 8, 8), 6)
    for equation, a, b, options, words in (
        ("mk,kn->mn", x, x, {"algebra": "min_max"}, "only sums of truth values"),
        ("mk,kn->mn", x.int(), x.int(), {}, "of bool and of integers of eight bits"),
        ("mk,kn->mn", x, x, {"a_fn": torch.logical_not}, "no functions"),
        ("bmk,bkn->bmn", stack, stack, {}, "one pair of int8 matrices"),
        ("bmk,kn->mn", stack, x, {}, "summed in one operand alone"),
        ("mk,kn->mn", x[:, :0], x[:0], {}, "a mode is empty"),
        ("mk,kn->mn", x[:, :1], x[:1], {}, "nothing is summed"),
    ):
        assert words in str(counting.supports(described(equation, a, b, **options), CPU))  # type: ignore[arg-type]
    assert counting.supports(described("mk,kn->mn", x, x), CPU) is None
    monkeypatch.setattr(counting, "multiplies_bytes", lambda: False)
    assert "VNNI" in str(counting.supports(described("mk,kn->mn", x, x), CPU))


def test_the_product_is_one_that_torch_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "multiplies_bytes", lambda: True)
    for equation, of_a, of_b in EQUATIONS:
        product = counting.product_of(described(equation, bytes_of(of_a, 1), bytes_of(of_b, 2)))
        assert blas.supports(product, CPU) is None, equation
