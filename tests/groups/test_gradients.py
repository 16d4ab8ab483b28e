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


KEYS = {
    "a": (((0, 0), (2, 3)), ((1, 1), (1, 2)), ((1, 0), (1, 3)), ((2, 2), (2, 2))),
    "b": (((0, 5), (3, 2)), ((1, 5), (2, 2)), ((0, 6), (3, 1)), ((3, 5), (1, 2))),
}


def blocked(name: str, tensors: list[torch.Tensor]) -> weft.blocks.BlockTensor:
    return weft.blocks.BlockTensor(dict(zip((key for key, _ in KEYS[name]), tensors, strict=True)))


def block_leaves(dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    given = leaves(*(shape for name in "ab" for _, shape in KEYS[name]), dtype=dtype)
    return given[:4], given[4:]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(
    ("equation", "functions"),
    [
        ("ab,bc->ca", {}),
        ("ab,bc->c", {}),  # a mode of one operand alone
        ("ab,bc->ac", {"a_fn": torch.tanh, "epilogue": lambda x: x * x}),
        ("ab,bc->ac", {"b_fn": torch.tanh, "accumulate": "wide"}),
    ],
)
def test_blocks_have_gradients(equation: str, functions: dict[str, Any], dtype: torch.dtype) -> None:
    a, b = block_leaves(dtype)
    keywords = {name: dtype if value == "wide" else value for name, value in functions.items()}
    found = weft.blocks.contract(equation, blocked("a", a), blocked("b", b), **keywords)
    x, y = blocked("a", a), blocked("b", b)
    every = [{0: 2, 1: 1, 2: 2}, {0: 3, 1: 2, 2: 2, 3: 1}, {5: 2, 6: 1}]
    left = functions.get("a_fn", lambda value: value)(x.to_dense(every[:2]))
    right = functions.get("b_fn", lambda value: value)(y.to_dense(every[1:]))
    dense = functions.get("epilogue", lambda value: value)(torch.einsum(equation, left, right))
    given = [*a[:3], *b]
    weights = torch.arange(1.0, dense.numel() + 1, dtype=torch.float64).view(dense.shape)
    sectors = [every["abc".index(label)] for label in equation.partition("->")[2]]
    same_gradients((found.to_dense(sectors) * weights).abs().square().sum(),
                   (dense * weights).abs().square().sum(), given)  # fmt: skip


def test_transforms_of_blocks() -> None:
    a, b = block_leaves()

    def energy(*tensors: torch.Tensor) -> torch.Tensor:
        return weft.blocks.contract("ab,bc->ac", blocked("a", [*tensors[:4]]), blocked("b", [*tensors[4:]])).buffer

    assert torch.autograd.gradgradcheck(energy, (*a, *b))
    given = tuple(one.detach() for one in (*a, *b))
    tangents = tuple(torch.randn_like(one) for one in given)
    _, found = torch.func.jvp(energy, given, tangents)
    _, pullback = torch.func.vjp(energy, *given)
    seed = torch.randn_like(found)
    right = sum((one * other).sum() for one, other in zip(pullback(seed), tangents, strict=True))
    torch.testing.assert_close((found * seed).sum(), right)
    rows = torch.stack([given[0], given[0] * 2])
    per_row = torch.func.vmap(torch.func.grad(lambda x: energy(x, *given[1:]).square().sum()))(rows)
    for row, one in zip(rows, per_row, strict=True):
        torch.testing.assert_close(one, torch.func.grad(lambda x: energy(x, *given[1:]).square().sum())(row))


def test_a_gradient_of_blocks_that_is_expanded() -> None:
    a, b = block_leaves()
    weft.blocks.contract("ab,bc->ac", blocked("a", a), blocked("b", b)).buffer.sum().backward()
    torch.testing.assert_close(a[1].grad, b[1].sum(1).expand(1, 2))
