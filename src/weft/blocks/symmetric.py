"""Tensors that are symmetric or antisymmetric under permutations of their modes, stored once.

A tensor is cut into tiles. Of the tiles that permutations of modes make of one another the buffer holds one, whole; the
others are read in its place with strides exchanged, and subtracted where the sign is -1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch

from weft.base.arrays import as_tensor
from weft.blocks.tensor import BlockTensor, Structure
from weft.cpu.orders import serves, sum_in_orders
from weft.engine.ways import is_seen
from weft.errors import ArgumentError, NotationError, ShapeError
from weft.spec.arguments import reads
from weft.spec.contraction import Layout

Order = tuple[int, ...]  # a permutation of modes
Signed = tuple[Order, int]  # and its sign
Tile = tuple[int, ...]  # its number along each mode


@reads("blocks.triangles")
def triangles(
    tensor: Any, modes: str, symmetry: Mapping[str, int], *, tile: int = 16, summed: bool = False
) -> BlockTensor:
    """A tensor with symmetries, each part of it stored once.

    `modes` names the modes of `tensor`, a letter each. `symmetry`: other orders of these letters, with the sign that
    the tensor has in that order: ``{"jiab": -1, "ijba": -1}`` for amplitudes ``"ijab"``, which is to say that
    T[i, j, a, b] = -T[j, i, a, b] = -T[i, j, b, a]. What follows from them is found. That the tensor is so is taken on
    trust, but with `summed`: then the sum of `tensor` in all these orders with their signs is stored, such as
    x - x.transpose(0, 1) for ``{"ji": -1}``, in one pass over it. It may be a `BlockTensor` of such tiles as well.

    `tile`: about how many indices of a mode are a tile; the numbers of tiles are the sectors of the result. Tiles on
    the diagonal are stored whole: of n tiles along each of two modes (n + 1) / 2n of the tensor is.

    Raises `NotationError` for letters that are no order of `modes`, `ShapeError` for modes that change places and
    differ in extent, `ArgumentError` for a sign other than 1 and -1 and for signs that contradict one another.

    >>> import torch, weft
    >>> x = torch.randn(40, 40)
    >>> t = weft.blocks.triangles(x - x.T, "ij", {"ji": -1}, tile=10)
    >>> t.buffer.numel(), torch.equal(t.to_dense(), x - x.T)
    (1000, True)
    """
    if tile < 1:
        raise ArgumentError(f"tile is 1 at least, not {tile}")
    part: Callable[[Tile], torch.Tensor]
    x = None
    if isinstance(tensor, BlockTensor):
        shape, part = tuple([sum(mode.values()) for mode in tensor.sectors()]), tensor.__getitem__
    else:
        x = as_tensor("tensor", tensor)
        shape, part = tuple(x.shape), _slices(x, tile)
    if len(modes) != len(shape) or len(set(modes)) < len(shape):
        raise NotationError(f"'{modes}' names {len(shape)} modes by different letters: so many the tensor has")
    group = closed(modes, tuple(symmetry.items()))
    structure = tiled(shape, group, tile)
    orders = group if summed else group[:1]
    if x is not None and serves(x) and not is_seen((x,)):
        buffer = torch.empty(structure.size, dtype=x.dtype, device="cpu")
        sum_in_orders(x, buffer, _tables(structure, orders, tile, x.shape, x.stride()), [sign for _, sign in orders])
        return BlockTensor.over(structure, buffer)
    stored = [cast(Tile, structure.keys[at]) for at in structure.stored]
    parts = [_sum([(_turned(part(_moved(each, order)), order), sign) for order, sign in orders]) for each in stored]
    return BlockTensor.over(structure, torch.cat([each.reshape(-1) for each in parts]))


def closed(modes: str, given: Sequence[tuple[str, int]]) -> tuple[Signed, ...]:
    """All orders of the modes that follow from those given, the identity first: T[x] = sign * T[x in that order]."""
    generators = []
    for text, sign in given:
        if sorted(text) != sorted(modes):
            raise NotationError(f"'{text}' is no order of the modes '{modes}'")
        if sign not in (1, -1):
            raise ArgumentError(f"the sign of '{text}' is 1 or -1, not {sign}")
        generators.append((tuple([modes.index(letter) for letter in text]), sign))
    identity: Order = tuple(range(len(modes)))
    found, new = {identity: 1}, [identity]
    while new:
        order = new.pop()
        for other, sign in generators:
            both = tuple([order[at] for at in other])
            if both not in found:
                found[both] = found[order] * sign
                new.append(both)
            elif found[both] != found[order] * sign:
                text = "".join([modes[at] for at in both])
                raise ArgumentError(f"the tensor would be zero: '{text}' has the sign 1 and -1")
    return tuple(found.items())


@lru_cache(maxsize=256)
def tiled(shape: tuple[int, ...], group: tuple[Signed, ...], tile: int) -> Structure:
    """The tiles of a tensor of that shape, those that are stored first."""
    for order, _ in group:
        for mode, other in enumerate(order):
            if shape[mode] != shape[other]:
                raise ShapeError(f"modes {mode} and {other} change places: extents {shape[mode]} and {shape[other]}")
    if not all(shape):
        raise ShapeError(f"a tensor of shape {shape} has no tiles")
    ends = [_ends(extent, tile) for extent in shape]
    starts: dict[Tile, int] = {}
    rows: list[Any] = []
    size = 0
    for each in itertools.product(*[range(len(own) - 1) for own in ends]):
        home, order, sign = min((_moved(each, order), order, sign) for order, sign in group)
        extents = _shape(ends, home)
        if each == home:  # the first of its kind
            starts[home], size = size, size + math.prod(extents)
        steps = Layout.contiguous(extents, torch.float32).strides
        strides = tuple([steps[order.index(mode)] for mode in range(len(each))])
        rows.append((each, _shape(ends, each), starts[home], strides, sign))
    rows.sort(key=lambda row: row[0] not in starts)
    keys, shapes, places, reads_by, signs = zip(*rows, strict=True)
    return Structure(keys, shapes, places, reads_by, signs, group)


@lru_cache(maxsize=256)
def _tables(
    structure: Structure, orders: tuple[Signed, ...], tile: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray:
    """The tiles that are stored, as the kernel for sums in several orders has them."""
    starts = [_ends(extent, tile) for extent in shape]
    rows = []
    for at in structure.stored:
        key = cast(Tile, structure.keys[at])
        row = [structure.starts[at], *structure.shapes[at]]
        for order, _ in orders:  # an element of the tile is that of x with its indices in this order
            first = sum(starts[mode][key[other]] * strides[mode] for mode, other in enumerate(order))
            row += [first, *(strides[order.index(mode)] for mode in range(len(key)))]
        rows.append(row)
    return np.array(rows, np.int64)


def _ends(extent: int, tile: int) -> list[int]:
    """Where tiles along a mode begin, and the end of the last."""
    count = -(-extent // tile)
    return [extent * at // count for at in range(count + 1)]


def _shape(ends: Sequence[Sequence[int]], key: Tile) -> tuple[int, ...]:
    return tuple([each[at + 1] - each[at] for each, at in zip(ends, key, strict=True)])


def _slices(x: torch.Tensor, tile: int) -> Callable[[Tile], torch.Tensor]:
    """The tiles of a tensor, views."""
    ends = [_ends(extent, tile) for extent in x.shape]
    return lambda key: x[tuple([slice(each[at], each[at + 1]) for each, at in zip(ends, key, strict=True)])]


def _moved(key: Tile, order: Order) -> Tile:
    return tuple([key[at] for at in order])


def _turned(block: torch.Tensor, order: Order) -> torch.Tensor:
    """A tile whose modes stand in an order, with these back in their own."""
    return block.permute([order.index(mode) for mode in range(len(order))])


def _sum(terms: Sequence[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """The sum of tiles with signs, the first of which is 1; new memory where there are several."""
    (total, _), *others = terms
    for at, (tile, sign) in enumerate(others):
        total = torch.add(total, tile, alpha=sign) if at == 0 else total.add_(tile, alpha=sign)
    return total
