"""Factors that are tensors end the graph: their calls are made outside of it, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft

F64 = torch.float64
A, B, C = torch.randn(3, 4, dtype=F64), torch.randn(4, 5, dtype=F64), torch.randn(3, 5, dtype=F64)
PLAN, MOVES = weft.plan("mk,kn->mn", A, B), weft.plan_permute(A, "mk->km")

CALLS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "contract": (
        lambda x, s: weft.contract("mk,kn->mn", x, B, c=C, alpha=s, beta=s, epilogue=torch.tanh),
        lambda x, s: torch.tanh(s * (x @ B) + s * C),
    ),
    "matmul": (lambda x, s: weft.matmul(x, B, alpha=s), lambda x, s: s * (x @ B)),
    "einsum": (lambda x, s: weft.einsum("mk,kn,mn->n", x, B, C, alpha=s), lambda x, s: s * (x @ B * C).sum(0)),
    "plan": (lambda x, s: PLAN(x, B, c=C, beta=s), lambda x, s: x @ B + s * C),
    "permute": (lambda x, s: weft.permute(x, "mk->km", fn=torch.sin, alpha=s), lambda x, s: s * x.sin().T),
    "permutation plan": (lambda x, s: MOVES(x, alpha=s), lambda x, s: s * x.T),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_the_call(name: str) -> None:
    call, expected = CALLS[name]
    given = A.clone().requires_grad_(), torch.tensor(0.5, dtype=F64, requires_grad=True)
    found = torch.compile(lambda x, s: call(2 * x, s).sin(), backend="aot_eager")(*given)
    wanted = expected(2 * given[0], given[1]).sin()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), given), torch.autograd.grad(wanted.sum(), given))
