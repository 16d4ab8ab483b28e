"""Storage, product, accumulator and result types; exactness; conjugation."""

from __future__ import annotations

import pytest
import torch

import weft
from cpu.problems import Problem, check, operands

EXTENTS = {"b": 3, "m": 9, "n": 7, "k": 17, "l": 4}
EQUATIONS = ["mkl,lnk->nm", "bmk,bkn->bmn", "bm,bn->mbn", "mk,n->mn"]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_floating_types(dtype: torch.dtype, equation: str) -> None:
    a, b = operands(equation, EXTENTS, dtype)
    check(Problem(equation, a, b))


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_small_integers_are_exact(dtype: torch.dtype, equation: str) -> None:
    """Sums of small integers come out the same in any order and any blocks."""
    a, b = operands(equation, EXTENTS, dtype, integers=True)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = torch.einsum(equation, a.to(wide), b.to(wide))
    for schedule, d in Problem(equation, a, b, out_dtype=wide).results():
        assert torch.equal(d, expected), schedule


@pytest.mark.one_of(7)
@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("out_dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: torch.dtype, out_dtype: torch.dtype, equation: str) -> None:
    a, b = operands(equation, EXTENTS, dtype)
    check(Problem(equation, a, b, out_dtype=out_dtype))


@pytest.mark.parametrize("equation", ["mk,kn->mn", "mk,k->m", "k,k->", "bmk,bkn->bmn", "mk,n->mn", "m,n->mn"])
@pytest.mark.parametrize(
    ("dtype", "accumulate"),
    [(torch.int8, torch.int32), (torch.uint8, torch.int32), (torch.int16, torch.int32), (torch.int32, torch.int32),
     (torch.int16, torch.int64), (torch.int64, torch.int64)],
)  # fmt: skip
def test_integer_extremes(dtype: torch.dtype, accumulate: torch.dtype, equation: str) -> None:
    """The largest magnitudes of each type; sums that leave the accumulator wrap around."""
    limits = torch.iinfo(dtype)
    extents = {"b": 3, "m": 5, "n": 6, "k": 300}
    a, b = operands(equation, extents, torch.int64)
    a, b = (torch.where(x % 2 == 0, limits.min, limits.max).to(dtype) for x in (a, b))
    expected = torch.einsum(equation, a.long(), b.long()).to(accumulate)
    problem = Problem(equation, a, b, accumulate=accumulate, out_dtype=accumulate)
    for schedule, d in problem.results():
        assert torch.equal(d, expected), schedule


@pytest.mark.parametrize("equation", [*EQUATIONS, "mk,k->m", "k,k->", "mk,->m"])
@pytest.mark.parametrize(("real", "complex_"), [(torch.float32, torch.complex64), (torch.float64, torch.complex128)])
@pytest.mark.parametrize("real_first", [True, False])
def test_real_times_complex(real: torch.dtype, complex_: torch.dtype, real_first: bool, equation: str) -> None:
    types = (real, complex_) if real_first else (complex_, real)
    a, b = operands(equation, EXTENTS, *types)
    check(Problem(equation, a, b))


def test_real_operand_is_not_promoted() -> None:
    """Infinity times a complex number has no NaN where the real operand is not turned into a complex one."""
    a = torch.tensor([[torch.inf, 1.0]]).repeat(4, 1)
    b = torch.tensor([[1 + 2j], [1 - 1j]], dtype=torch.complex64).repeat(1, 5)
    for _, d in Problem("mk,kn->mn", a, b).results():
        assert torch.equal(d, torch.full((4, 5), complex(torch.inf, torch.inf), dtype=torch.complex64))


@pytest.mark.parametrize("conjugate", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_conjugate_flags(equation: str, conjugate: tuple[bool, bool]) -> None:
    a, b = operands(equation, EXTENTS, torch.complex64)
    check(Problem(equation, a, b, conjugate=conjugate))


@pytest.mark.parametrize("equation", EQUATIONS)
def test_conjugate_and_negative_views(equation: str) -> None:
    """A view that torch reads as conjugate or negative is read so; small integers, so that sums are exact."""
    a, b = operands(equation, EXTENTS, torch.complex64, integers=True)
    negative = a.conj().imag
    assert negative.is_neg()
    for x, y in ((a.conj(), b), (a, b.conj()), (a.conj(), b.conj()), (negative, b.real), (negative, b)):
        expected = torch.einsum(equation, x.to(torch.complex128), y.to(torch.complex128))
        found = weft.contract(equation, x, y, backend="cpu")
        assert torch.equal(found.to(torch.complex128), expected)


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_result_types(dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    a, b = operands("mkl,lnk->nm", EXTENTS, dtype)
    check(Problem("mkl,lnk->nm", a, b, out_dtype=out_dtype))


def test_half_sums_are_rounded_once() -> None:
    """2048 + 1 is lost in fp16: sums are kept in fp32 however many blocks k takes."""
    a = torch.cat((torch.full((4, 1), 2048.0), torch.ones(4, 40)), 1).half()
    b = torch.ones(41, 3, dtype=torch.float16)
    for schedule, d in Problem("mk,kn->mn", a, b).results():
        assert torch.equal(d, torch.full((4, 3), 2088.0, dtype=torch.float16)), schedule


def test_accumulates_in_float64() -> None:
    """1e8 + 1 - 1e8 is 0 in float32; the asked accumulator keeps the 1."""
    a = torch.tensor([[1e8, 1.0, -1e8]]).repeat(5, 1)
    b = torch.ones(3, 4)
    problem = Problem("mk,kn->mn", a, b, accumulate=torch.float64, out_dtype=torch.float64)
    for schedule, d in problem.results():
        assert torch.equal(d, torch.ones(5, 4, dtype=torch.float64)), schedule


@pytest.mark.parametrize("product", [torch.float16, torch.bfloat16])
def test_product_narrower_than_storage(product: torch.dtype) -> None:
    """Values are rounded to the product type before they are multiplied, and not after."""
    a, b = operands("mk,kn->mn", EXTENTS)
    for schedule, d in Problem("mk,kn->mn", a, b, precision=product).results():
        expected = a.to(product).double() @ b.to(product).double()
        assert (d - expected).abs().max() < 1e-5, schedule


def test_product_wider_than_storage() -> None:
    a, b = operands("mk,kn->mn", EXTENTS)
    check(Problem("mk,kn->mn", a, b, precision=torch.float64, out_dtype=torch.float64))


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_shortened_precisions_are_ieee_here(precision: str) -> None:
    a, b = operands("mk,kn->mn", EXTENTS)
    check(Problem("mk,kn->mn", a, b, precision=precision))
