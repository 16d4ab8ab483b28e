"""Split-K: how output tiles are cut into strips when their partials are reduced."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import replace

import pytest
import torch

from gpu.warp_specialized_cases import described
from weft.fn import trace
from weft.gpu.common.contraction_launch import (
    LEAST_ELEMENTS,
    MOST_ELEMENTS,
    RESIDENT,
    reduce_launch,
    subtile_columns,
    subtile_rows,
)
from weft.gpu.warp_specialized import family as warp_specialized
from weft.gpu.warp_specialized.model import WsParams, ws_params
from weft.gpu.warp_specialized.schedule import WsSchedule, partials_layout
from weft.gpu.warp_specialized.views import in_kernel_order
from weft.planner.schedule import Target
from weft.planner.target import interpreting
from weft.spec import Layout

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
INTERPRETER = Target("interpreter", 0, "Triton interpreter", 90, 1, 232448)


@pytest.mark.parametrize("tile", [(16, 16), (64, 32), (128, 80), (128, 160), (128, 256), (256, 320), (8, 1024)])
@pytest.mark.parametrize("blocks", [1, 6, 72, 1000, 100_000])
def test_strips_cover_blocks_and_are_many_or_small(tile: tuple[int, int], blocks: int) -> None:
    tile_m, tile_n = tile
    rows, columns = subtile_rows(tile_m, tile_n, blocks, H200), subtile_columns(tile_n)
    assert tile_m % rows == tile_n % columns == 0
    assert rows * columns <= max(MOST_ELEMENTS, columns)
    strips = blocks * (tile_m // rows) * (tile_n // columns)
    assert strips >= RESIDENT * 132 or rows * columns <= LEAST_ELEMENTS or rows == 1


def test_few_blocks_give_small_strips_and_small_devices_large_ones() -> None:
    few, many = (subtile_rows(128, 80, blocks, H200) for blocks in (2, 10_000))
    assert few < many == 128
    assert subtile_rows(128, 80, 72, replace(H200, processors=16)) > subtile_rows(128, 80, 72, H200)


def test_the_interpreter_takes_whole_blocks() -> None:
    assert subtile_rows(64, 64, 1, INTERPRETER) == 64


@pytest.mark.skipif(not interpreting(), reason="the interpreter adds what no kernel here has left")
@pytest.mark.parametrize(
    ("equation", "extents", "operands", "kind"),
    [
        ("zad,zdb->zab", {"z": 3, "a": 88, "b": 200, "d": 1000}, "a", "splits"),
        ("ceda,bed->cba", {"a": 72, "b": 72, "c": 4, "d": 72, "e": 36}, "", "stream_k"),  # some in pairs
    ],
)
def test_partials_are_reduced_as_many_as_there_are_and_without_what_no_output_tile_has(
    equation: str, extents: dict[str, int], operands: str, kind: str
) -> None:
    relu = trace(torch.relu, (torch.float16,))
    contraction = replace(described(equation, extents=extents), **{f"{operand}_fn": relu for operand in operands})
    small = replace(H200, processors=17)
    found = warp_specialized.schedules(contraction, small).schedules
    split = [schedule for schedule in found if isinstance(schedule, WsSchedule) and schedule.splits > 1]
    kinds = {(s.consumers, s.swap_ab, s.stream_k): s for s in split}
    assert any(getattr(schedule, kind) for schedule in split)
    for schedule in kinds.values():
        turned = in_kernel_order(contraction, schedule)
        params = ws_params(turned, schedule, small)
        layout = partials_layout(turned, schedule, params.tma.blocks)
        assert schedule.workspace_bytes == math.prod(layout.shape) * layout.dtype.itemsize, str(schedule)
        whole = Layout.contiguous((layout.shape[0], *schedule.tile[:2]), layout.dtype)
        partials, tiles = torch.full(layout.shape, float("nan")), torch.zeros(whole.shape)
        _, rows, columns = layout.shape
        for number in _stored(params):
            partials[number] = torch.randint(-3, 4, (rows, columns)).float()
            tiles[number, :rows, :columns] = partials[number]
        d, expected = (torch.full(turned.d.shape, float("nan")) for _ in range(2))
        reduce = reduce_launch(turned, params.tma, layout, INTERPRETER, params.stream_k)
        reduce((partials, None, d), 1.0, 0.0)
        reduce_launch(turned, params.tma, whole, INTERPRETER)((tiles, None, expected), 1.0, 0.0)
        assert torch.equal(d, expected), str(schedule)


def _stored(params: WsParams) -> list[int]:
    """Numbers of the partials that are stored: all but those that an output tile does not have."""
    blocks, splits = params.tma.blocks, params.tma.splits
    if params.stream_k is None:
        counts = [splits] * blocks
    else:
        steps, base, longer, abreast = params.stream_k
        starts = [n * base + min(n, longer) for n in range(splits * blocks)]
        firsts = [block // abreast * steps for block in range(blocks)]
        counts = [bisect_right(starts, first + steps - 1) - bisect_right(starts, first) + 1 for first in firsts]
    return [partial * blocks + block for block in range(blocks) for partial in range(counts[block])]
