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


def test_plans_have_gradients() -> None:
    given, others = leaves((2, 3), (3, 4), (5, 1), (1, 2)), leaves((2, 3), (3, 4), (5, 1), (1, 2))
    plan = weft.plan_grouped("mk,kn->nm", [(given[0], given[1]), (given[2], given[3])])
    for a, b, c, d in (given, others):
        found = plan([(a, b), (c, d)])
        same_gradients(sum(x.square().sum() for x in found), sum((x @ y).square().sum() for x, y in ((a, b), (c, d))),
                       [a, b, c, d])  # fmt: skip
    with torch.no_grad():
        assert not plan()[0].requires_grad
    assert plan()[1].requires_grad
    plain = plan([(x.detach(), y.detach()) for x, y in ((given[0], given[1]), (given[2], given[3]))])
    assert not plain[0].requires_grad


def test_second_derivatives_and_tangents_of_groups() -> None:
    given = leaves((2, 3), (3, 2), (1, 3), (3, 1))

    def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.reshape(-1) for x in weft.grouped("mk,kn->mn", [(a, b), (c, d), (a, d)])])

    assert torch.autograd.gradgradcheck(product, given)
    directions = [torch.randn_like(one) for one in given]
    found = torch.func.jvp(product, tuple(given), tuple(directions))
    right = torch.func.jvp(
        lambda a, b, c, d: torch.cat([(x @ y).reshape(-1) for x, y in ((a, b), (c, d), (a, d))]),
        tuple(given), tuple(directions),
    )  # fmt: skip
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("functions", [{}, {"epilogue": torch.tanh}])
@pytest.mark.parametrize("dims", [(0, 0), (1, None), (None, 2)])
def test_vmap_adds_a_batch_mode(functions: dict[str, Any], dims: tuple[int | None, int | None]) -> None:
    a, b = torch.randn(4, 4, 4, dtype=torch.float64), torch.randn(4, 4, 4, dtype=torch.float64)
    x, y = (one if dim is not None else one[0] for one, dim in zip((a, b), dims, strict=True))
    left, right = torch.randn(2, 4, dtype=torch.float64), torch.randn(4, 1, dtype=torch.float64)
    end = functions.get("epilogue", lambda value: value)

    def ours(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(weft.grouped("mk,kn->mn", [(x, y), (left, y), (x, right)], **functions))

    def theirs(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(end(one @ other) for one, other in ((x, y), (left, y), (x, right)))

    torch.testing.assert_close(torch.func.vmap(ours, dims)(x, y), torch.func.vmap(theirs, dims)(x, y))


def test_vmap_of_a_gradient_of_a_plan() -> None:
    a, b, rows = (torch.randn(s, dtype=torch.float64) for s in ((2, 3), (3, 2), (5, 2, 3)))
    plan = weft.plan_grouped("mk,kn->mn", [(a, b), (a, b)])

    def energy(x: torch.Tensor) -> torch.Tensor:
        first, second = plan([(x, b), (a, b)])
        return first.square().sum() + second.sum()

    found = torch.func.vmap(torch.func.grad(energy))(rows)
    torch.testing.assert_close(found, 2 * rows @ b @ b.T)
    with pytest.raises(weft.ShapeError, match="a of pair 0 has shape"):
        torch.func.vmap(energy)(rows[:, :1])


def test_what_has_no_gradient_says_so() -> None:
    a, b = leaves((2, 3), (3, 2))
    out = [torch.empty(2, 2, dtype=torch.float64)]
    with pytest.raises(weft.UnsupportedError, match="leave out out"):
        weft.grouped("mk,kn->mn", [(a, b)], out=out)
    with pytest.raises(weft.UnsupportedError, match="leave out out"):
        weft.plan_grouped("mk,kn->mn", [(a, b)], out=out)()
    with pytest.raises(weft.UnsupportedError, match="make it outside"):
        torch.func.grad(lambda x: weft.plan_grouped("mk,kn->mn", [(x, b)])()[0].sum())(a)
