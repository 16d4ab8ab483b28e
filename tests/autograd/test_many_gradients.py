"""Many gradients in one backward pass: `is_grads_batched`, and `vectorize=True` of torch's jacobian and hessian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.functional import hessian, jacobian

import weft

F64 = torch.float64
A, B = torch.randn(3, 4, dtype=F64), torch.randn(4, 3, dtype=F64)
PLAN = weft.plan("mk,kn->mn", A, B, epilogue=torch.tanh)
NETWORK = weft.network("ab,bc,cd->ad", A, B, A)
LISTS = torch.tensor([0, 1, 3])
SMALL = weft.nn.Linear(4, 3, weight_dtype="int8")
ATTENTION = weft.nn.Attention(4, 2, dtype=F64, score=lambda s: s)


def blocks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first = weft.blocks.BlockTensor({(0, 0): x, (1, 1): torch.ones(4, 1, dtype=F64)})
    second = weft.blocks.BlockTensor({(0, 0): y, (1, 0): torch.ones(1, 3, dtype=F64)})
    return weft.blocks.contract("ab,bc->ac", first, second).buffer


CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "contract": lambda a, b: weft.contract("mk,kn->mn", a, b, a_fn=torch.sin, specialize="now"),
    "plan": lambda a, b: PLAN(a, b, c=a[:, :3]),
    "largest": lambda a, b: weft.contract("mk,kn->mn", a, b, algebra="max_plus", specialize="now"),
    "log": lambda a, b: weft.contract("mk,kn->mn", a, b, algebra="log", specialize="now"),
    "permute": lambda a, b: weft.permute(a, "ab->ba", fn=torch.tanh, specialize="now") * b,
    "network": lambda a, b: NETWORK(a, b, a),
    "group": lambda a, b: weft.grouped("mk,kn->mn", [(a, b), (b, a)], backend="cpu")[0],
    "lists": lambda a, b: weft.contract("bjd,bde->bje", a, torch.stack([b, -b]), ragged={"j": LISTS}),
    "blocks": blocks,
    "cascade": lambda a, b: weft.cascade(
        "qd,kd->qk, qk,ke->qe", a, b.T, b.T, between=lambda s: weft.softmax(s, "k")
    ),
    "attention": lambda a, b: ATTENTION(a) @ b,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_many_gradients_at_once_are_those_one_by_one(name: str) -> None:
    call = CALLS[name]
    torch.testing.assert_close(jacobian(call, (A, B), vectorize=True), jacobian(call, (A, B)))

    def energy(*given: Any) -> torch.Tensor:
        return call(*given).square().sum()

    torch.testing.assert_close(hessian(energy, (A, B), vectorize=True), hessian(energy, (A, B)))


def test_gradients_of_weights_of_eight_bits_and_of_complex_values() -> None:
    x = torch.randn(2, 4)
    torch.testing.assert_close(jacobian(SMALL, x, vectorize=True), jacobian(SMALL, x))
    a, b = (each.to(torch.complex128).requires_grad_() for each in (A, B))
    several = torch.randn(2, 3, 3, dtype=torch.complex128)
    found = torch.autograd.grad(PLAN_OF_COMPLEX(a, b), (a, b), several, is_grads_batched=True)
    torch.testing.assert_close(found, (several @ B.T.to(a.dtype), A.T.to(a.dtype) @ several))


PLAN_OF_COMPLEX = weft.plan("mk,kn->mn", A.to(torch.complex128), B.to(torch.complex128))
