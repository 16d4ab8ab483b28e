"""Slots that change places along cycles: the tables, and the kernel that follows them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from permuting import any_bits
from support import Backend
from weft.gpu.transpose.family import Slots, cycle_order, move_launch, move_slots_, move_tables
from weft.planner.target import target_of
from weft.spec import Layout
from weft.testing import poisoned

ORDERS = [(1, 5, 3), (4, 1, 9), (3, 4, 5), (1, 40, 7), (16, 1, 16), (2, 1, 2), (1, 3, 1), (1, 1, 1), (7, 64, 3)]


def source_of(order: tuple[int, int, int]) -> np.ndarray:
    """Where each slot of [B][q][A] comes from in [A][q][B]."""
    return np.arange(np.prod(order)).reshape(order).transpose(2, 1, 0).reshape(-1)


def permutations() -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    one_cycle = [np.roll(np.arange(count), 1) for count in (2, 3, 63, 64, 65, 1000)]
    pairs = [np.arange(count)[::-1].copy() for count in (2, 17, 1000)]
    mixed = [generator.permutation(count) for count in (1, 5, 64, 1000, 5000) for _ in range(3)]
    return [*one_cycle, *pairs, *mixed, np.arange(20), *(source_of(order) for order in ORDERS)]


class TestCycles:
    def test_every_moving_element_stands_behind_the_one_it_moves_to(self) -> None:
        for source in permutations():
            order = cycle_order(source)
            assert sorted(order) == np.flatnonzero(source != np.arange(source.size)).tolist()
            breaks = [k for k in range(len(order)) if k + 1 == len(order) or source[order[k]] != order[k + 1]]
            start = 0
            for stop in breaks:
                assert source[order[stop]] == order[start], "a cycle is left before it is closed"
                start = stop + 1

    @pytest.mark.parametrize("group", [1, 4, 16])
    def test_groups_may_run_in_any_order(self, group: int) -> None:
        generator = np.random.default_rng(2)
        for source in permutations():
            saving, moving = move_tables(source, group)
            before = generator.integers(0, 1 << 40, source.size)
            kept = {target: before[at] for target, at in saving if target != at}
            after = before.copy()
            for start in generator.permutation(np.arange(0, len(moving), group)):
                moves = [(target, at) for target, at in moving[start : start + group] if target != at]
                values = [kept[at] if at < 0 else after[at] for _, at in moves]
                for (target, _), value in zip(moves, values, strict=True):
                    after[target] = value
            assert np.array_equal(after, before[source])

    def test_few_are_saved(self) -> None:
        """About one of each group: two at most."""
        for order in ((1, 1000, 9), (100, 100, 3), (1, 4096, 3), (64, 1, 1009), (1024, 1, 1024)):
            saving, _ = move_tables(source_of(order), 16)
            assert len(saving) <= np.prod(order) / 8


class TestSlots:
    @pytest.mark.parametrize("order", ORDERS, ids=str)
    @pytest.mark.parametrize("side", [1, 7, 64])
    def test_orders(self, order: tuple[int, int, int], side: int, triton_backend: Backend) -> None:
        self.check(order, side, torch.int32, 1, 1 << 20, triton_backend)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128], ids=str)
    @pytest.mark.parametrize("step", [1, 3])
    def test_words(self, dtype: torch.dtype, step: int, triton_backend: Backend) -> None:
        self.check((5, 4, 3), 37, dtype, step if dtype.itemsize <= 8 else 1, 1 << 20, triton_backend)

    @pytest.mark.parametrize("workspace", [0, 100, 300])
    def test_slices(self, workspace: int, triton_backend: Backend) -> None:
        """A workspace of less than all that is saved, down to a word of each."""
        self.check((8, 3, 5), 41, torch.int32, 1, workspace, triton_backend)

    @pytest.mark.parametrize("gap", [1, 5])
    def test_gaps_behind_rows_of_slots(self, gap: int, triton_backend: Backend) -> None:
        for order in ((4, 1, 9), (9, 1, 4)):
            self.check(order, 13, torch.int16, 1, 300, triton_backend, 4, gap)

    def check(
        self, order: tuple[int, int, int], side: int, dtype: torch.dtype, step: int, workspace: int, backend: Backend,
        per_row: int = 1, gap: int = 0,
    ) -> None:  # fmt: skip
        count = int(np.prod(order))
        rows, row = count // per_row, per_row * side + gap
        guarded = poisoned((rows, row), dtype, strides=(row * step, step), device=backend.device)
        before = any_bits((rows, row), dtype, 3)
        guarded.tensor.copy_(before)
        move_slots_(guarded.tensor, Slots.of(rows, row, side), order, workspace)
        guarded.check_guards()
        after = guarded.tensor.cpu()
        found, had = (each[:, : row - gap].reshape(count, side) for each in (after, before))
        seen = [torch.view_as_real(each).view(torch.int64) if dtype.is_complex else each for each in (found, had)]
        assert torch.equal(seen[0], seen[1][torch.from_numpy(source_of(order))])
        assert torch.equal(after[:, row - gap :], before[:, row - gap :])

    def test_past_32_bits(self) -> None:
        """Slots 2^29 words apart, of which only the first few words are touched."""
        memory = torch.empty(6 * 2**29, dtype=torch.uint8)
        rows = memory.as_strided((6, 8), (2**29, 1))
        before = torch.arange(48, dtype=torch.uint8).view(6, 8)
        rows.copy_(before)
        saved = torch.empty(2 * 8 * 8, dtype=torch.uint8)
        for moves in map(torch.from_numpy, move_tables(source_of((2, 1, 3)), 8)):
            slots, target = Slots(6, 2**29, 2**29, 1), target_of("triton", memory.device)
            launch = move_launch(Layout.of(memory), slots, 8, 8, len(saved) // 8, len(moves), target)
            launch((memory, saved, moves), 0, 0)
        assert torch.equal(rows, before[[0, 3, 1, 4, 2, 5]])
