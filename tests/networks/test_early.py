"""Three operands and more of an algebra that may, or may not, be reduced before all of them have met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import weft
from weft.testing import check_algebra

EQUATION, SHAPES = "ik,jk,jc->ic", ((3, 4), (5, 4), (5, 6))


def mine(combine: Callable[..., Any], reduce: Callable[..., Any], identity: Any, name: str) -> weft.Algebra:
    return weft.Algebra(combine, reduce, identity, name)


NOT = [
    mine(lambda s, t: (s - t) ** 2, torch.add, 0.0, "squares"),
    mine(lambda s, t: (s - t).abs(), torch.maximum, "lowest", "chebyshev"),
    mine(lambda s, t: s + t, torch.add, 0.0, "sums"),
    mine(lambda s, t: torch.sin(s * t) + s, torch.add, 0.0, "sines"),
    mine(torch.mul, torch.logaddexp, "lowest", "log of products"),
]
MAY = [
    mine(torch.mul, torch.add, 0.0, "products"),
    mine(torch.sub, torch.maximum, "lowest", "differences"),
    mine(lambda s, t: s * torch.exp(t), torch.add, 0.0, "weights"),
    mine(torch.add, torch.logaddexp, "lowest", "log"),
]


def operands(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=made, dtype=dtype) for shape in SHAPES]


def formula(algebra: weft.Algebra, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """All operands combined from left to right, then reduced element by element."""
    whole = algebra.combine(algebra.combine(x[:, None, :, None], y[None, :, :, None]), z[None, :, None, :])
    parts = whole.flatten(1, 2).unbind(1)
    found = parts[0]
    for part in parts[1:]:
        found = algebra.reduce(found, part)
    return found


@pytest.mark.parametrize("algebra", [*NOT, *MAY], ids=lambda algebra: algebra.name)
def test_the_result_is_that_of_the_formula(algebra: weft.Algebra) -> None:
    given = operands()
    expected = formula(algebra, *given)
    torch.testing.assert_close(weft.einsum(EQUATION, *given, algebra=algebra), expected)
    net = weft.network(EQUATION, *given, algebra=algebra)
    torch.testing.assert_close(net(*given), expected)
    torch.testing.assert_close(net(*given), expected)  # a known call
    fixed = weft.network(EQUATION, *given, algebra=algebra, constants=(0, 1))
    torch.testing.assert_close(fixed(given[2]), expected)
    sliced = weft.network(EQUATION, *given, algebra=algebra, slices="k")
    torch.testing.assert_close(sliced(*given), expected)


@pytest.mark.parametrize("algebra", NOT[:3], ids=lambda algebra: algebra.name)
def test_gradients_are_those_of_the_formula(algebra: weft.Algebra) -> None:
    given = [each.requires_grad_() for each in operands()]
    found = torch.autograd.grad(weft.einsum(EQUATION, *given, algebra=algebra).sum(), given)
    torch.testing.assert_close(found, torch.autograd.grad(formula(algebra, *given).sum(), given))


@pytest.mark.parametrize("algebra", [NOT[0], MAY[1]], ids=lambda algebra: algebra.name)
def test_compiled_code_reduces_as_late(algebra: weft.Algebra) -> None:
    compiled = torch.compile(lambda *given: weft.einsum(EQUATION, *given, algebra=algebra), backend="eager")
    given = operands()
    torch.testing.assert_close(compiled(*given), formula(algebra, *given))


def test_four_operands_with_a_limit_of_memory() -> None:
    made = torch.Generator().manual_seed(1)
    a, b, c, d = (torch.randn(4, 4, generator=made, dtype=torch.float64) for _ in range(4))
    whole = a[:, :, None, None, None]
    for at, each in enumerate((b, c, d), 1):
        whole = (whole - each[(None,) * at + (...,) + (None,) * (3 - at)]) ** 2
    net = weft.network("ab,bc,cd,de->ae", a, b, c, d, algebra=NOT[0], memory_limit=2000)
    assert net.plan.tree.slices > 1
    torch.testing.assert_close(net(a, b, c, d), whole.sum((1, 2, 3)))


@pytest.mark.parametrize("algebra", NOT, ids=lambda algebra: algebra.name)
def test_the_law_that_fails_is_told(algebra: weft.Algebra) -> None:
    told = f"combine of {algebra.name} does not distribute over reduce: for p="
    assert told in weft.network(EQUATION, *SHAPES, algebra=algebra).explain()
    with pytest.raises(AssertionError, match="does not distribute"):
        check_algebra(algebra, operands=3)
    with pytest.raises(weft.UnsupportedError, match="functions of intermediates"):
        weft.network(EQUATION, *SHAPES, algebra=algebra, functions={3: torch.sin})


@pytest.mark.parametrize("algebra", MAY, ids=lambda algebra: algebra.name)
def test_labels_go_early_where_they_may(algebra: weft.Algebra) -> None:
    net = weft.network(EQUATION, *SHAPES, algebra=algebra)
    assert "distribute" not in net.explain()
    assert [step["result_bytes"] for step in net.report()["steps"]] == [4 * 3 * 5, 4 * 3 * 6]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", [*(each for each in weft.algebra.NAMED if each != "max_times"), "plus_times_mod"])
def test_ready_algebras_distribute(name: str, dtype: torch.dtype) -> None:
    algebra = weft.algebra.plus_times_mod(7) if name == "plus_times_mod" else weft.algebra.NAMED[name]
    if algebra.requires is not None and algebra.requires(dtype) is not None:
        pytest.skip("no algebra of this type")
    check_algebra(algebra, dtype, operands=3)


MAX_TIMES = ["max_times", mine(torch.mul, torch.maximum, "lowest", "my max_times")]


@pytest.mark.parametrize("algebra", MAX_TIMES, ids=["named", "own"])
def test_the_largest_of_products_is_of_values_that_are_not_negative(algebra: Any) -> None:
    given = [each.abs() for each in operands()]
    expected = formula(weft.algebra.find(algebra), *given)
    net = weft.network(EQUATION, *given, algebra=algebra)
    for call in (net, lambda *each: weft.einsum(EQUATION, *each, algebra=algebra)):
        for _ in range(2):
            torch.testing.assert_close(call(*given), expected)
        with pytest.raises(weft.UnsupportedError, match="operand 1 has negative values"):
            call(given[0], -given[1], given[2])
    with pytest.raises(weft.UnsupportedError, match="operand 1 has negative values"):
        weft.network(EQUATION, given[0], -given[1], given[2], algebra=algebra, constants=(1,))
    with pytest.raises(weft.UnsupportedError, match="operand 0 has negative values"):
        weft.einsum(EQUATION, -given[0].requires_grad_(), given[1], given[2], algebra=algebra)


@triton.jit
def _product(x, y):  # type: ignore[no-untyped-def]
    return x * y


@triton.jit
def _larger(x, y):  # type: ignore[no-untyped-def]
    return tl.maximum(x, y)


def test_what_cannot_be_tried_is_reduced_late() -> None:
    assert mine(_product, _larger, "lowest", "in Triton").early(torch.float32).never
