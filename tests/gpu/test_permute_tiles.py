"""Tiles of permutations: every one of them moves every element, and what they are made of."""

from __future__ import annotations

import random

import pytest
import torch

import weft
from gpu.permutations import H200, described
from support import Backend
from weft.gpu.common.tiling import A, D, KernelAxis
from weft.gpu.permute import family as permute
from weft.gpu.permute.model import merge_modes, permute_params, tile_orders
from weft.gpu.permute.schedule import PermuteSchedule, programs
from weft.spec import Mode

# One run on both sides, two runs, modes that both sides begin with, extents that no tile divides, ones that end within
# a 16-byte access.
CASES = [
    ("ab->ba", (70, 130), torch.float32),
    ("abc->bac", (17, 18, 4), torch.float32),
    ("abc->bac", (17, 30, 3), torch.float16),
    ("abcd->dcba", (9, 8, 10, 9), torch.float16),
    ("abcd->cabd", (5, 12, 20, 8), torch.int8),
    ("ab->ba", (33, 24), torch.complex128),
    ("abcd->badc", (6, 8, 10, 12), torch.complex128),
    ("abcde->edcba", (3, 5, 6, 7, 9), torch.float64),
]


def elements(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


@pytest.mark.parametrize(("equation", "shape", "dtype"), CASES)
def test_every_sampled_tile_moves_every_element(
    equation: str, shape: tuple[int, ...], dtype: torch.dtype, triton_backend: Backend
) -> None:
    x = elements(shape, dtype).to(triton_backend.device)
    term, output = equation.split("->")
    expected = x.permute([term.index(label) for label in output]).contiguous()
    plan = weft.plan_permute(x, equation, backend="triton")
    permutation, target = plan.permutation, plan._request.target
    found = list(permute.schedules(permutation, target).schedules)
    for schedule in random.Random(0).sample(found, min(len(found), 5)):
        d = torch.zeros_like(expected)
        permute.build(permutation, schedule, target)(x, None, d, 1, 0)
        assert torch.equal(d, expected), schedule


def test_what_both_sides_begin_with_is_an_axis_of_its_own() -> None:
    for schedule in permute.schedules(described("ab->ba", (512, 512), torch.complex128), H200).schedules:
        assert [mode.name for mode in schedule.axes[-1].modes] == ["re·im"], schedule


def test_tiles_take_16_bytes_on_both_sides_where_a_run_of_some_modes_can() -> None:
    """81 elements of 2 bytes end within an access, 648 do not."""
    permutation = described("abcdefgh->hgfedcba", (9, 8, 9, 8, 9, 9, 9, 9), torch.float16)
    schedule, _ = permute.best(permutation, H200)
    params = permute_params(permutation, schedule)
    for tiled_dim, tensor in ((params.load, A), (params.store, D)):
        assert max(min(axis.runs[tensor]) for axis in tiled_dim.axes) >= 8, schedule


def test_loads_run_along_the_source_and_stores_along_the_result() -> None:
    permutation = described("abcd->dcba", (76, 76, 76, 76), torch.float32)
    for schedule in permute.schedules(permutation, H200).schedules:
        params = permute_params(permutation, schedule)
        assert params.load.axes[0].strides[A][0] == 1
        assert params.store.axes[0].strides[D][0] == 1
        placed = [axis for axis in params.load.axes if axis.place >= 0]
        assert params.tile == tuple(placed[at].tile for at in params.order)


def test_a_run_goes_on_where_a_tile_would_overhang_its_mode() -> None:
    """Of 76 indices a tile of 64 takes 12 the second time."""
    permutation = described("abcd->dcba", (76, 76, 76, 76), torch.float32)
    names = {str(schedule) for schedule in permute.schedules(permutation, H200).schedules}
    assert {"permute [d:64 a·b:128] warps=8", "permute [d·c:64 a·b:128] warps=8"} <= names


def test_modes_of_extent_zero_are_tiled_too() -> None:
    found = permute.schedules(described("abc->cba", (4, 0, 3), torch.float32), H200).schedules
    assert all(isinstance(mode, Mode) for schedule in found for axis in schedule.axes for mode in axis.modes)
    assert {programs(described("abc->cba", (4, 0, 3), torch.float32), schedule) for schedule in found} == {0}


def test_modes_that_lie_together_become_one() -> None:
    """Offsets stay what they were, whichever modes an axis spans."""
    permutation = described("abcdefgh->hgfedcba", (3, 2, 3, 2, 3, 2, 3, 2), torch.float16)
    for schedule in permute.schedules(permutation, H200).schedules:
        source, result, _ = tile_orders(permutation, schedule)
        for tiled_dim, tensor in ((source, A), (result, D)):
            fewer = merge_modes(tiled_dim, tensor)
            for axis, short in zip(tiled_dim.axes, fewer.axes, strict=True):
                assert offsets(axis, tensor) == offsets(short, tensor), schedule
    run = max(merge_modes(source, A).axes, key=lambda axis: axis.extent)
    assert len(run.extents) == 1, "the source's own run needs no digits"


def offsets(axis: KernelAxis, tensor: int) -> list[int]:
    """Of every index along an axis."""
    found = [0]
    for extent, stride in zip(axis.extents, axis.strides[tensor], strict=True):
        found = [before + digit * stride for digit in range(extent) for before in found]
    return found


def test_reads_of_single_words_do_not_take_the_width_of_writes() -> None:
    """Rows of 301 words are read word by word, columns are written four at a time."""
    permutation = described("abcd->dabc", (48, 48, 48, 301), torch.float32)
    axes = [schedule.axes for schedule in permute.schedules(permutation, H200).schedules]
    (square,) = [each for each in axes if [axis.tile for axis in each] == [64, 64]]
    params = permute_params(permutation, PermuteSchedule(square, 4))
    assert params.order == (0, 1), "the writes' fastest dimension is the last, that of the reads the first"
