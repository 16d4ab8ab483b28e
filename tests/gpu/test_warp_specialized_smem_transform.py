"""Functions that are applied in shared memory: who has which lines, and when that is offered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gpu.warp_specialized_cases import H200, described, pipelined
from weft.fn import trace
from weft.gpu.common.swap_ab import in_kernel_order
from weft.gpu.tma.schedule import extent, n_parts
from weft.gpu.warp_specialized import family as warp_specialized
from weft.gpu.warp_specialized.model import ws_params
from weft.gpu.warp_specialized.roles import SMEM_TRANSFORM
from weft.gpu.warp_specialized.schedule import WsSchedule


@pytest.mark.parametrize("equation", ["ad,bd->ab", "ad,db->ab", "da,db->ba", "af,bf->ab"])
def test_every_line_is_one_transformers_and_each_cta_has_one_work_tile(equation: str) -> None:
    relu = trace(torch.relu, (torch.float16,))
    contraction = replace(described(equation), a_fn=relu, b_fn=relu)
    found = [schedule for schedule in pipelined(contraction) if schedule.consumers == SMEM_TRANSFORM]
    assert found
    long = trace(torch.nn.functional.gelu, (torch.float16,))
    for other in (described(equation), replace(contraction, b_fn=None), replace(contraction, a_fn=long)):
        assert not [schedule for schedule in pipelined(other) if schedule.consumers == SMEM_TRANSFORM]
    for schedule in found:
        params = ws_params(in_kernel_order(contraction, schedule), schedule, H200)
        assert params.tiles * params.tma.splits == params.tma.programs, str(schedule)
        runs = [run for runs in params.transforms for run in runs]
        assert all(run.first % run.lines == 0 and run.lines.bit_count() == 1 for run in runs), str(schedule)
        lines = [(run.part, line) for run in runs for line in range(run.first, run.first + run.lines)]
        assert len(lines) == len(set(lines)), str(schedule)
        wide, *narrow = n_parts(schedule.tile[1])
        counts = [sum(part == at for part, _ in lines) for at in range(2)]
        if not schedule.b.along_k:
            assert counts == [schedule.tile[2], schedule.tile[2] if narrow else 0], str(schedule)
        elif narrow:  # columns past the last one need no function
            there = min(narrow[0], extent(schedule.b.outer) - wide)
            assert counts[0] == wide, str(schedule)
            assert there <= counts[1] <= narrow[0], str(schedule)
        else:
            assert counts == [wide, 0], str(schedule)


@pytest.mark.parametrize("function", [torch.relu, torch.nn.functional.leaky_relu, torch.nn.functional.elu])
def test_functions_of_long_sums_are_applied_in_shared_memory_as_that_was_timed_to_be_faster(
    function: Callable[..., torch.Tensor],
) -> None:
    """TCCG 13 tuned on an H200, at 7c336cf: 57.4, 58.7, 63.3 us; the other way 61.2, 61.5, 76.2."""
    contraction = described("dca,cbd->ba", extents={"a": 312, "b": 296, "c": 296, "d": 312})
    of_half, of_single = trace(function, (torch.float16,)), trace(function, (torch.float32,))
    contraction = replace(contraction, a_fn=of_half, b_fn=of_half, epilogue=of_single)
    best = min(pipelined(contraction), key=lambda schedule: warp_specialized.predict(contraction, schedule, H200))
    assert best.consumers == SMEM_TRANSFORM, str(best)


@pytest.mark.parametrize("equation", ["dca,cbd->ba", "cad,cbd->ba", "dca,cdb->ab"])
@pytest.mark.parametrize("c", [200, 296])
def test_the_last_rows_may_have_fewer_partials_and_every_partial_has_steps(equation: str, c: int) -> None:
    relu = trace(torch.relu, (torch.float16,))
    extents = {"a": 312, "b": 296, "c": c, "d": 312}
    contraction = replace(described(equation, extents=extents), a_fn=relu, b_fn=relu)
    found = [schedule for schedule in pipelined(contraction) if schedule.consumers == SMEM_TRANSFORM]
    uneven = [schedule for schedule in found if schedule.tail_splits]
    assert uneven
    for schedule in uneven:
        params = ws_params(in_kernel_order(contraction, schedule), schedule, H200)
        even = next(s for s in found if replace(s, splits=0, workspace_bytes=0) == replace(
            schedule, splits=0, tail_splits=0, workspace_bytes=0) and s.splits > 1)  # fmt: skip
        steps = ws_params(in_kernel_order(contraction, even), even, H200).tma.steps
        assert params.tma.steps < steps < params.tail_splits.steps, str(schedule)
        total = -(-schedule.k.extent // 64) * (contraction.k // schedule.k.extent)
        for splits, each in ((schedule.splits, params.tma.steps), (schedule.tail_splits, params.tail_splits.steps)):
            assert splits * (each - 1) < total <= splits * each, str(schedule)  # none is empty: they take steps in turn
            blocks = max(axis.pitch * axis.blocks for axis in params.tma.k.axes)
            assert blocks >= splits * each, str(schedule)  # past the end of k, where zeros are read
        others = (params.tiles - 1) * schedule.splits
        assert params.tma.programs == others + schedule.tail_splits <= H200.processors, str(schedule)
        assert str(schedule).count(f"split_k={schedule.splits}/{schedule.tail_splits}") == 1


@pytest.mark.parametrize(
    ("a", "b", "c", "offered"),
    [
        (320, 296, 296, True),
        (328, 296, 296, False),  # the second consumer has 8 of the last rows
        (312, 400, 296, False),  # two output tiles have the last rows
        (64, 296, 296, False),  # there are no others
        (312, 296, 40, False),  # so few steps cannot be split any finer
    ],
)
def test_the_last_rows_have_fewer_partials_only_where_half_a_tile_has_none(
    a: int, b: int, c: int, offered: bool
) -> None:
    relu = trace(torch.relu, (torch.float16,))
    contraction = replace(described("dca,cbd->ba", extents={"a": a, "b": b, "c": c, "d": 312}), a_fn=relu, b_fn=relu)
    straight = [s for s in pipelined(contraction) if s.consumers == SMEM_TRANSFORM and not s.swap_ab]
    assert any(schedule.tail_splits for schedule in straight) == offered


@pytest.mark.parametrize("kilobytes", [112, 128, 160, 224])
def test_there_are_three_stages_or_more(kilobytes: int) -> None:
    relu = trace(torch.relu, (torch.float16,))
    contraction = replace(described("ad,bd->ab"), a_fn=relu, b_fn=relu)
    found = warp_specialized.schedules(contraction, replace(H200, shared_memory=kilobytes << 10)).schedules
    stages = [s.stages for s in found if isinstance(s, WsSchedule) and s.consumers == SMEM_TRANSFORM]
    assert all(count >= 3 for count in stages)
    assert bool(stages) == (kilobytes >= 160)
