"""The figures of block-sparse contractions: the loop beside them is right, and cuTENSOR is told of the blocks."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

import block_figures
from weft.blocks import U1, ChargedTensor, Leg, contract
from weft_bench.peers.cutensor_blocks import BlockOperation


def test_the_loop_contracts_as_weft_does():
    for case in block_figures.cases(True, torch.float64, "cpu"):
        if case.name != "three legs":  # of thousands of products
            found = contract(case.equation, case.a, case.b)
            made, loop = block_figures.by_loop(case, found)
            loop()
            torch.testing.assert_close(made.buffer, found.buffer)
            assert block_figures.flops(case) > 0


class Told:
    """A library that keeps what it is told."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...]]] = []

    def _made(self, create: str, arguments: tuple[Any, ...], destroy: str, owner: object) -> ctypes.c_void_p:
        self.made.append((create, arguments))
        return ctypes.c_void_p(len(self.made))

    def _constant(self, name: str) -> str:
        return name

    def call(self, name: str, handle: Any, descriptor: Any, attribute: int, place: Any, size: int) -> None:
        place._obj.value = 1  # float64

    _handle = None


def test_blocks_are_described_by_their_places_and_sections():
    left, right = Leg(U1, {0: 2, 1: 3}), Leg(U1, {0: 4, 1: 5, 2: 6}, sign=-1)
    a = ChargedTensor.random([left, right])
    told: Any = Told()
    d = contract("ab,cb->ac", a, a.conj())
    both = [leg.extents for leg in a.legs]
    tensors = [(a, both), (a.conj(), both), (d, [left.extents, left.extents])]
    operation = BlockOperation(told, ("ab", "cb", "ac"), tensors, "64F")
    (_, described), *_, (created, words) = told.made
    modes, blocks, sections, extents, places, steps, kind = described
    assert (modes, blocks, list(sections), kind) == (2, 2, [2, 3], 1)
    assert list(extents) == [2, 3, 4, 5, 6]
    assert list(places) == [0, 0, 1, 1]
    assert list(steps) == [4, 1, 5, 1]
    assert created == "cutensorCreateBlockSparseContraction"
    assert words[-1] == "CUTENSOR_COMPUTE_DESC_64F"
    assert operation.scalar(2).value == pytest.approx(2)
