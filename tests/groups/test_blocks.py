"""Block-sparse tensors against dense ones."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import weft
from support import Backend
from weft.blocks import BlockTensor
from weft.groups.packed import PackedPlan
from weft.testing import random_operand

# Charges and their extents, by label; blocks are those whose charges add up to zero.
SECTORS = {
    "a": {-1: 2, 0: 5, 1: 3}, "b": {0: 1, 1: 4}, "c": {-2: 3, -1: 17, 0: 2, 1: 1}, "d": {-1: 2, 0: 3, 1: 2},
}  # fmt: skip


def blocked(labels: str, seed: int, device: str = "cpu", dtype: torch.dtype = torch.float64) -> BlockTensor:
    keys: list[tuple[int, ...]] = [()]
    for label in labels:
        keys = [(*key, sector) for key in keys for sector in SECTORS[label]]
    blocks = {
        key: random_operand(
            tuple(SECTORS[label][sector] for label, sector in zip(labels, key, strict=True)), dtype, seed + at,
            integers=True, device=device,
        )
        for at, key in enumerate(keys)
        if sum(key) == 0
    }  # fmt: skip
    return BlockTensor(blocks)


def dense(tensor: BlockTensor, labels: str) -> torch.Tensor:
    return tensor.to_dense([SECTORS[label] for label in labels])


@pytest.mark.parametrize(
    "equation", ["abc,cd->abd", "abc,bca->", "abc,abd->cd", "ac,db->acdb", "cab,bd->dca", "ac,ca->ac"]
)
def test_values(equation: str, backend: Backend) -> None:
    first, second, output = equation.replace("->", ",").split(",")
    a, b = blocked(first, 0, backend.device), blocked(second, 50, backend.device)
    found = weft.blocks.contract(equation, a, b, backend=backend.name)
    assert torch.equal(dense(found, output), torch.einsum(equation, dense(a, first), dense(b, second)))


def test_functions_and_types_that_no_kernel_takes() -> None:
    a, b = blocked("abc", 0), blocked("cd", 7)
    found = weft.blocks.contract("abc,cd->abd", a, b, epilogue=torch.relu)
    right = torch.relu(torch.einsum("abc,cd->abd", dense(a, "abc"), dense(b, "cd")))
    assert torch.equal(dense(found, "abd"), right)
    again = weft.blocks.contract("abc,cd->abd", a, b, epilogue=torch.relu, backend="reference")
    assert torch.equal(dense(again, "abd"), right)


def test_the_same_blocks_with_other_values() -> None:
    for seed in (1, 2):
        a, b = blocked("ac", seed), blocked("cb", seed + 30)
        found = weft.blocks.contract("ac,cb->ab", a, b)
        assert torch.equal(dense(found, "ab"), dense(a, "ac") @ dense(b, "cb"))


def test_a_block_tensor_is_a_dict_of_views() -> None:
    x = BlockTensor({(0, "x"): np.ones((2, 3)), (1, "y"): np.zeros((1, 1))})
    assert len(x) == 2
    assert (0, "x") in x
    assert x.sectors() == ({0: 2, 1: 1}, {"x": 3, "y": 1})
    x[1, "y"].fill_(5)
    assert float(x.buffer.sum()) == 11
    assert "2 blocks of 2 modes, float64" in repr(x)
    assert x.to_dense().shape == (3, 4)


def test_a_structure_travels_without_its_hash() -> None:
    x = BlockTensor({("up", 0): torch.ones(2, 3)})
    assert hash(x.structure) == hash(copy.deepcopy(x.structure))
    again = pickle.loads(pickle.dumps(x.structure))
    assert again == x.structure
    assert "_hash" not in vars(again)


@pytest.mark.parametrize(
    ("blocks", "error", "message"),
    [
        ({}, weft.ArgumentError, "one block at least"),
        ({0: torch.ones(2)}, weft.ArgumentError, "named by a tuple"),
        ({(0,): torch.ones(2, 2)}, weft.ShapeError, "has 2 dimensions"),
        ({(0, 0): torch.ones(2, 2), (0, 1): torch.ones(3, 2)}, weft.ShapeError, "sector 0 of mode 0 has extent 3"),
        ({(0,): torch.ones(2), (1,): torch.ones(2).double()}, weft.DTypeError, r"\(1,\) is float64"),
    ],
)
def test_blocks_that_do_not_fit(blocks: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BlockTensor(blocks)


def test_blocks_of_a_known_structure_are_checked_too() -> None:
    blocks = {(at, at): torch.full((2, 2), float(at)) for at in range(3)}
    assert torch.equal(BlockTensor(blocks)[2, 2], BlockTensor(blocks)[2, 2])
    with pytest.raises(weft.DTypeError, match=r"block \(1, 1\) is float64, \(0, 0\) is float32"):
        BlockTensor({**blocks, (1, 1): torch.ones(2, 2).double()})
    with pytest.raises(weft.UnsupportedError, match=r"block \(2, 2\) is torch.sparse_coo"):
        BlockTensor({**blocks, (2, 2): torch.ones(2, 2).to_sparse()})
    assert torch.equal(BlockTensor({**blocks, (1, 1): torch.ones(2, 2).mH})[1, 1], torch.ones(2, 2))


def test_operands_that_do_not_fit() -> None:
    x = BlockTensor({(0, 0): torch.ones(2, 3)})
    with pytest.raises(weft.ShapeError, match="sector 0 of 'b' has extent 3 in a and 2 in b"):
        weft.blocks.contract("ab,bc->ac", x, x)
    with pytest.raises(weft.ShapeError, match="no blocks of a and b meet"):
        weft.blocks.contract("ab,bc->ac", x, BlockTensor({(1, 0): torch.ones(2, 3)}))
    with pytest.raises(weft.ShapeError, match="3 labels"):
        weft.blocks.contract("abc,cd->abd", x, x)
    with pytest.raises(weft.UnsupportedError, match="label twice"):
        weft.blocks.contract("aa,ac->c", x, x)
    with pytest.raises(weft.ArgumentError, match="not Tensor"):
        weft.blocks.contract("ab,bc->ac", x, torch.ones(2, 2))


def test_gradients_may_be_negative_views() -> None:
    buffer = blocked("ab", 0).buffer.clone().requires_grad_()
    a, b = BlockTensor.over(blocked("ab", 0).structure, buffer), blocked("bc", 9)
    found = weft.blocks.contract("ab,bc->ac", a, b)
    grad = torch.randint(-4, 5, found.buffer.shape).double()
    for _ in range(3):
        negative, plain = (
            torch.autograd.grad(found.buffer, buffer, each, retain_graph=True)[0]
            for each in (torch._neg_view(grad), -grad)
        )
        assert torch.equal(negative, plain)


@pytest.mark.keeps
def test_the_precision_of_all_calls_is_that_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("weft.groups.packed.PackedPlan", lambda *given: made.append(given) or PackedPlan(*given))
    a, b = (BlockTensor({(0, 0): torch.rand(2, 2)}) for _ in range(2))
    for mode in ("ieee", "ieee_bound", "ieee", "ieee_bound"):
        with weft.precision(mode):
            weft.blocks.contract("ab,bc->ac", a, b)
    assert len(made) == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("leaf", [False, True])
def test_sums_of_halves_over_blocks_are_rounded_once(dtype: torch.dtype, leaf: bool) -> None:
    one = torch.ones(1, 1, dtype=dtype, requires_grad=leaf)
    x = BlockTensor({(0, at): one for at in range(3000)})
    found = weft.blocks.contract("ab,cb->ac", x, x, epilogue=lambda s: s - 2990)
    assert found[0, 0].item() == 10
    whole = BlockTensor({(0, at): torch.full((1, 1), 127, dtype=torch.int8) for at in range(3001)})
    assert weft.blocks.contract("ab,cb->ac", whole, whole, out_dtype="float64")[0, 0].item() == 127 * 127 * 3001


def test_results_that_blocks_cannot_have() -> None:
    x = BlockTensor({(0, 0): torch.ones(2, 2)})
    with pytest.raises(weft.UnsupportedError, match="returns one value, no tuple"):
        weft.blocks.contract("ab,bc->ac", x, x, epilogue=lambda s: (s, s))
    with pytest.raises(weft.ShapeError, match="the blocks of `like` have 1 mode, 'ac' 2"):
        weft.blocks.contract("ab,bc->ac", x, x, like=BlockTensor({(0,): torch.ones(2)}))


def test_one_block_is_copied_too() -> None:
    block = torch.ones(2, 3)
    tensor = BlockTensor({(0, 0): block})
    block.zero_()
    assert bool((tensor[0, 0] == 1).all())


@pytest.mark.parametrize("keywords", [{}, {"out_dtype": torch.float64}, {"epilogue": lambda total: total + 1}])
@pytest.mark.parametrize("met", [True, False])
def test_blocks_of_like_that_nothing_meets_in_stay_zero(keywords: dict[str, Any], met: bool) -> None:
    ones = {(0, 0): torch.ones(2, 3)}
    y = BlockTensor({(0, 0): torch.ones(3, 4)})
    like = BlockTensor({(5, 5): torch.ones(2, 3), **({(0, 0): torch.ones(2, 4)} if met else {})})
    plain = weft.blocks.contract("ab,bc->ac", BlockTensor(ones), y, like=like, **keywords)
    leaf = ones[0, 0].clone().requires_grad_()
    found = weft.blocks.contract("ab,bc->ac", BlockTensor({(0, 0): leaf}), y, like=like, **keywords)
    assert found.dtype == plain.dtype
    assert torch.equal(found.buffer, plain.buffer)
    assert not bool(found[5, 5].any())
    assert not met or bool((found[0, 0] >= 3).all())
    found.buffer.sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full((2, 3), 4.0 * met))


def test_types_are_those_of_operands_where_nothing_meets() -> None:
    x, like = BlockTensor({(0, 0): torch.ones(2, 3)}), BlockTensor({(5, 5): torch.ones(2, 3)})
    y = BlockTensor({(0, 0): torch.ones(3, 4, dtype=torch.complex64)})
    assert weft.blocks.contract("ab,bc->ac", x, y, like=like).dtype == torch.complex64
    with pytest.raises(weft.DTypeError, match="float32 and float64"):
        weft.blocks.contract("ab,bc->ac", x, BlockTensor({(0, 0): torch.ones(3, 4).double()}), like=like)
