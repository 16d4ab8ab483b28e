"""Derivatives of groups, chains and sums of operators, against torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


def same_gradients(found: torch.Tensor, right: torch.Tensor, given: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, right)
    ours = torch.autograd.grad(found, given)
    for one, other in zip(ours, torch.autograd.grad(right, given), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("equation", "functions", "dtype"),
    [
        ("mk,kn->nm", {}, torch.float64),
        ("mk,kn->nm", {}, torch.complex128),
        ("mk,kn->mn", {"epilogue": torch.tanh}, torch.float64),
        ("mk,kn->n", {}, torch.float64),
    ],
)
def test_groups(equation: str, functions: dict[str, Any], dtype: torch.dtype) -> None:
    given = leaves((2, 3), (3, 4), (5, 1), (1, 2), dtype=dtype)
    pairs = [(given[0], given[1]), (given[2], given[3])]
    found = weft.grouped(equation, pairs, **functions)
    end = functions.get("epilogue", lambda x: x)
    right = [end(torch.einsum(equation, a, b)) for a, b in pairs]
    same_gradients(
        sum((x * x.conj()).real.sum() for x in found), sum((x * x.conj()).real.sum() for x in right), given
    )  # type: ignore[arg-type]


def test_chains_and_sums_of_operators() -> None:
    given = leaves((2, 3), (4, 3, 5), (5, 6))
    found = weft.chain("pq,bqc,cr->bpr", *given)
    same_gradients(found.square().sum(), torch.einsum("pq,bqc,cr->bpr", *given).square().sum(), given)
    l, o, r, x = leaves((3, 3), (2, 2), (4, 4), (3, 2, 4))
    found = weft.operator_sum([(l, o, r), (None, o, None), (None, None, None), (l, None, r)], x)
    right = torch.einsum("Ll,Ss,Rr,lsr->LSR", l, o, r, x) + torch.einsum("Ss,lsr->lSr", o, x) + x
    right = right + torch.einsum("Ll,Rr,lsr->LsR", l, r, x)
    same_gradients(found.square().sum(), right.square().sum(), [l, o, r, x])


def test_where_there_are_none() -> None:
    a, b = leaves((2, 3), (3, 2))
    with pytest.raises(weft.UnsupportedError, match="requires a gradient"):
        weft.plan_grouped("mk,kn->mn", [(a, b)])
    with pytest.raises(weft.UnsupportedError, match="leave out out"):
        weft.grouped("mk,kn->mn", [(a, b)], out=[torch.empty(2, 2, dtype=torch.float64)])
    with pytest.raises(weft.UnsupportedError, match="requires a gradient"):
        weft.blocks.BlockTensor({(0, 0): a})
