"""Repeated calls skip the checks whose answers are known, and no other."""

from __future__ import annotations

import pytest
import torch

import weft


def test_a_repeated_call_computes_on_its_own_tensors() -> None:
    plan = weft.plan("ik,kj->ij", torch.ones(4, 5), torch.ones(5, 6))
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        a, b = torch.rand(4, 5, generator=generator), torch.rand(5, 6, generator=generator)
        torch.testing.assert_close(plan(a, b), a @ b)
        torch.testing.assert_close(plan(a, b, alpha=2.0), 2 * (a @ b))
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b), a @ b)


def test_overlap_is_seen_in_each_call() -> None:
    """The same shapes and strides, and now the result lies on an operand."""
    memory = torch.rand(3, 4, 4)
    plan = weft.plan("ik,kj->ij", memory[0], memory[1])
    plan(memory[0], memory[1], out=memory[2])
    kept = memory.clone()
    with pytest.raises(weft.ShapeError, match="out overlaps a"):
        plan(memory[0], memory[1], out=memory[0])
    with pytest.raises(weft.ShapeError, match="out overlaps b"):
        weft.contract("ik,kj->ij", memory[0], memory[1], out=memory[1])
    assert torch.equal(memory, kept)


def test_what_differs_is_checked_in_full() -> None:
    a, b = torch.rand(4, 5), torch.rand(5, 6)
    plan = weft.plan("ik,kj->ij", a, b)
    plan(a, b)
    with pytest.raises(weft.ShapeError, match="planned were"):
        plan(a[:3], b)
    with pytest.raises(weft.DTypeError, match="planned was float32"):
        plan(a.double(), b)
    with pytest.raises(weft.DTypeError, match="alpha"):
        plan(a, b, alpha="2")
    with pytest.raises(weft.DTypeError, match="beta"):
        plan(a, b, beta=1j)
    with pytest.raises(weft.UnsupportedError, match="gradient"):
        plan(a.clone().requires_grad_(), b)


def test_contract_tells_functions_and_options_apart() -> None:
    a, b = torch.rand(4, 5) - 0.5, torch.rand(5, 6)
    for _ in range(2):
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, epilogue=torch.relu), (a @ b).relu())
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, epilogue=torch.tanh), (a @ b).tanh())
        assert weft.contract("ik,kj->ij", a, b, out_dtype=torch.float64).dtype == torch.float64
    factor = 2.0

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, epilogue=scaled), 2 * (a @ b))
    factor = 3.0
    torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, epilogue=scaled), 3 * (a @ b))


def test_an_empty_result_stays_empty() -> None:
    plan = weft.plan("ik,kj->ij", torch.ones(0, 5), torch.ones(5, 6))
    for _ in range(2):
        assert plan(torch.ones(0, 5), torch.ones(5, 6)).shape == (0, 6)
