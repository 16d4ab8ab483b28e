"""More memory than there is: a `WorkspaceError` with the bytes that were asked for, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

ROWS = 2**21  # of float32 squared 17.6 TB
PAST = 2**31  # of float32 squared past 2**63 bytes


def vector(extent: int) -> torch.Tensor:
    return torch.ones(1).expand(extent)


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(1, 1).expand(rows, columns)


CALLS: dict[str, Callable[[int], Any]] = {
    "contract": lambda n: weft.contract("a,b->ab", vector(n), vector(n)),
    "reference backend": lambda n: weft.contract("a,b->ab", vector(n), vector(n), backend="reference"),
    "plan": lambda n: weft.plan("a,b->ab", vector(n), vector(n))(vector(n), vector(n)),
    "a function": lambda n: weft.contract("a,b->ab", vector(n), vector(n), epilogue=torch.relu),
    "several results": lambda n: weft.contract("a,b->ab", vector(n), vector(n), epilogue=lambda v: (v, v + 1)),
    "a gradient": lambda n: weft.contract("a,b->ab", torch.ones(1, requires_grad=True).expand(n), vector(n)),
    "max_plus": lambda n: weft.contract("a,b->ab", vector(n), vector(n), algebra="max_plus"),
    "return_arg": lambda n: weft.contract("ac,bc->ab", matrix(n, 2), matrix(n, 2), algebra="max_plus", return_arg=True),
    "validate": lambda n: weft.contract("a,b->ab", vector(n), vector(n), validate=True),
    "alpha of 0": lambda n: weft.contract("a,b->ab", vector(n), vector(n), alpha=0),
    "outer": lambda n: weft.outer(vector(n), vector(n)),
    "matmul": lambda n: weft.matmul(matrix(n, 1), matrix(1, n)),
    "tensordot": lambda n: weft.tensordot(vector(n), vector(n), 0),
    "einsum of one": lambda n: weft.einsum("ab->ba", matrix(n, n)),
    "a sum of one": lambda n: weft.einsum("abc->ba", matrix(n, n)[..., None]),
    "einsum of three": lambda n: weft.einsum("a,b,c->abc", vector(n), vector(n), vector(n)),
    "an intermediate": lambda n: weft.einsum("a,b,ab,ab->", vector(n), vector(n), matrix(1, 1), matrix(1, 1)),
    "permute": lambda n: weft.permute(matrix(n, n), "ab->ba"),
    "a new mode": lambda n: weft.permute(vector(n), "a->ba", extents={"b": n}),
    "plan_permute": lambda n: weft.plan_permute(matrix(n, n), "ab->ba")(matrix(n, n)),
    "network": lambda n: weft.network("a,b,c->abc", (n,), (n,), (n,))(vector(n), vector(n), vector(n)),
    "network of two": lambda n: weft.network("a,b->ab", (n,), (n,))(vector(n), vector(n)),
    "blocks in turn": lambda n: weft.distributed.contract("a,b->ab", vector(n), vector(n), device="cpu"),
    "reference": lambda n: weft.reference.contract("a,b->ab", vector(n), vector(n)),
    "reference of a move": lambda n: weft.reference.permute("ab->ba", matrix(n, n)),
    "error_bound": lambda n: weft.error_bound("a,b->ab", vector(n), vector(n)),
    "a layer": lambda n: weft.nn.Linear(n, n),
    "correlations": lambda n: weft.tn.MPS.random(2, 2, 2).correlations(matrix(n, n), matrix(n, n)),
    "testing": lambda n: weft.testing.poisoned((n, n), torch.float32),
}


@pytest.mark.parametrize("extent", [ROWS, PAST], ids=["too much", "past 2**63 bytes"])
@pytest.mark.parametrize("call", [name for name in CALLS if name != "an intermediate"])
def test_too_much(call: str, extent: int) -> None:
    for _ in range(2):  # the second call is a known one
        with pytest.raises(weft.WorkspaceError, match=r"\d{10,}") as caught:
            CALLS[call](extent)
        assert isinstance(caught.value, MemoryError)


def test_pairs() -> None:
    pairs = [(vector(2**20), vector(2**10))] * 2**14
    with pytest.raises(weft.WorkspaceError, match="the call allocates"):
        weft.grouped("a,b->ab", pairs)
    with pytest.raises(weft.WorkspaceError, match="the call allocates"):
        weft.plan_grouped("a,b->ab", pairs)()


def test_nothing_is_kept_of_it() -> None:
    """The same call of less, and of the same, goes on."""
    with pytest.raises(weft.WorkspaceError):
        weft.outer(vector(ROWS), vector(ROWS))
    assert weft.outer(vector(2), vector(3)).shape == (2, 3)
    out = weft.contract("a,b->", vector(2**20), vector(4))
    assert out == 2**22
