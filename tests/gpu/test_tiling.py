"""Cuts and sides: the numbers that kernels are compiled with."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.gpu.common.tiling import AlignedRun, TiledAxis, tiled_dim
from weft.gpu.gett import family as gett
from weft.gpu.gett.family import gett_params
from weft.planner.planner import Choice
from weft.planner.schedule import Ranked, ResourceError, Target
from weft.spec import Mode, Role, Strides

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)


def mode(name: str, extent: int, a: int, d: int = 0) -> Mode:
    return Mode((name,), extent, Role.K, Strides(a, 0, 0, d))


def test_both_operands_meet_in_the_same_blocks_of_k() -> None:
    """A takes the axes of k in another order than B; modes that A lacks once made the blocks differ."""
    a, b = torch.ones(15, 15, dtype=torch.float16), torch.ones(15, 15, 15, dtype=torch.float16)
    contraction = weft.plan("cf,dfg->", a, b, backend="reference").contraction
    two_axes = [s for s in gett.schedules(contraction, H200).schedules if len(s.k) == 2]
    assert two_axes
    for schedule in two_axes:
        params = gett_params(contraction, schedule, H200)
        pitches = {axis.extents: axis.pitch for axis in params.k.axes}
        assert {axis.extents: axis.pitch for axis in params.k_of_a.axes} == pitches, str(schedule)


def test_runs_end_where_memory_jumps() -> None:
    flat = tiled_dim([TiledAxis((mode("i", 72, 1), mode("j", 5, 1000)), 64)])
    assert flat.runs[0] == AlignedRun(8, 8)  # 72 = 9 * 8; rows start at multiples of 1000 = 8 * 125
    assert flat.axes[0].stretches[0] == 64


def test_an_odd_run_holds_no_aligned_groups() -> None:
    """0 1 2 | 90 91 92 | ...: 2 and 90 are a group of two, and not consecutive."""
    odd = tiled_dim([TiledAxis((mode("i", 3, 1), mode("j", 17, 90)), 64)])
    assert odd.runs[0] == AlignedRun(1, 1)
    assert odd.axes[0].stretches[0] == 3


def test_a_run_from_end_to_end_is_as_long_as_the_tile() -> None:
    assert tiled_dim([TiledAxis((mode("i", 13, 1),), 32)]).runs[0].length == 32


def test_misaligned_rows_lower_the_divisor() -> None:
    assert tiled_dim([TiledAxis((mode("i", 64, 1), mode("j", 5, 67)), 32)]).runs[0] == AlignedRun(32, 1)


@pytest.mark.parametrize(("extent", "tile", "exact"), [(64, 32, True), (65, 32, False), (0, 32, True)])
def test_blocks_cover_the_extent(extent: int, tile: int, exact: bool) -> None:
    made = tiled_dim([TiledAxis((mode("i", extent, 1),), tile)])
    assert made.blocks == -(-extent // tile)
    assert made.exact is exact


def test_a_part_of_a_block_knows_where_it_ends() -> None:
    """Blocks of 320 on 312 indices: the first 256 exist, of the last 64 eight do not."""
    run = mode("i", 312, 1)
    wide, narrow = (tiled_dim([TiledAxis((run,), tile, True, 320, first)]) for tile, first in ((256, 0), (64, 256)))
    assert wide.blocks == narrow.blocks == 1
    assert wide.exact
    assert not narrow.exact
    assert narrow.axes[0].first == 256
    assert tiled_dim([TiledAxis((mode("i", 640, 1),), 64, True, 320, 256)]).exact
    assert not tiled_dim([TiledAxis((mode("i", 570, 1),), 256, True, 320)]).exact  # the second block ends at 576


def test_a_part_of_a_block_is_aligned_as_its_start_is() -> None:
    """Groups of a flattened tile must not cross a jump: blocks of 80 start at multiples of 16, not of 32."""
    jumps = (mode("i", 96, 1), mode("j", 5, 1000))
    assert tiled_dim([TiledAxis(jumps, 32)]).runs[0] == AlignedRun(32, 8)
    assert tiled_dim([TiledAxis(jumps, 32, True, 80)]).runs[0] == AlignedRun(16, 8)
    assert tiled_dim([TiledAxis(jumps, 8, True, 80, 72)]).runs[0] == AlignedRun(8, 8)


class _Full:
    """A family whose first schedules do not fit the device."""

    NAME = "full"

    def build(self, contraction: object, schedule: object, target: Target) -> object:
        if str(schedule) != "third":
            raise ResourceError("it needs 262176 of shared memory, the device has 232448")
        return "launch"


class _Named:
    family = "full"
    workspace_bytes = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


def test_what_the_device_cannot_hold_makes_way_for_the_next() -> None:
    ranked = tuple(Ranked(_Named(name), at, _Full()) for at, name in enumerate(("first", "second", "third")))
    choice, launch = Choice(None, "triton", H200, ranked[0], ranked).built()  # type: ignore[arg-type]
    assert launch == "launch"
    assert str(choice.best.schedule) == "third"
    assert choice.excluded[0] == "first: it needs 262176 of shared memory, the device has 232448"
    with pytest.raises(weft.UnsupportedError, match="no schedule fits the device: second"):
        Choice(None, "triton", H200, ranked[0], ranked[:2]).built()  # type: ignore[arg-type]
