"""Operands that are stationary in shared memory: where there is room for them, and who has which rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpu.warp_specialized_cases import H200, LARGE_AND_SMALL, described, stationary
from weft.fn import trace
from weft.gpu.common.tiling import D, nearest
from weft.gpu.warp_specialized import family as warp_specialized
from weft.gpu.warp_specialized.schedule import output_tiles
from weft.gpu.warp_specialized.stationary_model import StationarySchedule, stationary_params
from weft.gpu.warp_specialized.views import in_kernel_order


@pytest.mark.parametrize("equation", ["ad,bd->ab", "bd,ad->ba", "db,ce->dbce", "be,dce->bdc"])
def test_subtiles_hold_every_column_once(equation: str) -> None:
    contraction = described(equation)
    for schedule in stationary(contraction):
        params = stationary_params(in_kernel_order(contraction, schedule), schedule, H200)
        taken = [
            column
            for subtiles in params.subtiles
            for subtile in subtiles
            for column in range(subtile.axes[0].first, subtile.axes[0].first + subtile.tile)
        ]
        columns = in_kernel_order(contraction, schedule).n
        assert taken[:columns] == list(range(columns)), str(schedule)
        assert len(taken) == len(set(taken)) < columns + 8, str(schedule)


def test_an_operand_is_stationary_where_shared_memory_has_room_for_it() -> None:
    """328 columns are more than accumulators hold; rows of 1000 are more than shared memory."""
    assert {schedule.swap_ab for schedule in stationary(described("ad,bd->ab"))} == {True}
    assert not stationary(described("af,bf->ab"))
    assert not stationary(described("zad,zbd->zab"))


@pytest.mark.parametrize("equation", ["ad,bd->ab", "be,dce->bdc"])
def test_stationary_operands_leave_room_for_a_pipeline(equation: str) -> None:
    for schedule in stationary(described(equation)):
        tile_m, tile_n, tile_k = schedule.tile
        steps = -(-schedule.k.extent // tile_k)
        assert schedule.stages >= 2, str(schedule)
        stages = schedule.pipelines * schedule.stages
        assert (stages * tile_m + steps * tile_n) * tile_k * 2 < H200.shared_memory, str(schedule)


def test_consumers_have_as_many_warps_as_there_are_registers_for() -> None:
    """Accumulators of 320 columns take 160 registers of each thread, those of 80 take 40."""
    wide, narrow = (stationary(described(text, extents=LARGE_AND_SMALL)) for text in ("ai,gi->ag", "ad,bd->ab"))
    assert {schedule.warps for schedule in wide} == {4}
    assert {schedule.warps for schedule in narrow} == {4, 8}
    assert all(schedule.tile[0] == 16 * schedule.warps for schedule in (*wide, *narrow))


def test_consumers_have_a_pipeline_each_where_shared_memory_has_room() -> None:
    wide, narrow = (stationary(described(text, extents=LARGE_AND_SMALL)) for text in ("ai,gi->ag", "ad,bd->ab"))
    assert {schedule.pipelines for schedule in wide} == {1}
    assert {schedule.pipelines for schedule in narrow} == {1, 2}


@pytest.mark.parametrize(
    ("equation", "extents", "runs"),
    [
        ("dabe,ec->dcba", {**dict.fromkeys("abde", 72), "c": 24}, {128: (16, 8), 64: (16, 4)}),  # 80 x 72 for 72 x 72
        ("chjd,bd->cbjh", LARGE_AND_SMALL, {128: (32, 4), 64: (32, 2)}),  # 32 x 40 for 21 x 40
        ("hjgd,bd->bjgh", {**LARGE_AND_SMALL, "h": 128}, {128: (128, 1), 64: (64, 1)}),  # nothing is left empty
    ],
    ids=["TCCG 5", "short", "whole"],
)
def test_tiles_span_two_runs_where_one_leaves_tiles_empty(
    equation: str, extents: dict[str, int], runs: dict[int, tuple[int, int]]
) -> None:
    contraction = described(equation, extents=extents)
    found = [schedule for schedule in stationary(contraction) if nearest(schedule.a.outer, D) is not None]
    fullest: dict[int, StationarySchedule] = {}
    for schedule in found:
        other = fullest.get(schedule.tile[0])
        if other is None or output_tiles(contraction, schedule) < output_tiles(contraction, other):
            fullest[schedule.tile[0]] = schedule
    assert {tile: (tile // best.a.count, best.a.count) for tile, best in fullest.items()} == runs


@pytest.mark.parametrize("equation", ["chjd,bd->cbjh", "jchd,bd->hbcj"])
def test_rows_of_two_runs_are_every_row_once(equation: str) -> None:
    contraction = described(equation, extents=LARGE_AND_SMALL)
    seen = set()
    for schedule in stationary(contraction):
        rows = stationary_params(contraction, schedule, H200).tma.m
        block, lane = torch.arange(rows.blocks)[:, None], torch.arange(rows.tile)[None, :]
        row, inside = torch.zeros(()), torch.ones((), dtype=torch.bool)
        for axis in rows.axes:
            index = block // axis.pitch % axis.blocks * axis.step + lane // axis.inner % axis.tile
            row, inside = row * axis.extent + index, inside & (index < axis.extent)
        taken = row.expand(rows.blocks, rows.tile)[inside.expand(rows.blocks, rows.tile)]
        assert sorted(taken.tolist()) == list(range(contraction.m)), str(schedule)
        seen.add(schedule.a.count)
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("equation", "extents"),
    [("ae,dcbe->dcba", dict.fromkeys("abcde", 72)), ("cda,bd->cba", {"a": 312, "b": 296, "c": 296, "d": 312})],
    ids=["TCCG 9", "TCCG 18"],
)
def test_functions_hide_behind_memory_where_an_operand_is_stationary(equation: str, extents: dict[str, int]) -> None:
    """The model's choice for a large operand and a result with an ELU each."""
    elu = torch.nn.functional.elu
    plain = described(equation, extents=extents)
    large = "b_fn" if plain.n > plain.m else "a_fn"
    fused = replace(plain, epilogue=trace(elu, (torch.float32,)), **{large: trace(elu, (torch.float16,))})
    found = warp_specialized.schedules(fused, H200).schedules
    best = min(found, key=lambda schedule: warp_specialized.predict(fused, schedule, H200))
    assert isinstance(best, StationarySchedule)
    assert warp_specialized.predict(fused, best, H200) < 1.1 * warp_specialized.predict(plain, best, H200)
