"""Decompositions of rectangular matrices: each of them, the padding that they leave, and the choice among them."""

from __future__ import annotations

import pytest
import torch

from permuting import any_bits, same_bits
from support import Backend
from weft.gpu.transpose import family, model
from weft.gpu.transpose.family import decomposed_
from weft.gpu.transpose.model import SlideParams, TransposeSchedule, best, slide_params, workspace_bytes
from weft.testing import poisoned

Shape = tuple[int, int]

SCHEDULES: list[tuple[Shape, TransposeSchedule]] = [
    ((12, 18), TransposeSchedule("squares", 12, 18, 6, 0.0)),
    ((18, 12), TransposeSchedule("squares", 18, 12, 3, 0.0)),
    ((7, 21), TransposeSchedule("squares", 7, 21, 7, 0.0)),
    ((7, 9), TransposeSchedule("squares", 7, 9, 1, 0.0)),
    ((14, 25), TransposeSchedule("squares", 14, 21, 7, 0.0)),  # columns are left over
    ((40, 17), TransposeSchedule("squares", 34, 17, 17, 0.0)),  # rows are
    ((23, 31), TransposeSchedule("squares", 21, 28, 7, 0.0)),  # both are
    ((45, 70), TransposeSchedule("squares", 40, 64, 8, 0.0)),
    ((24, 35), TransposeSchedule("row panels", 24, 35, 8, 0.0)),
    ((37, 3), TransposeSchedule("row panels", 32, 3, 8, 0.0)),
    ((3, 50), TransposeSchedule("row panels", 2, 50, 2, 0.0)),
    ((35, 24), TransposeSchedule("column panels", 35, 24, 6, 0.0)),
    ((3, 100), TransposeSchedule("column panels", 3, 96, 16, 0.0)),
    ((41, 5), TransposeSchedule("column panels", 41, 4, 2, 0.0)),
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

    def test_a_step_between_elements(self, shape: Shape, schedule: TransposeSchedule, triton_backend: Backend) -> None:
        for dtype in (torch.int32, torch.complex128):
            self.check(shape, schedule, dtype, triton_backend, 2, 1 << 20)

    @pytest.mark.parametrize("workspace", [40, 500])
    def test_workspaces_of_a_few_elements(
        self, shape: Shape, schedule: TransposeSchedule, workspace: int, triton_backend: Backend
    ) -> None:
        """Many rounds, rows cut, super-elements in slices."""
        left = (shape[0] * shape[1] - schedule.rows * schedule.columns) * 4
        self.check(shape, schedule, torch.float32, triton_backend, 1, left + workspace)

    def test_alpha(self, shape: Shape, schedule: TransposeSchedule, triton_backend: Backend) -> None:
        x = torch.randint(-30, 31, shape, generator=torch.Generator().manual_seed(5)).half()
        expected = (-2.5 * x).T
        seen = x.to(triton_backend.device)
        decomposed_(seen, schedule, 1 << 20, -2.5)
        assert torch.equal(seen.cpu().view(shape[::-1]), expected)


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many programs for few elements."""
    monkeypatch.setattr(model, "_SLIDE_BYTES", 64)
    monkeypatch.setattr(model, "LEAST_SLIDING", 2)
    monkeypatch.setattr(model, "MOST_SLIDING", 9)


@pytest.mark.usefixtures("short_segments")
class TestPadding:
    """Rows that slide. The interpreter runs programs in the order in which each spoils the next."""

    @pytest.mark.parametrize("insert", [False, True])
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32], ids=str)
    @pytest.mark.parametrize("step", [1, 2])
    def test_rows(self, insert: bool, dtype: torch.dtype, step: int, triton_backend: Backend) -> None:
        several = 0
        for rows, columns, gap in ((2, 90, 1), (40, 13, 1), (7, 60, 9), (60, 3, 2), (3, 90, 20)):
            found = slide_params(rows, columns, gap, step, dtype.itemsize, 1 << 16, insert=insert)
            assert found is not None
            several += found.programs > 2
            guarded = poisoned((rows * (columns + gap),), dtype, strides=(step,), device=triton_backend.device)
            memory = guarded.tensor
            memory.copy_(any_bits(memory.shape, dtype, 9))
            dense, padded = (
                memory.as_strided((rows, columns), (pitch * step, step), memory.storage_offset())
                for pitch in (columns, columns + gap)
            )
            expected = (dense if insert else padded).clone()
            family.slide_(memory, found)
            guarded.check_guards()
            assert torch.equal(padded if insert else dense, expected), (rows, columns, gap)
        assert several

    def test_wide_padding_is_left_to_the_workspace(self) -> None:
        assert slide_params(100, 100, 90, 1, 4, 4000, insert=False) is None

    @pytest.mark.parametrize("shape", [(23, 31), (40, 17), (14, 25)], ids=str)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
    @pytest.mark.parametrize("step", [1, 2])
    def test_within_a_transposition(
        self,
        shape: Shape,
        dtype: torch.dtype,
        step: int,
        monkeypatch: pytest.MonkeyPatch,
        triton_backend: Backend,
    ) -> None:
        slid: list[bool] = []
        slide = family.slide_

        def counted(words: torch.Tensor, found: SlideParams) -> None:
            slid.append(found.insert)
            slide(words, found)

        monkeypatch.setattr(family, "slide_", counted)
        schedule = next(each for given, each in SCHEDULES if given == shape)
        TestDecomposed().check(shape, schedule, dtype, triton_backend, step, 1 << 20)
        left = {True: schedule.rows < shape[0], False: schedule.columns < shape[1]}
        assert set(slid) == {insert for insert in left if left[insert]}


class TestChoice:
    SHAPES = ((1000, 9000), (10000, 300), (4096, 12288), (10007, 301), (3001, 7001), (4096, 12289), (10**7, 3))

    @pytest.mark.one_of(3)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
    @pytest.mark.parametrize("tall", [True, False])
    def test_parts_are_whole_and_the_rest_fits(self, shape: Shape, itemsize: int, tall: bool) -> None:
        rows, columns = shape if tall else shape[::-1]
        workspace = workspace_bytes(rows * columns * itemsize)
        found = best(rows, columns, itemsize, workspace)
        kept = (rows * columns - found.rows * found.columns) * itemsize
        assert 0 < found.rows <= rows
        assert 0 < found.columns <= columns
        assert found.kind == "column panels" or found.rows % found.side == 0
        assert found.kind == "row panels" or found.columns % found.side == 0
        room = workspace - kept
        assert found.kind != "row panels" or (found.columns == columns and found.side * columns * itemsize <= room)
        assert found.kind != "column panels" or (found.rows == rows and found.side * rows * itemsize <= room)
        assert kept <= workspace // 4

    @pytest.mark.parametrize(
        ("shape", "side"), [((1000, 9000), 1000), ((10000, 300), 100), ((300, 10000), 100), ((4096, 12288), 4096)]
    )
    def test_a_large_common_divisor_makes_squares(self, shape: Shape, side: int) -> None:
        found = best(*shape, 4, workspace_bytes(shape[0] * shape[1] * 4))
        assert (found.kind, found.rows, found.columns, found.side) == ("squares", *shape, side)

    def test_workspace_is_a_small_part_and_bounded(self) -> None:
        assert workspace_bytes(1) == 8 << 20
        assert workspace_bytes(128 << 20) == 16 << 20
        assert workspace_bytes(1 << 40) == 32 << 20
