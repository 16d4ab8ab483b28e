"""`tune=` of groups, chains and blocks: the contractions behind them are measured, and results stay right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tuning
import weft


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    tuning.begin(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return tuning.measured(monkeypatch)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_pairs_that_are_one_batch_are_measured_once(measured: list[Any]) -> None:
    x, y = torch.randn(6, 8, 5), torch.randn(6, 5, 7)
    pairs = list(zip(x, y, strict=True))
    for _ in range(2):
        close(torch.stack(weft.grouped("mk,kn->mn", pairs, tune="measure")), x @ y)
    assert len(measured) == 1
    plan = weft.plan_grouped("mk,kn->mn", pairs, tune="measure")
    close(torch.stack(list(plan())), x @ y)
    assert len(measured) == 1


def test_pairs_of_the_kernel_for_groups_have_nothing_to_measure(measured: list[Any]) -> None:
    pairs = [(torch.randn(n, 4), torch.randn(4, n + 1)) for n in (1, 5, 9)]
    for found, (a, b) in zip(weft.grouped("mk,kn->mn", pairs, tune="measure"), pairs, strict=True):
        close(found, a @ b)
    assert measured == []


def test_pairs_that_are_contracted_one_by_one_are_measured_each(measured: list[Any]) -> None:
    pairs = [(torch.randn(n, 4).half(), torch.randn(4, 3).half()) for n in (8, 8, 2)]
    for found, (a, b) in zip(weft.grouped("mk,kn->mn", pairs, tune="measure"), pairs, strict=True):
        torch.testing.assert_close(found, (a.float() @ b.float()).half(), rtol=1e-2, atol=1e-2)
    assert len(measured) == 2


def test_both_contractions_of_a_chain_are_measured(measured: list[Any]) -> None:
    g, x, m = torch.randn(4, 4), torch.randn(3, 4, 20), torch.randn(20, 20)
    for _ in range(2):
        found = weft.chain("pq,bqc,cr->bpr", g, x, m, tune="measure")
        close(found, torch.einsum("pq,bqc,cr->bpr", g, x, m))
    assert len(measured) == 2


def test_blocks_take_it(measured: list[Any]) -> None:
    x = weft.blocks.BlockTensor({(0, 0): torch.randn(2, 3), (1, 1): torch.randn(4, 1)})
    y = weft.blocks.BlockTensor({(0, 0): torch.randn(3, 5), (1, 0): torch.randn(1, 5)})
    found = weft.blocks.contract("ab,bc->ac", x, y, tune="measure")
    close(found[0, 0], x[0, 0] @ y[0, 0])


def test_gradients_go_along(measured: list[Any]) -> None:
    x, y = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 5, 2)
    found = weft.grouped("mk,kn->mn", list(zip(x.unbind(), y, strict=True)), tune="measure")
    torch.stack(list(found)).sum().backward()
    close(x.grad, torch.ones(3, 4, 2) @ y.mT)


@pytest.mark.parametrize("tune", ["fast", True, 3])
def test_other_words_are_refused(tune: Any) -> None:
    a, b = torch.randn(2, 2), torch.randn(2, 2)
    block = weft.blocks.BlockTensor({(0, 0): a})
    calls = (
        lambda: weft.grouped("mk,kn->mn", [(a, b)], tune=tune),
        lambda: weft.plan_grouped("mk,kn->mn", [(a, b)], tune=tune),
        lambda: weft.chain("pq,qc,cr->pr", a, b, a, tune=tune),
        lambda: weft.blocks.contract("ab,bc->ac", block, block, tune=tune),
    )
    for call in calls:
        with pytest.raises(weft.UnsupportedError, match=r"tune=.* is none of None, 'model', 'measure'"):
            call()
