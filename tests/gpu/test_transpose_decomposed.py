"""Decompositions of rectangular matrices: each of them, what they leave over, and the choice among them."""

from __future__ import annotations

import pytest
import torch

from permuting import any_bits, same_bits
from support import Backend
from weft.gpu.transpose.family import TransposeSchedule, best_decomposition, decomposed_, workspace_bytes
from weft.testing import poisoned

Shape = tuple[int, int]

SCHEDULES: list[tuple[Shape, TransposeSchedule]] = [
    ((12, 18), TransposeSchedule("squares", 6)),
    ((18, 12), TransposeSchedule("squares", 3)),
    ((7, 21), TransposeSchedule("squares", 7)),
    ((7, 9), TransposeSchedule("squares", 1)),
    ((40, 64), TransposeSchedule("squares", 8)),
    ((24, 35), TransposeSchedule("row panels", 8)),
    ((37, 3), TransposeSchedule("row panels", 8)),  # rows are left over
    ((3, 50), TransposeSchedule("row panels", 2)),
    ((40, 17), TransposeSchedule("row panels", 17)),
    ((23, 31), TransposeSchedule("row panels", 23)),  # one panel
    ((41, 30), TransposeSchedule("row panels", 1)),  # of one row
    ((35, 24), TransposeSchedule("column panels", 6)),
    ((3, 100), TransposeSchedule("column panels", 16)),  # columns are left over
    ((41, 5), TransposeSchedule("column panels", 2)),
    ((14, 25), TransposeSchedule("column panels", 7)),
    ((45, 70), TransposeSchedule("column panels", 33)),
]


@pytest.mark.parametrize(("shape", "schedule"), SCHEDULES, ids=[f"{each.kind} {s[0]}x{s[1]}" for s, each in SCHEDULES])
class TestDecomposed:
    def check(
        self,
        shape: Shape,
        schedule: TransposeSchedule,
        dtype: torch.dtype,
        backend: Backend,
        step: int,
        workspace: int,
    ) -> None:
        rows, columns = shape
        guarded = poisoned(shape, dtype, strides=(columns * step, step), device=backend.device)
        x = guarded.tensor
        x.copy_(any_bits(shape, dtype, 4))
        expected = x.T.clone()
        seen = x if dtype.is_complex else x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(x.itemsize))
        decomposed_(seen, schedule, workspace, 1)
        guarded.check_guards()
        assert same_bits(x.as_strided((columns, rows), (rows * step, step), x.storage_offset()), expected)

    @pytest.mark.one_of(3)
    @pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.complex128], ids=str)
    def test_bits(self, shape: Shape, schedule: TransposeSchedule, dtype: torch.dtype, triton_backend: Backend) -> None:
        self.check(shape, schedule, dtype, triton_backend, 1, 1 << 20)

    @pytest.mark.one_of(3)
    def test_a_step_between_elements(self, shape: Shape, schedule: TransposeSchedule, triton_backend: Backend) -> None:
        self.check(shape, schedule, torch.int32, triton_backend, 2, 1 << 20)

    @pytest.mark.one_of(3)
    @pytest.mark.parametrize("workspace", [40, 500])
    def test_workspaces_of_a_few_elements(
        self, shape: Shape, schedule: TransposeSchedule, workspace: int, triton_backend: Backend
    ) -> None:
        """Slots in slices."""
        self.check(shape, schedule, torch.float32, triton_backend, 1, workspace)

    @pytest.mark.one_of(3)
    def test_alpha(self, shape: Shape, schedule: TransposeSchedule, triton_backend: Backend) -> None:
        x = torch.randint(-30, 31, shape, generator=torch.Generator().manual_seed(5)).half()
        expected = (-2.5 * x).T
        seen = x.to(triton_backend.device)
        decomposed_(seen, schedule, 1 << 20, -2.5)
        assert torch.equal(seen.cpu().view(shape[::-1]), expected)


class TestChoice:
    SHAPES = ((1000, 9000), (10000, 300), (4096, 12288), (10007, 301), (3001, 7001), (4096, 12289), (10**7, 3))

    @pytest.mark.one_of(3)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
    @pytest.mark.parametrize("tall", [True, False])
    def test_squares_divide_and_panels_fit(self, shape: Shape, itemsize: int, tall: bool) -> None:
        rows, columns = shape if tall else shape[::-1]
        workspace = workspace_bytes(rows * columns * itemsize)
        kind, side = best_decomposition(rows, columns, itemsize, workspace)
        if kind == "squares":
            assert rows % side == columns % side == 0
            return
        divided, other = (rows, columns) if kind == "row panels" else (columns, rows)
        assert 0 < side <= divided
        assert divided % side * other * itemsize <= workspace // 4
        assert (side + divided % side) * other * itemsize <= workspace

    @pytest.mark.parametrize(
        ("shape", "side"), [((1000, 9000), 1000), ((10000, 300), 100), ((300, 10000), 100), ((4096, 12288), 4096)]
    )
    def test_a_large_common_divisor_makes_squares(self, shape: Shape, side: int) -> None:
        assert best_decomposition(*shape, 4, workspace_bytes(shape[0] * shape[1] * 4)) == ("squares", side)

    def test_panels_are_of_whole_accesses_where_they_can_be(self) -> None:
        for rows, columns, itemsize in ((4096, 12289, 4), (8000, 4001, 2), (100003, 4096, 4)):
            kind, side = best_decomposition(rows, columns, itemsize, workspace_bytes(rows * columns * itemsize))
            divided = rows if kind == "row panels" else columns
            assert divided % 2 or side * itemsize % 16 == 0

    def test_workspace_is_a_small_part_and_bounded(self) -> None:
        assert workspace_bytes(1) == 8 << 20
        assert workspace_bytes(128 << 20) == 16 << 20
        assert workspace_bytes(1 << 40) == 32 << 20
