"""Super-elements that change places along cycles: the tables, and the kernels that follow them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from permuting import any_bits
from support import Backend
from weft.gpu.transpose.family import move_super_elements_
from weft.gpu.transpose.model import cycle_order, cycle_tables
from weft.testing import poisoned

ORDERS = [(1, 5, 3), (4, 1, 9), (3, 4, 5), (1, 40, 7), (16, 1, 16), (2, 1, 2), (1, 3, 1), (1, 1, 1), (7, 64, 3)]


def source_of(order: tuple[int, int, int]) -> np.ndarray:
    """Where each super-element of [B][q][A] comes from in [A][q][B]."""
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
            found = cycle_tables(source, group)
            before = generator.integers(0, 1 << 40, source.size)
            saved = before[found.saved]
            after = before.copy()
            for start in generator.permutation(np.arange(0, found.target.size, group)):
                target, wanted = found.target[start : start + group], found.source[start : start + group]
                values = [saved[-1 - at] if at < 0 else after[at] for at in wanted]
                for at, value in zip(target, values, strict=True):
                    if at >= 0:
                        after[at] = value
            assert np.array_equal(after, before[source])

    def test_few_are_saved(self) -> None:
        """About one of each group: two at most."""
        for order in ((1, 1000, 9), (100, 100, 3), (1, 4096, 3), (64, 1, 1009), (1024, 1, 1024)):
            found = cycle_tables(source_of(order), 16)
            assert np.count_nonzero(found.saved >= 0) <= np.prod(order) / 8


class TestSuperElements:
    @pytest.mark.parametrize("order", ORDERS, ids=str)
    @pytest.mark.parametrize("length", [1, 7, 64])
    def test_orders(self, order: tuple[int, int, int], length: int, triton_backend: Backend) -> None:
        self.check(order, length, torch.int32, 1, 1 << 20, triton_backend)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
    @pytest.mark.parametrize("step", [1, 3])
    def test_words(self, dtype: torch.dtype, step: int, triton_backend: Backend) -> None:
        self.check((5, 4, 3), 37, dtype, step, 1 << 20, triton_backend)

    @pytest.mark.parametrize("workspace", [0, 100, 300])
    def test_slices(self, workspace: int, triton_backend: Backend) -> None:
        """A workspace of less than all that is saved, down to a word of each."""
        self.check((8, 3, 5), 41, torch.int32, 1, workspace, triton_backend)

    def check(
        self, order: tuple[int, int, int], length: int, dtype: torch.dtype, step: int, workspace: int, backend: Backend
    ) -> None:
        count = int(np.prod(order))
        guarded = poisoned((count, length), dtype, strides=(length * step, step), device=backend.device)
        before = any_bits((count, length), dtype, 3)
        guarded.tensor.copy_(before)
        move_super_elements_(guarded.tensor, order, workspace)
        guarded.check_guards()
        assert torch.equal(guarded.tensor.cpu(), before[torch.from_numpy(source_of(order))])

    def test_past_32_bits(self) -> None:
        """Super-elements 2^29 words apart, of which only the first few words are touched."""
        memory = torch.empty(6 * 2**29, dtype=torch.uint8)
        rows = memory.as_strided((6, 8), (2**29, 1))
        before = torch.arange(48, dtype=torch.uint8).view(6, 8)
        rows.copy_(before)
        move_super_elements_(rows, (2, 1, 3), 1 << 20)
        assert torch.equal(rows, before[[0, 3, 1, 4, 2, 5]])
