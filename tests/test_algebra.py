"""Algebras on every backend, against what they mean in plain torch; what is refused is refused for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.algebra import NAMED, plus_times_mod
from weft.api.describe import hypothetical
from weft.testing import check_algebra, random_operand

ON = {"backend": "reference"}

# combine and reduce over the last dimension, as one would write them down.
DIRECT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "max_plus": (torch.add, lambda x: x.amax(-1)),
    "min_plus": (torch.add, lambda x: x.amin(-1)),
    "max_times": (torch.mul, lambda x: x.amax(-1)),
    "min_max": (torch.maximum, lambda x: x.amin(-1)),
    "max_min": (torch.minimum, lambda x: x.amax(-1)),
    "or_and": (torch.logical_and, lambda x: x.any(-1)),
    "log": (torch.add, lambda x: x.logsumexp(-1)),
}


def direct(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of A[m, k] and B[n, k]."""
    combine, reduce = DIRECT[name]
    return reduce(combine(a[:, None], b[None]))


@pytest.mark.parametrize("name", DIRECT)
class TestNamed:
    def test_is_what_it_says(self, name: str, on: dict[str, Any]) -> None:
        a, b = (random_operand(shape, torch.float64, 1) for shape in ((3, 7), (4, 7)))
        d = weft.contract("mk,nk->mn", a, b, algebra=name, **on)
        assert torch.allclose(d, direct(name, a, b).double(), rtol=1e-14, atol=1e-14)

    def test_modes_of_every_class(self, name: str, on: dict[str, Any]) -> None:
        """Batch, diagonal, broadcast, and modes summed in one operand alone."""
        a, b = random_operand((2, 3, 5, 2), torch.float64, 1), random_operand((1, 5, 4, 4, 3), torch.float64, 2)
        d = weft.contract("bmkl,bknno->bnm", a, b, algebra=name, **on)
        diagonal = b.diagonal(0, 2, 3)  # b, k, o, n
        left = a[:, None, :, :, :, None]  # b, ., m, k, l, .
        right = diagonal.permute(0, 3, 1, 2)[:, :, None, :, None]  # b, n, ., k, ., o
        combine, reduce = DIRECT[name]
        assert torch.allclose(d, reduce(combine(left, right).flatten(3)).double(), rtol=1e-13, atol=1e-13)

    def test_empty_reduction_is_the_identity(self, name: str, on: dict[str, Any]) -> None:
        d = weft.contract("mk,kn->mn", torch.ones(2, 0), torch.ones(0, 3), algebra=name, **on)
        identity = {"or_and": 0.0, "min_plus": math.inf, "min_max": math.inf}.get(name, -math.inf)
        assert torch.equal(d, torch.full((2, 3), identity))

    def test_infinities(self, name: str, on: dict[str, Any]) -> None:
        """The identity in A leaves its terms out."""
        a, b = random_operand((3, 7), torch.float64, 1), random_operand((4, 7), torch.float64, 2)
        out = NAMED[name].identity_in(torch.float64)
        if name in ("max_times", "or_and"):
            return  # -inf times a negative number is no identity; or_and has no infinities
        wide = torch.cat([a, torch.full((3, 2), out, dtype=torch.float64)], 1)
        long = torch.cat([b, torch.zeros(4, 2)], 1)
        d = weft.contract("mk,nk->mn", wide, long, algebra=name, **on)
        assert torch.allclose(d, weft.contract("mk,nk->mn", a, b, algebra=name, **on), rtol=1e-14, atol=1e-14)

    def test_addend_is_reduced_with(self, name: str, on: dict[str, Any]) -> None:
        a, b, c = (random_operand(shape, torch.float64, 1) for shape in ((3, 7), (4, 7), (3, 4)))
        d = weft.contract("mk,nk->mn", a, b, c=c, c_fn=torch.neg, algebra=name, epilogue=lambda x: x + 1, **on)
        pairs = torch.stack([direct(name, a, b).double(), -c], -1)
        assert torch.allclose(d, DIRECT[name][1](pairs).double() + 1, rtol=1e-14, atol=1e-14)

    def test_samples(self, name: str) -> None:
        check_algebra(name)
        check_algebra(name, torch.float64, seed=3)

    def test_cut_up(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from weft.oracle import sums

        a, b = (random_operand(shape, torch.float64, 1) for shape in ((3, 7), (4, 7)))
        whole = weft.reference.contract("mk,nk->mn", a, b, algebra=name)
        monkeypatch.setattr(sums, "_PRODUCTS", 8)
        parts = weft.reference.contract("mk,nk->mn", a, b, algebra=name)
        assert torch.allclose(parts, whole, rtol=1e-14, atol=1e-14)


class TestTypes:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_half_precision_is_held_in_float32(self, dtype: torch.dtype, on: dict[str, Any]) -> None:
        cut_off = on["backend"] == "triton" and dtype is torch.bfloat16  # not rounded, by Triton's interpreter
        a, b = (random_operand(shape, dtype, 1, integers=cut_off) for shape in ((3, 7), (4, 7)))
        plan = weft.plan("mk,nk->mn", a, b, algebra="max_plus", **on)
        assert plan.contraction.algebra is not None
        assert plan.contraction.algebra.combine.dtypes == (torch.float32, torch.float32)
        assert torch.equal(plan(a, b), direct("max_plus", a.double(), b.double()).to(dtype))

    @pytest.mark.one_of(7)
    @pytest.mark.parametrize("name", ["max_plus", "min_plus", "max_times", "min_max", "max_min", "or_and"])
    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
    def test_integers(self, name: str, dtype: torch.dtype, on: dict[str, Any]) -> None:
        a, b = random_operand((3, 7), dtype, 1), random_operand((4, 7), dtype, 2)
        d = weft.contract("mk,nk->mn", a, b, algebra=name, out_dtype=torch.int32, **on)
        assert torch.equal(d, direct(name, a.long(), b.long()).int())
        check_algebra(name, torch.int64 if dtype is torch.int64 else torch.int32)

    def test_integers_wrap_around(self, on: dict[str, Any]) -> None:
        """Integers have no infinity: the largest one plus one is the smallest, as in torch."""
        largest = torch.full((1, 1), 2**31 - 1, dtype=torch.int32)
        d = weft.contract("mk,nk->mn", largest, torch.ones(1, 1, dtype=torch.int32), algebra="min_plus", **on)
        assert d.item() == -(2**31)

    def test_empty_reductions_of_integers(self, on: dict[str, Any]) -> None:
        a, b = torch.ones(2, 0, dtype=torch.int32), torch.ones(0, 2, dtype=torch.int32)
        for name, number in (("max_plus", -(2**31)), ("min_plus", 2**31 - 1), ("gf2", 0)):
            assert weft.contract("mk,kn->mn", a, b, algebra=name, **on).unique().tolist() == [number]

    def test_bool(self, on: dict[str, Any]) -> None:
        a, b = random_operand((3, 7), torch.bool, 1), random_operand((4, 7), torch.bool, 2)
        d = weft.contract("mk,nk->mn", a, b, a_fn=torch.logical_not, algebra="or_and", **on)
        assert d.dtype == torch.bool
        assert torch.equal(d, (~a[:, None] & b[None]).any(-1))
        d = weft.contract("mk,nk->mn", a, b, algebra="gf2", **on)
        assert torch.equal(d, ((a[:, None] & b[None]).sum(-1) % 2).bool())
        counted = weft.contract(
            "mk,nk->mn", a, b, algebra="max_plus", accumulate=torch.int32, out_dtype=torch.int32, **on
        )
        assert torch.equal(counted, (a[:, None].int() + b[None].int()).amax(-1))
        check_algebra("or_and", torch.bool)
        check_algebra("min_max", torch.bool)
        with pytest.raises(weft.DTypeError, match="no sum of products"):
            weft.contract("mk,nk->mn", a, b, **on)

    def test_gf2_of_bits(self, on: dict[str, Any]) -> None:
        a, b = (
            torch.randint(0, 2**31, shape, generator=torch.Generator().manual_seed(1)) for shape in ((3, 7), (4, 7))
        )
        d = weft.contract("mk,nk->mn", a, b, algebra="gf2", **on)
        for bit in range(31):
            product = ((a >> bit) & 1) @ ((b >> bit) & 1).T
            assert torch.equal((d >> bit) & 1, product % 2)
        check_algebra("gf2", torch.int32)

    @pytest.mark.parametrize("p", [2, 7, 46341])
    def test_modulus(self, p: int, on: dict[str, Any]) -> None:
        a, b = (torch.randint(-(2**31), 2**31, shape, dtype=torch.int32) for shape in ((3, 70), (4, 70)))
        d = weft.contract("mk,nk->mn", a, b, algebra=plus_times_mod(p), **on)
        expected = [[sum(x * y for x, y in zip(r, s, strict=True)) % p for s in b.tolist()] for r in a.tolist()]
        assert d.tolist() == expected
        check_algebra(plus_times_mod(p), torch.int32)

    def test_complex(self, on: dict[str, Any]) -> None:
        own = weft.Algebra(torch.mul, torch.add, 0, "complex sums")
        a, b = random_operand((3, 7), torch.complex64, 1), random_operand((4, 7), torch.complex64, 2)
        if on["backend"] == "triton":
            with pytest.raises(weft.UnsupportedError, match="complex"):
                weft.contract("mk,nk->mn", a, b.conj(), algebra=own, **on)
        else:
            d = weft.contract("mk,nk->mn", a, b.conj(), algebra=own, **on)
            assert torch.allclose(d, a @ b.mH)
        check_algebra(own, torch.complex64)


class TestIdentity:
    @pytest.mark.keeps
    def test_of_algebras_is_what_they_compute(self, on: dict[str, Any]) -> None:
        def found(algebra: Any) -> weft.Plan:
            return weft.plan("mk,kn->mn", torch.ones(3, 3), torch.ones(3, 3), algebra=algebra, **on)

        own = weft.Algebra(lambda x, y: x + y, lambda p, q: torch.maximum(p, q), -math.inf, "mine")
        assert found(own).contraction == found("max_plus").contraction
        if on.get("backend") != "reference":  # which runs the functions themselves
            assert found(own)._variants is found("max_plus")._variants
        finite = weft.Algebra(torch.add, torch.maximum, -1e30)
        other = weft.Algebra(torch.add, torch.minimum, -math.inf)
        assert len({found(one) for one in (own, finite, other, "plus_times")}) == 4

    def test_plus_times_is_the_default(self, on: dict[str, Any]) -> None:
        plan = weft.plan("mk,kn->mn", torch.ones(3, 3), torch.ones(3, 3), algebra=weft.algebra.plus_times, **on)
        assert plan.contraction.algebra is None
        assert plan(torch.ones(3, 3), torch.ones(3, 3), alpha=2.0)[0, 0] == 6

    @pytest.mark.parametrize(
        ("identity", "dtype", "number"),
        [
            ("lowest", torch.int8, -128), ("highest", torch.int64, 2**63 - 1), ("highest", torch.float16, math.inf),
            ("lowest", torch.bool, False), (0, torch.float32, 0.0), (1.0, torch.int32, 1), (2, torch.complex64, 2 + 0j),
            (lambda dtype: torch.iinfo(dtype).max, torch.int16, 32767),
        ],
    )  # fmt: skip
    def test_fits_the_type(self, identity: Any, dtype: torch.dtype, number: Any) -> None:
        found = weft.Algebra(torch.add, torch.maximum, identity).identity_in(dtype)
        assert (found, type(found)) == (number, type(number))

    @pytest.mark.parametrize(
        ("identity", "dtype"),
        [
            (-math.inf, torch.int32), (0.5, torch.int32), (300, torch.int8), (1j, torch.float32), (2, torch.bool),
            ("lowest", torch.complex64), ("least", torch.float32), (None, torch.float32), (math.nan, torch.int8),
        ],
    )  # fmt: skip
    def test_that_does_not_fit_is_refused(self, identity: Any, dtype: torch.dtype) -> None:
        with pytest.raises(weft.DTypeError):
            weft.Algebra(torch.add, torch.maximum, identity).identity_in(dtype)


ONES = torch.ones(2, 2)
REFUSED: dict[str, tuple[Any, torch.Tensor, dict[str, Any], type[Exception], str]] = {
    "alpha": ("max_plus", ONES, {"alpha": 2.0}, weft.DTypeError, "alpha=2.0 .* max_plus has no such factor"),
    "beta": ("log", ONES, {"c": ONES, "beta": 0.0}, weft.DTypeError, "beta=0.0"),
    "complex order": ("max_plus", ONES * 1j, {}, weft.DTypeError, "max_plus does not work on complex64"),
    "logarithms of integers": ("log", ONES.int(), {}, weft.DTypeError, "floating"),
    "bits of floats": ("gf2", ONES, {}, weft.DTypeError, "gf2 does not work on float32: .*integer"),
    "modulus of floats": (plus_times_mod(5), ONES, {}, weft.DTypeError, "integer"),
    "a large modulus": (plus_times_mod(46343), ONES.int(), {}, weft.DTypeError, "int64"),
    "bool sums": ("max_plus", ONES.bool(), {}, weft.DTypeError, "bool"),
    "tf32": ("max_plus", ONES, {"precision": "tf32"}, weft.DTypeError, "tf32"),
    "int8 without out_dtype": ("max_plus", ONES.to(torch.int8), {}, weft.DTypeError, "out_dtype"),
    "an unknown name": ("max_minus", ONES, {}, weft.UnsupportedError, "'max_minus': did you mean 'max_min'"),
    "no algebra": (torch.add, ONES, {}, weft.UnsupportedError, "a name or a weft.Algebra"),
    "what torch refuses": (
        weft.Algebra(torch.bitwise_and, torch.add, 0), ONES, {}, weft.DTypeError, "does not work on float32",
    ),
    "what cannot be fused": (
        weft.Algebra(lambda x, y: x + y if x > y else x, torch.add, 0, "branching"), ONES, {},
        weft.FunctionError, "combine of the algebra branching: .*torch.where",
    ),
    "two values": (weft.Algebra(lambda x, y: (x, y), torch.add, 0), ONES, {}, weft.FunctionError, "2 values, not one"),
    "one parameter": (weft.Algebra(torch.neg, torch.add, 0), ONES, {}, weft.FunctionError, "combine"),
}  # fmt: skip


@pytest.mark.parametrize(("algebra", "x", "options", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(algebra: Any, x: torch.Tensor, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        weft.contract("mk,kn->mn", x, x, algebra=algebra, **options, **ON)


def test_with_operands_and_several_results(on: dict[str, Any]) -> None:
    a, b, bias = random_operand((5, 7), torch.float64, 1), random_operand((6, 7), torch.float64, 2), torch.ones(7)
    d, twice = weft.contract(
        "mk,nk->mn", a, b, a_fn=lambda x, bias, k: x + bias * k, epilogue=lambda x, m: (x, 2 * x + m),
        operands={"bias": ("k", bias)}, indices={"k": "k", "m": "m"}, algebra="max_plus", **on,
    )  # fmt: skip
    assert torch.equal(d, direct("max_plus", a + torch.arange(7), b))
    assert torch.equal(twice, 2 * d + torch.arange(5)[:, None])


def test_explained(on: dict[str, Any]) -> None:
    plan = weft.plan(
        "mk,kn->mn", torch.ones(4, 5), torch.ones(5, 6), c=torch.ones(4, 6), algebra="max_plus",
        epilogue=lambda x, bias, i: (x + bias, i), operands={"bias": ("n", torch.ones(6))}, indices={"i": "m"}, **on,
    )  # fmt: skip
    text = plan.explain()
    assert "D[mn], output 1 = epilogue(reduce(reduce[k] combine(A[mk], B[kn]), C[mn]), bias, i)" in text
    assert "in the algebra max_plus" in text
    assert "bias, operand along n, float32" in text
    assert "i, coordinate along m, int32" in text
    assert "output 1, a further result, int32" in text


def test_described_without_tensors(on: dict[str, Any]) -> None:
    extents = {"m": 4, "n": 6, "k": 5}
    options: dict[str, Any] = {"epilogue": lambda x, bias, i: x + bias * i, "indices": {"i": "m"}, "algebra": "log"}
    request = hypothetical("mk,kn->mn", extents, operands={"bias": ("n", torch.float16)}, target="sm_90", **options)
    real = weft.plan(
        "mk,kn->mn", torch.ones(4, 5), torch.ones(5, 6), operands={"bias": ("n", torch.ones(6).half())}, **options, **on
    )
    assert request.contraction(None, real.contraction.d) == real.contraction


@pytest.mark.parametrize(
    ("algebra", "words"),
    [
        (weft.Algebra(torch.mul, torch.sub, 0, "difference"), "difference: reduce is not commutative"),
        (weft.Algebra(torch.mul, lambda p, q: (p + q) / 2, 0, "mean"), "mean: reduce is not associative"),
        (weft.Algebra(torch.add, torch.maximum, 0, "clipped"), "clipped: reduce with the identity changes x"),
    ],
)
def test_check_algebra_finds_what_is_wrong(algebra: weft.Algebra, words: str) -> None:
    with pytest.raises(AssertionError, match=f"{words}.* for x="):
        check_algebra(algebra)


def test_check_algebra_of_plus_times_and_its_types() -> None:
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.int32, torch.int64):
        check_algebra("plus_times", dtype)
    with pytest.raises(weft.DTypeError):
        check_algebra("log", torch.int32)


def test_a_combine_may_yield_a_number(on: dict[str, Any]) -> None:
    counting = weft.Algebra(lambda p, q: 1.0, torch.add, 0, "counting")
    assert torch.equal(
        weft.contract("mk,kn->mn", torch.ones(2, 3), torch.ones(3, 2), algebra=counting, **on).cpu(),
        torch.full((2, 2), 3.0),
    )
