"""What kernels state of their offsets is true of every one of them: the compiler takes it at its word."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import weft
from gpu.permutations import H200, described
from support import random_operand

pytest.importorskip("triton")

import triton.language as tl
from triton.runtime import interpreter

from weft.gpu.common import device
from weft.gpu.common.tiling import A, D
from weft.gpu.permute import family as permute
from weft.gpu.permute import model as permute_room
from weft.gpu.permute.model import PermuteParams, access_of, permute_params
from weft.planner.target import target_of

# Runs of odd modes that end before the tile does: of the source, of the result, of both.
MOVES = [
    ("abc->bac", (17, 30, 3), torch.float16),
    ("abcd->cabd", (4, 5, 6, 7), torch.float16),
    ("abcde->dabce", (4, 3, 4, 9, 3), torch.int8),
    ("abcd->bcad", (4, 16, 7, 9), torch.float32),
    ("abc->bac", (16, 12, 7), torch.float32),
]
PRODUCTS = [
    ("kia,kjb->ajib", {"k": 20, "i": 6, "a": 5, "j": 6, "b": 3}),
    ("akib,jk->bija", {"a": 7, "k": 17, "i": 4, "b": 9, "j": 20}),
    ("aib,bja->ij", {"a": 9, "i": 20, "b": 5, "j": 24}),
]


@pytest.fixture
def stated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The statements made, each compared with the offsets it is made of. Nothing but the truth is to be stated,
    whichever version of Triton is here."""
    for module in (device, permute_room):
        monkeypatch.setattr(module, "ODD_RUNS_STATED", tl.constexpr(False))
    found: list[tuple[int, int]] = []
    keep = interpreter.TensorHandle.set_attr

    def compare(handle: interpreter.TensorHandle, name: str, values: list[int]) -> None:
        keep(handle, name, values)
        if name != "tt.contiguity":
            return
        (length,), (divisor,) = values, handle.attr["tt.divisibility"]
        groups = handle.data.reshape(-1, length)
        assert np.array_equal(groups - groups[:, :1], np.tile(np.arange(length), (len(groups), 1))), "contiguity"
        assert not (groups[:, 0] % divisor).any(), "divisibility"
        found.append((length, divisor))

    monkeypatch.setattr(interpreter.TensorHandle, "set_attr", compare)
    return found


@pytest.mark.parametrize(("equation", "shape", "dtype"), MOVES)
def test_of_tiles_that_are_moved(
    equation: str, shape: tuple[int, ...], dtype: torch.dtype, stated: list[tuple[int, int]]
) -> None:
    x = random_operand(shape, dtype, 0, integers=True)
    term, output = equation.split("->")
    expected = x.permute([term.index(label) for label in output]).contiguous()
    permutation, here = described(equation, shape, dtype), target_of("triton", x.device)
    found = permute.schedules(permutation, here).schedules
    params = {schedule: permute_params(permutation, schedule) for schedule in found}
    odd = [schedule for schedule, each in params.items() if unstated(each, A) or unstated(each, D)]
    assert odd
    for schedule in random.Random(0).sample(odd, min(len(odd), 4)):
        d = torch.zeros_like(expected)
        permute.build(permutation, schedule, here)(x, None, d, 1, 0)
        assert torch.equal(d, expected), schedule
    assert stated


@pytest.mark.parametrize(("equation", "extents"), PRODUCTS)
def test_of_operands_and_results(equation: str, extents: dict[str, int], stated: list[tuple[int, int]]) -> None:
    terms = equation.split("->")[0].split(",")
    a, b = (random_operand([extents[label] for label in term], torch.float32, 0, integers=True) for term in terms)
    d = weft.contract(equation, a, b, backend="triton", specialize="now")
    assert torch.equal(d, torch.einsum(equation, a, b))
    assert stated


@pytest.mark.parametrize(("equation", "shape", "dtype"), MOVES)
def test_lanes_go_along_runs_that_are_not_stated(
    equation: str, shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing tells the compiler which dimension is the fastest, it takes the last for it."""
    monkeypatch.setattr(permute_room, "ODD_RUNS_STATED", tl.constexpr(False))
    permutation = described(equation, shape, dtype)
    params = [permute_params(permutation, each) for each in permute.schedules(permutation, H200).schedules]
    found = {place == len(each.tile) - 1 for each in params for tensor in (A, D) for place in unstated(each, tensor)}
    assert found == {True}


def test_reads_of_odd_runs_do_not_take_the_width_of_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler deals out both sides alike where they have one shape and one order."""
    monkeypatch.setattr(permute_room, "ODD_RUNS_STATED", tl.constexpr(False))
    permutation = described("abcd->dbac", (16, 16, 6, 5), torch.float32)
    narrower = 0
    for schedule in permute.schedules(permutation, H200).schedules:
        params = permute_params(permutation, schedule)
        if unstated(params, A) and access_of(permutation.d, D, params.store).width > 4:
            loaded = tuple(axis.tile for axis in params.load.axes if axis.place >= 0)
            assert loaded != params.tile or fastest(params, A) != fastest(params, D), schedule
            narrower += 1
    assert narrower


def unstated(params: PermuteParams, tensor: int) -> list[int]:
    """The dimension along which a tensor's neighbours lie, where no run of it can be stated."""
    tiled_dim = params.dim(tensor)
    return [axis.place for axis in tiled_dim.axes if axis.runs[tensor].length == 1 < axis.stretches[tensor]]


def fastest(params: PermuteParams, tensor: int) -> int:
    tiled_dim = params.dim(tensor)
    return next(axis.place for axis in tiled_dim.axes if axis.strides[tensor][0] == 1)
