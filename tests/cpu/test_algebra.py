"""Other algebras in every way at the edges of blocks, and by way of products of other numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from cpu.extended import Extended, check_close, check_exact
from weft.algebra import NAMED, plus_times_mod
from weft.cpu.gett.forms import EXACT, matrix_form, ready_pair
from weft.library import algebras
from weft.testing import random_operand

EXTENTS = {"b": 3, "m": 9, "p": 2, "n": 7, "k": 11, "l": 3, "o": 2}
EQUATIONS = ["mk,kn->nm", "bmpk,bkn->bmpn", "bmkl,bkno->nbm", "mk,k->m", "k,k->", "bk,bk->b", "m,n->nm", "mml,mn->mn"]
# A recorded combine beside a recorded reduce, a known one beside a recorded one, and the other way round.
OWN = {
    "absolute": weft.Algebra(lambda x, y: (x - y).abs(), torch.maximum, 0, "chebyshev"),
    "recorded reduce": weft.Algebra(torch.add, lambda p, q: torch.where(p > q, p, q), -(10**9), "longest"),
    "both": weft.Algebra(lambda x, y: 2 * x + y, lambda p, q: torch.where(p < q, p, q), 10**9, "both"),
    "left": weft.Algebra(lambda x, y: x, torch.minimum, "highest", "left"),
    "sums": weft.Algebra(torch.mul, torch.add, 0, "sums"),
}


def operands(equation: str, dtype: torch.dtype, layout: str = "contiguous") -> tuple[torch.Tensor, torch.Tensor]:
    terms = equation.split("->")[0].split(",")
    whole = dtype is not torch.bool
    shapes = [tuple(EXTENTS[mode] for mode in term) for term in terms]
    a, b = (random_operand(shape, dtype, s, integers=whole, layout=layout) for s, shape in enumerate(shapes))
    return a, b


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of pairs so small that every product takes many."""
    monkeypatch.setitem(algebras.TABLE, "cpu", 32)


@pytest.mark.one_of(5)
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("algebra", ["max_plus", "min_max", "max_min", "or_and", *OWN])
def test_every_schedule(equation: str, algebra: str) -> None:
    a, b = operands(equation, torch.float32)
    check_exact(Extended(equation, a, b, options={"algebra": OWN.get(algebra, algebra)}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("algebra", ["min_max", "max_min", "or_and", "gf2", "mod 7"])
def test_types(dtype: torch.dtype, algebra: str) -> None:
    found = plus_times_mod(7) if algebra == "mod 7" else NAMED[algebra]
    whole = not dtype.is_floating_point
    if (algebra in ("gf2", "mod 7") and not whole) or (algebra == "mod 7" and dtype is torch.bool):
        with pytest.raises(weft.DTypeError):
            weft.contract("mk,kn->mn", *operands("mk,kn->mn", dtype), algebra=found)
        return
    a, b = operands("bmpk,bkn->bmpn", dtype, "strided")
    check_exact(Extended("bmpk,bkn->bmpn", a, b, out_layout="permuted", options={"algebra": found}))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("equation", ["mk,kn->nm", "bmkl,bkno->nbm"])
def test_logarithms(equation: str) -> None:
    a, b = (each * 40 for each in operands(equation, torch.float64))
    a[1] = b[..., 0] = -math.inf
    check_close(Extended(equation, a, b, options={"algebra": "log"}), 1e-13)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("algebra", ["max_plus", "or_and", "sums"])
def test_with_every_hook(algebra: str) -> None:
    c = random_operand((7, 9), torch.float32, 5, integers=True)
    options: dict[str, Any] = {
        "algebra": OWN.get(algebra, algebra), "a_fn": lambda x, k: x + k, "b_fn": torch.neg, "c_fn": torch.abs,
        "epilogue": lambda x, m: (x - m, x), "indices": {"k": "k", "m": "m"},
    }  # fmt: skip
    check_exact(Extended("mk,kn->nm", *operands("mk,kn->nm", torch.float32), c, options=options))


@pytest.mark.parametrize("shapes", [((9, 0), (0, 7)), ((0, 5), (5, 7)), ((9, 5), (5, 0))])
@pytest.mark.parametrize("algebra", ["max_plus", "or_and", "both"])
def test_empty_extents(shapes: tuple[tuple[int, int], tuple[int, int]], algebra: str) -> None:
    a, b = (torch.ones(shape) for shape in shapes)
    d = weft.contract("mk,kn->mn", a, b, algebra=OWN.get(algebra, algebra), backend="cpu")
    assert torch.equal(d, weft.reference.contract("mk,kn->mn", a, b, algebra=OWN.get(algebra, algebra)).float())


def test_of_modes_that_both_broadcast() -> None:
    """Each pair counts as often as the mode is long: exclusive or tells odd from even."""
    a, b = torch.tensor([[5], [6]]), torch.tensor([[7], [12]])
    for length, expected in ((3, a & b.T), (4, 0 * a * b.T)):
        d = weft.contract("mr,nr->mn", a.expand(2, length), b.expand(2, length), algebra="gf2", backend="cpu")
        assert torch.equal(d, expected)


def test_real_and_complex() -> None:
    own = weft.Algebra(lambda x, y: x * y + 1, torch.add, 0, "affine")
    a, b = operands("mk,kn->nm", torch.complex64)
    for x, y in ((a, b.real.clone()), (a.real.clone(), b), (a, b)):
        check_exact(Extended("mk,kn->nm", x, y, options={"algebra": own}))
    conjugate = weft.contract("mk,kn->nm", a.conj(), b, algebra=own, backend="cpu")
    assert torch.equal(conjugate, weft.reference.contract("mk,kn->nm", a.conj(), b, algebra=own).to(torch.complex64))


def test_complex_logarithms() -> None:
    own = weft.Algebra(torch.add, torch.logaddexp, -math.inf, "complex log")
    a, b = operands("mk,kn->nm", torch.complex64)
    a, b = a * 0.1, b * 0.1  # far from where a sum of exponentials vanishes
    d = weft.contract("mk,kn->nm", a, b, algebra=own, backend="cpu")
    assert torch.allclose(d, (a.exp() @ b.exp()).log().T, rtol=1e-5)


def test_not_a_number_spreads() -> None:
    a, b = torch.zeros(3, 50), torch.zeros(50, 40)
    a[1, 20] = math.nan
    for name in ("max_plus", "min_plus", "log"):
        d = weft.contract("mk,kn->mn", a, b, algebra=name, backend="cpu")
        assert d.isnan().any(1).tolist() == [False, True, False]
    # Not zero, hence true.
    assert weft.contract("mk,kn->mn", a, b + 1, algebra="or_and", backend="cpu").tolist() == [
        [0.0] * 40, [1.0] * 40, [0.0] * 40,
    ]  # fmt: skip


class TestRecognition:
    def test_is_by_what_is_computed(self) -> None:
        own = weft.Algebra(lambda p, q: p.logical_and(q), lambda p, q: torch.logical_or(p, q), 0, "mine")
        assert matrix_form(own.traced(torch.float32), torch.float32) is not None
        longest = weft.Algebra(lambda x, y: y + x, lambda p, q: torch.maximum(p, q), "lowest", "mine")
        assert ready_pair(longest.traced(torch.float32), torch.float32) in (None, ("add", "max"))
        named = weft.Algebra(torch.mul, torch.maximum, 0, "or_and")
        assert matrix_form(named.traced(torch.float32), torch.float32) is None
        wrong = weft.Algebra(lambda x, y: x * y % 8, lambda x, y: (x + y) % 8, 0, "plus_times_mod(7)")
        assert matrix_form(wrong.traced(torch.int32), torch.int32) is None

    @pytest.mark.parametrize("p", [2, 7, 46341, 10_000_019, 998244353, 3037000500])
    def test_of_a_modulus(self, p: int) -> None:
        """Sums of a chunk are integers that float64 has, whatever the factors."""
        form = matrix_form(plus_times_mod(p).traced(torch.int64), torch.int64)
        assert form is not None
        values = torch.tensor([0, 1, -1, p - 1, p // 2, p // 2 + 1, -p, 2**63 - 1, -(2**63), 123456789012345678])
        products = torch.zeros(len(values))
        for part in range(form.parts):
            parts = (torch.full_like(values, part),) if form.parts > 1 else ()
            x, y = form.a_factor(values, *parts), form.b_factor(values, *parts)
            products = products + (x.abs().max() * y.abs()).double()  # type: ignore[union-attr]
        assert form.chunk * int(products.max()) + p <= EXACT
        assert form.chunk >= 64

    @pytest.mark.parametrize("p", [2, 46341, 10_000_019, 3037000500])
    def test_moduli_are_exact(self, p: int) -> None:
        """At the largest values, across the chunks in which float64 sums stay exact."""
        a = torch.full((3, 300), p - 1, dtype=torch.int64)
        b = torch.arange(300 * 2).reshape(300, 2) - p * 5
        d = weft.contract("mk,kn->mn", a, b, algebra=plus_times_mod(p), backend="cpu")
        expected = [sum((p - 1) * y for y in column) % p for column in b.T.tolist()]
        assert d.tolist() == [expected] * 3


def test_explain_says_what_has_no_code() -> None:
    """An algebra with an operation that the engine lacks runs as torch operations, and the reason is named."""
    own = weft.Algebra(lambda x, y: torch.exp(x) * y, torch.add, 0, "of exponentials")
    a, b = operands("mk,kn->nm", torch.complex64)
    p = weft.plan("mk,kn->nm", a, b, algebra=own, backend="cpu")
    assert p.schedule.family == "library"
    assert "the algebra of exponentials: exp of complex values has no code for the CPU" in str(p.explain())
    assert torch.allclose(p(a, b), (a.exp() @ b).T, rtol=1e-4)


@pytest.mark.parametrize("extent", [1, 2, 3, 7, 8, 13, 64, 100])
@pytest.mark.parametrize("reduce", [torch.add, torch.bitwise_xor])
def test_halving(extent: int, reduce: Callable[..., torch.Tensor]) -> None:
    values = torch.randint(0, 1 << 40, (3, extent, 2), generator=torch.Generator().manual_seed(extent))
    expected = values[:, 0]
    for at in range(1, extent):
        expected = reduce(expected, values[:, at])
    assert torch.equal(algebras.halved(values.transpose(1, 2), reduce), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [4.0, 1000.0])
def test_logarithms_near_and_far(dtype: torch.dtype, spread: float) -> None:
    """Within the bound of the direct form (`weft.oracle.bounds`), over several blocks of k."""
    generator = torch.Generator().manual_seed(1)
    a = (torch.rand(3, 40, 800, generator=generator, dtype=torch.float64) * 4).to(dtype)
    b = (torch.rand(3, 800, 30, generator=generator, dtype=torch.float64) * spread).to(dtype)
    a[1] = a[1] * spread / 4
    a[2, 7], b[2, 5:9, 3], b[0, :, 4] = -math.inf, math.inf, -math.inf
    a[0, 3, 5] = math.nan
    d = weft.contract("bmk,bkn->bnm", a, b, algebra="log", out_dtype=torch.float64, backend="cpu")
    expected = (a.double()[..., None] + b.double()[..., None, :, :]).logsumexp(-2).transpose(1, 2)
    eps = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
    finite = expected.isfinite()
    error, size = (d - expected)[finite].abs(), expected[finite].abs()
    assert (error <= eps * (4 * 800 + 8 * (size + 1))).all()
    # -inf + inf is NaN in the direct form.
    assert torch.equal(d[~finite].isnan(), (expected[~finite].isnan()))
    assert torch.equal(d[~finite].nan_to_num(5, 6, 7), expected[~finite].nan_to_num(5, 6, 7))
