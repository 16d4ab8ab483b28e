"""Tensors with symmetries that are stored once, against whole ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft.blocks import contract, triangles
from weft.testing import random_operand

PAIRS = {"jiab": -1, "ijba": -1}
LADDER = {"baef": -1, "efab": 1}  # and so "abfe": -1


def summed(x: torch.Tensor, modes: str, symmetry: dict[str, int]) -> torch.Tensor:
    """The sum over all orders that follow from those given."""
    orders, size = {tuple(range(x.dim())): 1}, 0
    while size < len(orders):
        size = len(orders)
        for order, sign in list(orders.items()):
            for text, factor in symmetry.items():
                orders[tuple(order[modes.index(letter)] for letter in text)] = sign * factor
    return sum(sign * x.permute([order.index(at) for at in range(x.dim())]) for order, sign in orders.items())  # type: ignore[return-value]


def whole(shape: tuple[int, ...], modes: str, symmetry: dict[str, int], backend: Backend, seed: int) -> torch.Tensor:
    dtype = torch.float64
    return summed(random_operand(shape, dtype, seed, integers=True, device=backend.device), modes, symmetry)


@pytest.mark.parametrize(
    ("modes", "symmetry", "shape", "tile", "stored"),
    [
        ("ij", {"ji": -1}, (7, 7), 3, 33),
        ("ij", {"ji": 1}, (7, 7), 100, 49),
        ("ijab", PAIRS, (5, 5, 7, 7), 2, 527),
        ("pqrs", {"qprs": 1, "rspq": 1}, (4, 4, 4, 4), 1, 55),
        ("abc", {"bca": 1}, (4, 4, 4), 2, 32),
        ("aib", {"bia": -1}, (1, 3, 1), 4, 3),
    ],
)
def test_each_part_is_stored_once(
    modes: str, symmetry: dict[str, int], shape: tuple[int, ...], tile: int, stored: int
) -> None:
    x = random_operand(shape, torch.float64, 3, integers=True)
    right = summed(x, modes, symmetry)
    found = triangles(x, modes, symmetry, tile=tile, summed=True)
    assert found.buffer.numel() == stored
    assert torch.equal(found.to_dense(), right)
    assert torch.equal(triangles(right, modes, symmetry, tile=tile).buffer, found.buffer)


def test_the_doubles_of_coupled_cluster(backend: Backend) -> None:
    t = whole((4, 4, 6, 6), "ijab", PAIRS, backend, 1)
    w = whole((6, 6, 6, 6), "abef", LADDER, backend, 2)
    ring = random_operand((4, 6, 6, 4), torch.float64, 5, integers=True, device=backend.device)
    T, W = triangles(t, "ijab", PAIRS, tile=2), triangles(w, "abef", LADDER, tile=2)
    ladder = contract("ijef,abef->ijab", T, W, like=T, backend=backend.name)
    assert torch.equal(ladder.to_dense(), torch.einsum("ijef,abef->ijab", t, w))
    assert ladder.buffer.numel() == T.buffer.numel() <= 0.5 * t.numel()
    whole_ring = contract("imae,mbej->ijab", T, triangles(ring, "mbej", {}, tile=2), backend=backend.name)
    right = torch.einsum("imae,mbej->ijab", t, ring)
    assert torch.equal(whole_ring.to_dense(), right)
    made = triangles(whole_ring, "ijab", PAIRS, tile=2, summed=True)
    assert torch.equal(made.to_dense(), summed(right, "ijab", PAIRS))
    inner = contract("mnaf,mnef->ae", T, T, backend=backend.name)  # both the pair m, n
    assert torch.equal(inner.to_dense(), torch.einsum("mnaf,mnef->ae", t, t))


def test_gradients_of_what_is_stored_once() -> None:
    x = torch.randn(4, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 3, dtype=torch.float64)

    def by_blocks(x: torch.Tensor) -> torch.Tensor:
        made = triangles(x, "ijab", PAIRS, tile=2, summed=True)
        return contract("ijab,bc->ijac", made, triangles(w, "bc", {}, tile=2)).to_dense()

    right = torch.einsum("ijab,bc->ijac", summed(x, "ijab", PAIRS), w)
    torch.testing.assert_close(by_blocks(x), right)
    grads = [torch.autograd.grad((y * y).sum(), x)[0] for y in (by_blocks(x), right)]
    torch.testing.assert_close(*grads)


def test_products_have_the_same_bits_whatever_the_threads() -> None:
    t = torch.randn(9, 9, 12, 12, dtype=torch.float64)
    T = triangles(t, "ijab", PAIRS, tile=3, summed=True)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            found.append(contract("ijef,klef->ijkl", T, T).buffer)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])


@pytest.mark.parametrize(
    ("modes", "symmetry", "error", "message"),
    [
        ("ij", {"ik": 1}, weft.NotationError, "'ik' is no order of the modes 'ij'"),
        ("ijk", {}, weft.NotationError, "'ijk' names 2 modes"),
        ("ij", {"ji": 2}, weft.ArgumentError, "the sign of 'ji' is 1 or -1, not 2"),
        ("ij", {"ij": -1}, weft.ArgumentError, "would be zero"),
        ("ij", {"ji": 1}, weft.ShapeError, "modes 0 and 1 change places: extents 4 and 5"),
    ],
)
def test_symmetries_that_are_none(modes: str, symmetry: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        triangles(torch.ones(4, 5), modes, symmetry)


def test_a_result_like_another() -> None:
    x = weft.blocks.BlockTensor({(0, 0): torch.ones(2, 3), (1, 1): torch.ones(4, 5)})
    d = weft.blocks.BlockTensor({(2, 2): torch.ones(1, 1), (0, 0): torch.ones(2, 2)})
    found = contract("ab,cb->ac", x, x, like=d)
    assert found.keys() == d.keys()
    assert float(found[2, 2]) == 0
    assert torch.equal(found[0, 0], torch.full((2, 2), 3.0))
    with pytest.raises(weft.ShapeError, match=r"block \(0, 0\) of the result has shape \(2, 2\), that of `like`"):
        contract("ab,cb->ac", x, x, like=x)
