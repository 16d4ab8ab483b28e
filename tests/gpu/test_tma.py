"""What TMA can read, how sums are split over work tiles, and that every view computes the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from weft.gpu.common.swap_ab import in_kernel_order
from weft.gpu.tma import family as tma
from weft.gpu.tma.model import tma_params
from weft.gpu.tma.schedule import split_counts
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout, canonical
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve
from weft.spec.notation import parse

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
INTERPRETER = Target("interpreter", 0, "Triton interpreter", 90, 4, 232448)

EXTENTS = {"z": 3, "a": 40, "b": 56, "c": 3, "d": 72, "e": 24}


def described(
    equation: str,
    dtype: torch.dtype = torch.float16,
    precision: str | None = None,
    extents: dict[str, int] = EXTENTS,
) -> Contraction:
    notation = parse(equation)
    a, b = (Layout.contiguous([extents[label] for label in term], dtype) for term in notation.inputs)
    d = Layout.contiguous([extents[label] for label in notation.output], torch.float32)
    modes = class_modes(notation, a, b, None, d, extents)
    return canonical(Contraction(modes, a, b, None, d, resolve(dtype, dtype, precision), text=equation))


READABLE = [
    "ad,bd->ab",  # both along k
    "da,db->ab",  # both across
    "dca,bd->cba",  # a mode of m in front
    "cda,bd->cba",  # and between
    "dca,cbd->ba",  # two modes of k
    "zad,zdb->zab",  # batches
    "ceda,dbe->cba",  # four dimensions
]


@pytest.mark.parametrize("equation", READABLE)
def test_every_schedule_computes_the_product(equation: str) -> None:
    contraction = described(equation)
    assert tma.supports(contraction, INTERPRETER) is None
    found = tma.schedules(contraction, INTERPRETER).schedules
    assert found
    one_of_each = {(s.tile, s.splits > 1, s.a.outer): s for s in found}.values()
    terms = equation.split("->")[0].split(",")
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, [EXTENTS[i] for i in term], generator=generator).half() for term in terms)
    expected = torch.einsum(equation, a.double(), b.double())
    for schedule in list(one_of_each)[::3]:
        d = torch.full(expected.shape, float("nan"))
        tma.build(contraction, schedule, INTERPRETER)(a, b, None, d, 2.0, 0.0)
        assert torch.equal(d.double(), 2 * expected), str(schedule)


def test_sums_are_split_where_d_alone_is_too_small() -> None:
    contraction = described("dca,cbd->ba", extents={"a": 312, "b": 296, "c": 296, "d": 312})
    split = [s for s in tma.schedules(contraction, H200).schedules if s.splits > 1]
    assert split
    for schedule in split:
        params = tma_params(in_kernel_order(contraction, schedule), schedule, H200)
        steps = params.k.blocks
        assert params.steps * schedule.splits >= steps
        assert params.steps * (schedule.splits - 1) < steps, "a partial without steps"
        tile_m, tile_n, _ = schedule.tile
        assert schedule.workspace_bytes == params.blocks * schedule.splits * tile_m * tile_n * 4


def test_sums_have_as_many_partials_as_the_device_holds_at_once() -> None:
    """72 output tiles of 81 steps for 264 consumers: 3 partials each take one round, 4 a second one for a few."""
    found = split_counts(81, 72, 264)
    assert max(count for count in found if 72 * count <= 264) == 3
    assert 4 in found
    assert split_counts(8, 132, 132) == [2]  # every tile has an SM: the device is filled twice, or not at all


def test_uneven_partials_read_zeros_past_the_end() -> None:
    """The last partial is shorter: its tiles lie past the end, and must not start over."""
    contraction = described("ad,bd->ab", extents={"a": 40, "b": 56, "d": 13 * 64})
    whole = tma.schedules(contraction, INTERPRETER).schedules[0]
    schedule = replace(whole, tile=(64, 64, 64), splits=3)
    a, b = torch.ones(40, 13 * 64).half(), torch.ones(56, 13 * 64).half()
    d = torch.full((40, 56), float("nan"))
    tma.build(contraction, schedule, INTERPRETER)(a, b, None, d, 1.0, 0.0)
    assert torch.equal(d, torch.full((40, 56), 13.0 * 64))


@pytest.mark.parametrize(
    ("equation", "extents", "reason"),
    [
        ("dac,bcd->ba", {"a": 40, "b": 48, "c": 24, "d": 16}, "has no tiles that TMA can load"),  # both along k
        ("ad,bd->ab", {"a": 40, "b": 48, "d": 36}, "has no tiles that TMA can load"),  # rows of 72 bytes
    ],
)
def test_what_tma_cannot_load(equation: str, extents: dict[str, int], reason: str) -> None:
    found = tma.schedules(described(equation, extents=extents), H200)
    assert not found.schedules
    assert any(reason in sentence for sentence in found.excluded)


@pytest.mark.parametrize(
    ("equation", "dtype", "precision", "reason"),
    [
        ("ad,bd->ab", torch.float32, None, "no matrix instruction that reads TMA tiles"),
        ("ad,bd->ab", torch.float64, None, "no matrix instruction that reads TMA tiles"),
    ],
)
def test_what_is_not_read_by_tma(equation: str, dtype: torch.dtype, precision: str | None, reason: str) -> None:
    assert reason in str(tma.supports(described(equation, dtype, precision), H200))


def test_shortened_single_precision_is_read_along_k_only() -> None:
    """TF32 matrix instructions take both operands along k from shared memory."""
    assert tma.schedules(described("ad,bd->ab", torch.float32, "tf32"), H200).schedules
    assert not tma.schedules(described("da,db->ab", torch.float32, "tf32"), H200).schedules
