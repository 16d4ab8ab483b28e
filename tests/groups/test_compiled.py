"""Groups, blocks, chains and sums of operators called in compiled code: the graph breaks around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

A, B, X = torch.randn(3, 3), torch.randn(3, 3), torch.randn(2, 3, 3)
PLAN = weft.plan_grouped("mk,kn->mn", [(A, B), (B, A)])
KEPT = weft.OperatorSum([(A, None, B)])


def of_blocks(a: torch.Tensor) -> torch.Tensor:
    x = weft.blocks.BlockTensor({(0, 0): a, (1, 0): B})
    return weft.blocks.contract("ab,bc->ac", x, x).buffer


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grouped": lambda a: weft.grouped("mk,kn->mn", [(a, B), (B, a * 2)])[1],
    "plan": lambda a: PLAN([(a, B), (B, a * 2)])[1],
    "blocks": of_blocks,
    "chain": lambda a: weft.chain("pq,bqc,cr->bpr", a, X, B),
    "operator_sum": lambda a: weft.operator_sum([(a, None, B)], X.movedim(0, 1)),
    "OperatorSum": lambda a: KEPT(X.movedim(0, 1) + a[:, None]),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_breaks_the_graph_runs(name: str) -> None:
    def step(a: torch.Tensor) -> torch.Tensor:
        return CALLS[name](a + 1).sum() * 2

    compiled = torch.compile(step, backend="eager")
    a = A.clone().requires_grad_()
    torch.testing.assert_close(compiled(a), step(a))
    grads = [torch.autograd.grad(each(a), a)[0] for each in (compiled, step)]
    torch.testing.assert_close(*grads)
    with torch.no_grad():
        torch.testing.assert_close(compiled(a), step(a))
