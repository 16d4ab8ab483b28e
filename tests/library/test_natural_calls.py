"""Calls of torch that take operands as they are: shapes alone do not tell rows from columns where extents are equal."""

from __future__ import annotations

import pytest
import torch

import weft

PRODUCTS = (
    "mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn", "mk,kn->nm", "mk,nk->nm",
    "bmk,kn->bmn", "bmk,nk->bmn", "bkm,kn->bmn", "bmk,kn->bnm", "bmk,kn->mbn", "mk,bkn->bmn",
    "mk,k->m", "km,k->m", "bmk,k->bm", "bmk,k->mb", "bmk,m->bk", "k,kn->n", "k,nk->n", "k,k->",
)  # fmt: skip
SUMS = (
    "bsd->bs", "bsd->sb", "bsd->bd", "bsd->db", "bsd->sd", "bsd->b", "bsd->s", "bsd->d", "bsd->", "bbd->b", "bbd->bd",
)  # fmt: skip


def operands(terms: str, extent: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(terms) + extent)
    return [torch.randn([extent] * len(term), generator=generator) for term in terms.split(",")]


@pytest.mark.parametrize("extent", [0, 1, 4, 7])
@pytest.mark.parametrize("equation", PRODUCTS)
def test_products(equation: str, extent: int) -> None:
    a, b = operands(equation.partition("->")[0], extent)
    expected = torch.einsum(equation, a.double(), b.double())
    out = torch.full(expected.shape, torch.nan)
    for _ in range(3):
        found = weft.contract(equation, a, b, specialize="library")
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        assert found.is_contiguous()
        assert found.shape == expected.shape
        assert torch.equal(weft.contract(equation, a, b, out=out, specialize="library"), found)


@pytest.mark.parametrize("extent", [0, 1, 4])
@pytest.mark.parametrize("equation", [each for each in PRODUCTS if "n" in each.partition("->")[2]])
def test_a_bias(equation: str, extent: int) -> None:
    """Along the last mode of D, and along the one before."""
    a, b = operands(equation.partition("->")[0], extent)
    output = equation.partition("->")[2]
    for mode in output[-2:]:
        bias = torch.arange(extent, dtype=torch.float32)
        whole = bias.double().reshape([extent if label == mode else 1 for label in output])
        for function in (lambda x, bias: x + bias, lambda x, bias: torch.relu(bias + x)):
            expected = function(torch.einsum(equation, a.double(), b.double()), whole)
            for _ in range(3):
                found = weft.contract(
                    equation, a, b, epilogue=function, operands={"bias": (mode, bias)}, specialize="library"
                )
                torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
                assert found.is_contiguous()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("extent", [0, 1, 4])
@pytest.mark.parametrize("equation", SUMS)
def test_sums_of_one_operand(equation: str, extent: int, turned: bool) -> None:
    (x,) = operands(equation.partition("->")[0], extent)
    x = x.transpose(0, 2) if turned else x
    expected = torch.einsum(equation, x.double())
    out = torch.full(expected.shape, torch.nan)
    for _ in range(3):
        found = weft.einsum(equation, x)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        assert found.is_contiguous()
        assert torch.equal(weft.einsum(equation, x, out=out), found)
