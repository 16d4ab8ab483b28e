"""Every way in which the CPU backend may carry out a permutation, and the blocks that it cuts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import weft
from permuting import DTYPES, any_bits, bits, same_bits
from weft.cpu import permute as room
from weft.cpu.permute_blocks import cut, units
from weft.cpu.shuffle import exchanged
from weft.planner.schedule import Target
from weft.spec.permutation import Permutation
from weft.testing import poisoned, random_operand

TWO_CORES = Target("cpu", name="CPU", processors=2)
CASES = [
    ("ab->ba", (67, 45)),
    ("abc->cba", (19, 18, 17)),
    ("abc->bac", (13, 17, 6)),
    ("abc->bac", (13, 17, 5)),
    ("abcd->dbca", (9, 6, 5, 11)),
    ("abc->acb", (5, 33, 31)),
    ("abcdef->fedcba", (4, 3, 5, 3, 4, 5)),
    ("aab->ba", (21, 21, 9)),
]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few elements, so that small tensors have many of them, ragged ones too; always two workers."""
    monkeypatch.setattr(room, "RUNS", ((64, 256), (256, 64), (16, 16)))
    monkeypatch.setattr(room, "BLOCKS", (512, 4096))
    monkeypatch.setattr(room, "WORTH_SHARING", 0)


def every_way(permutation: Permutation) -> Iterator[room.PermuteSchedule]:
    assert room.supports(permutation, TWO_CORES) is None
    found = room.schedules(permutation, TWO_CORES)
    assert found.schedules
    for schedule in found.schedules:
        assert room.predict(permutation, schedule, TWO_CORES) > 0
        assert isinstance(schedule, room.PermuteSchedule)
        yield schedule


@pytest.mark.parametrize(("equation", "shape"), CASES, ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128], ids=str
)
@pytest.mark.usefixtures("small_blocks")
def test_every_way_moves_every_bit(equation: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = any_bits(shape, dtype, 1)
    expected = weft.reference.permute(equation, x)
    guarded = poisoned(tuple(expected.shape), dtype, layout="padded")
    permutation = weft.plan_permute(x, equation, out=guarded.tensor).permutation
    ways = set()
    for schedule in every_way(permutation):
        guarded.tensor.zero_()
        room.build(permutation, schedule, TWO_CORES)(x, None, guarded.tensor, 1, 0)
        assert same_bits(guarded.tensor, expected), str(schedule)
        guarded.check_guards()
        ways.add(schedule.way)
    assert {"straight", "gather"} <= ways
    assert "shuffle" in ways or dtype.itemsize not in (2, 4)


@pytest.mark.parametrize(("equation", "shape"), CASES[:5], ids=str)
@pytest.mark.usefixtures("small_blocks")
def test_every_way_computes_the_same(equation: str, shape: tuple[int, ...]) -> None:
    """A function, a cast to a wider type, scaling and accumulation, in whole numbers."""
    x = random_operand(shape, torch.float16, 1, integers=True)
    expected = weft.reference.permute(equation, x, fn=lambda v: v * v - 1, out_dtype=torch.float64)
    out = torch.ones_like(expected)
    plan = weft.plan_permute(x, equation, fn=lambda v: v * v - 1, c=out, out=out, alpha=2, beta=3)
    for schedule in every_way(plan.permutation):
        assert schedule.way != "straight"
        out.fill_(5)
        room.build(plan.permutation, schedule, TWO_CORES)(x, out, out, 2.0, 3.0)
        assert torch.equal(out, 2 * expected + 15), str(schedule)


@pytest.mark.usefixtures("small_blocks")
def test_repeated_modes_are_written_from_one_block() -> None:
    x = any_bits((40, 30), torch.float32, 2)
    expected = x.T[:, None].expand(30, 3, 40)
    permutation = weft.plan_permute(x, "ab->bca", extents={"c": 3}).permutation
    for schedule in every_way(permutation):
        out = torch.zeros(30, 3, 40)
        room.build(permutation, schedule, TWO_CORES)(x, None, out, 1, 0)
        assert same_bits(out, expected), str(schedule)
        if schedule.blocks is not None:
            assert schedule.blocks.size(schedule.blocks.repeated) == 3
            assert not set(schedule.blocks.repeated) & set(schedule.blocks.read_order)


class TestWords:
    """What is moved in one word."""

    @pytest.mark.parametrize(
        ("shape", "dtype", "word", "extents"),
        [
            ((5, 6, 8), torch.float16, 16, [6, 5]),
            ((5, 6, 4), torch.float16, 8, [6, 5]),
            ((5, 6, 6), torch.float16, 4, [6, 5, 3]),
            ((5, 6, 7), torch.float16, 2, [6, 5, 7]),
            ((5, 6, 16), torch.uint8, 16, [6, 5]),
            ((5, 6, 2), torch.float64, 16, [6, 5]),
            ((5, 6, 32), torch.float32, 16, [6, 5, 8]),
            ((5, 6, 3), torch.complex128, 16, [6, 5, 3]),
        ],
        ids=str,
    )
    def test_neighbours_that_stay_together(
        self, shape: tuple[int, ...], dtype: torch.dtype, word: int, extents: list[int]
    ) -> None:
        found = units(weft.plan_permute(torch.empty(shape, dtype=dtype), "abc->bac").permutation)
        assert found.dtype.itemsize == word
        assert [mode.extent for mode in found.modes] == extents

    def test_not_where_they_are_computed_with_or_start_between_words(self) -> None:
        x = torch.empty(5, 6, 8)
        cast = weft.plan_permute(x, "abc->bac", out_dtype=torch.float64).permutation
        assert units(cast).dtype is torch.float32
        late = torch.empty(241)[1:].view(5, 6, 8)
        assert units(weft.plan_permute(late, "abc->bac").permutation).dtype is torch.float32
        odd = torch.empty(5, 6, 9)[:, :, :8]
        assert units(weft.plan_permute(odd, "abc->bac").permutation).dtype is torch.float32


class TestBlocks:
    def test_runs_reach_whole_lines_on_both_sides(self) -> None:
        moved = units(weft.plan_permute(torch.empty(512, 512, 512), "abc->cba").permutation)
        blocks = cut(moved.modes, 4, (256, 1024), 1 << 20, repeats=True)
        assert blocks.size(blocks.columns) * 4 >= 256
        assert blocks.size(blocks.rows) * 4 >= 1024
        assert blocks.size(blocks.read_order) * 4 <= 1 << 20

    def test_many_small_modes_make_one_run(self) -> None:
        x = torch.empty((2,) * 20)
        moved = units(weft.plan_permute(x, (range(20), range(19, -1, -1))).permutation)
        blocks = cut(moved.modes, 4, (256, 1024), 1 << 20, repeats=True)
        assert blocks.size(blocks.columns) == 64
        assert blocks.size(blocks.rows) >= 256
        assert not set(blocks.columns) & set(blocks.rows)

    def test_a_middle_mode_serves_both_runs(self) -> None:
        moved = units(weft.plan_permute(torch.empty(4, 4096, 4), "abc->cba").permutation)
        blocks = cut(moved.modes, 4, (256, 256), 1 << 16, repeats=True)
        assert blocks.size(blocks.read_order) == 4 * 4 * blocks.tile[1]
        assert blocks.tile[1] >= 16

    def test_workspace_is_bounded(self) -> None:
        for permutation in (
            weft.plan_permute(torch.empty(1 << 11, 1 << 11, 4), "abc->cba").permutation,
            weft.plan_permute(torch.empty(1 << 22, dtype=torch.float16), "a->a", fn=torch.exp).permutation,
        ):
            for schedule in every_way(permutation):
                assert schedule.workspace_bytes <= 2 * 4 * (1 << 20)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype is not torch.bool], ids=str)
@pytest.mark.parametrize(
    ("batch", "rows", "columns", "run"), [(3, 5, 7, 1), (2, 16, 33, 1), (4, 3, 5, 3), (1, 1, 9, 2)]
)
def test_exchange(batch: int, rows: int, columns: int, run: int, dtype: torch.dtype) -> None:
    x = any_bits((batch, rows, columns, run), dtype, 3)
    found = exchanged(x.reshape(-1), rows, columns, run)
    assert torch.equal(bits(found), bits(x.transpose(1, 2)))


def test_other_devices_are_left_alone() -> None:
    permutation = weft.plan_permute(torch.empty(4, 5), "ab->ba").permutation
    assert room.supports(permutation, Target("cuda")) is not None
