"""Blocks that are the sum of two powers of two along n: both parts are computed, finished and stored where they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from weft.kernels import boxes
from weft.kernels.boxes_schedule import BoxesSchedule, parts
from weft.plan.schedule import Target
from weft.spec import Contraction, Layout, canonical, parse
from weft.spec.arithmetic import resolve
from weft.spec.contraction import class_modes

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
INTERPRETER = Target("interpreter", 0, "Triton interpreter", 90, 4, 232448)


def described(
    equation: str,
    extents: dict[str, int],
    dtype: torch.dtype = torch.float16,
    out: torch.dtype = torch.float32,
    precision: str | None = None,
    **given: object,
) -> Contraction:
    notation = parse(equation)
    a, b = (Layout.contiguous([extents[label] for label in term], dtype) for term in notation.inputs)
    d = Layout.contiguous([extents[label] for label in notation.output], out)
    modes = class_modes(notation, a, b, None, d, extents)
    return canonical(Contraction(modes, a, b, None, d, resolve(dtype, dtype, precision), text=equation, **given))  # type: ignore[arg-type]


def composite(contraction: Contraction, columns: int, depth: int = 32, splits: int = 1) -> BoxesSchedule:
    """A schedule with blocks that many columns wide."""
    whole = boxes.schedules(contraction, INTERPRETER).schedules[0]
    return replace(whole, tile=(64, columns, depth), splits=splits)


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(sum(shape))).half()


@pytest.mark.parametrize(
    ("columns", "found"), [(256, (256,)), (320, (256, 64)), (80, (64, 16)), (72, (64, 8)), (192, (128, 64))]
)
def test_a_tile_is_the_sum_of_powers_of_two(columns: int, found: tuple[int, ...]) -> None:
    assert parts(columns) == found


@pytest.mark.parametrize(
    ("equation", "columns", "splits"),
    [
        ("ad,bd->ab", 80, 1), ("ad,bd->ab", 40, 2), ("da,db->ab", 96, 1), ("da,db->ab", 80, 2), ("dca,bd->cba", 80, 1),
        ("zad,zdb->zab", 48, 1), ("zad,zdb->zba", 48, 2), ("ad,cdb->bac", 80, 1), ("ad,cdb->acb", 40, 2),
    ],
)  # fmt: skip
def test_both_parts_are_stored_where_they_are(equation: str, columns: int, splits: int) -> None:
    """Two blocks along b, the last of which ends within its second part, or before it."""
    extents = {"z": 2, "a": 40, "b": columns + 24 + 16 * splits, "c": 2, "d": 72}
    contraction = described(equation, extents)
    schedule = composite(contraction, columns, splits=splits)
    terms = equation.split("->")[0].split(",")
    a, b = (integers(*(extents[label] for label in term)) for term in terms)
    expected = torch.einsum(equation, a.double(), b.double())
    d = torch.full(expected.shape, float("nan"))
    boxes.build(contraction, schedule, INTERPRETER)(a, b, None, d, 2.0, 0.0)
    assert torch.equal(d.double(), 2 * expected)


@pytest.mark.parametrize("equation", ["ad,cbd->cba", "ad,cbd->acb", "da,zdb->zab"])
def test_operands_may_be_exchanged(equation: str) -> None:
    """Where m is what no power of two covers, A gives the columns of blocks."""
    extents = {"z": 2, "a": 72, "b": 136, "c": 2, "d": 72}
    contraction = described(equation, extents)
    found = [s for s in boxes.schedules(contraction, INTERPRETER).schedules if s.exchanged]
    assert found
    assert all(len(parts(schedule.tile[1])) == 2 for schedule in found)
    a, b = (integers(*(extents[label] for label in term)) for term in equation.split("->")[0].split(","))
    expected = torch.einsum(equation, a.double(), b.double())
    for schedule in found[::5]:
        d = torch.full(expected.shape, float("nan"))
        boxes.build(contraction, schedule, INTERPRETER)(a, b, None, d, 1.0, 0.0)
        assert torch.equal(d.double(), expected), str(schedule)
