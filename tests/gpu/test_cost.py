"""What the cost model must tell apart, whatever its numbers are."""

from __future__ import annotations

import re

import pytest
import torch

import weft
from weft.gpu.common.cost import launched
from weft.gpu.gett import family as gett
from weft.gpu.simt import family as simt
from weft.planner.planner import choose
from weft.planner.schedule import Ranked, Target
from weft.spec import Contraction

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)


def seconds(m: int, k: int, n: int, dtype: torch.dtype = torch.float16) -> float:
    a, b = torch.empty(m, k, dtype=dtype, device="meta"), torch.empty(k, n, dtype=dtype, device="meta")
    contraction = weft.plan("mk,kn->mn", a, b, backend="reference").contraction
    found = gett.schedules(contraction, H200).schedules
    return min(gett.predict(contraction, schedule, H200) for schedule in found)


def test_copies_of_less_than_four_bytes_are_slow() -> None:
    """Rows of an odd number of half-precision elements start between words: nothing copies those asynchronously."""
    assert seconds(4096, 4095, 4095) > 3 * seconds(4096, 4096, 4096)
    assert seconds(4096, 4095, 4095, torch.float32) < 1.5 * seconds(4096, 4096, 4096, torch.float32)


def test_a_launch_adds_no_more_than_the_work_is_worth() -> None:
    assert launched(0.0, 9e-6) < 2e-6
    assert launched(1e-3, 9e-6) == 1e-3 + 9e-6
    times = [launched(body * 1e-7, 9e-6) for body in range(200)]
    assert times == sorted(times)
    assert seconds(32, 32, 32) < 4e-6


def test_small_products_in_a_batch_are_summed_step_by_step() -> None:
    """What a program reads again at its next step is in its cache; a tile along k would send values from lane to lane.

    On an H200 tiles of one index of k take 21 to 28 microseconds here, those of eight 48 and more.
    """
    a, b = torch.empty(70001, 8, 8, device="meta"), torch.empty(70001, 8, 8, device="meta")
    contraction = weft.plan("bmk,bkn->bmn", a, b, backend="reference").contraction
    found = simt.schedules(contraction, H200).schedules
    best = min(found, key=lambda schedule: simt.predict(contraction, schedule, H200))  # type: ignore[arg-type]
    assert [cut.tile for cut in best.k] == [1]  # type: ignore[attr-defined]


def described(equation: str, *operands: torch.Tensor, precision: str | None = None) -> Contraction:
    return weft.plan(equation, *operands, backend="reference", precision=precision).contraction


def empty(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def best(contraction: Contraction) -> Ranked:
    return choose(contraction, "triton", H200).best


def test_rows_that_start_within_sectors_are_slow_where_all_blocks_read_them() -> None:
    """Tiles of 64 by 32 take 36.6 microseconds on an H200 with rows of 48 bytes, 24.1 where rows start at sectors."""
    near, apart = empty(312, 24), empty(312, 32)[:, :24]
    found = []
    for right in (near, apart):
        contraction = described("acd,db->cba", empty(312, 296, 312), right)
        tiles = [each for each in gett.schedules(contraction, H200).schedules if each.tile == (64, 32, 64)]
        found.append(min(gett.predict(contraction, each, H200) for each in tiles))
    assert found[0] > 1.2 * found[1]


def test_fewer_blocks_than_processors_overlap_nothing() -> None:
    """One block for each processor takes 235 microseconds on an H200, three that share its sum take 142."""
    a, b = (empty(*[72] * rank, dtype=torch.float64) for rank in (4, 3))
    schedule = best(described("ceda,dbe->cba", a, b)).schedule
    assert schedule.family == "gett"
    assert getattr(schedule, "splits", 1) > 1


def test_large_operands_are_read_in_whole_lines() -> None:
    """Tiles of 32 indices of j take 117 microseconds on an H200 and those of 64 take 77: a line holds 64."""
    contraction = described("bhij,bhjd->bhid", empty(8, 16, 1024, 1024), empty(8, 16, 1024, 64))
    found = gett.schedules(contraction, H200).schedules
    tile = min(found, key=lambda each: gett.predict(contraction, each, H200)).tile  # type: ignore[arg-type, attr-defined]
    assert tile[2] == 64


def test_the_library_is_slow_at_many_small_matrices_and_at_tf32_across_short_sums() -> None:
    """On an H200 it takes 84 microseconds where gathered tiles take 56, and 183 to 226 where they take 108."""
    ranked = choose(described("be,dcea->dcba", empty(72, 72), empty(72, 72, 72, 72)), "triton", H200).ranked
    families = [each.schedule.family for each in ranked]
    assert families.index("gett") < families.index("blas")
    a, b = empty(312, 296, 312, dtype=torch.float32), empty(296, 312, dtype=torch.float32)
    assert best(described("dca,bd->cba", a, b, precision="tf32")).schedule.family == "gett"


def test_few_processors_bring_boxes_across_lines_as_fast_as_others() -> None:
    """TCCG 19 has boxes for 72 of 132 processors, and rows of 144 bytes: on an H200 they take 29.9 microseconds with
    ReLU, gathered tiles 46.2 with a leaky ReLU, which is hardly more work."""
    a, b = empty(72, 72, 72, 72), empty(72, 72, 72)
    leaky = torch.nn.functional.leaky_relu
    fused = weft.plan(
        "ceda,dbe->cba", a, b, a_fn=leaky, b_fn=leaky, epilogue=leaky, out_dtype=torch.float32, backend="reference"
    )
    assert "ws." in str(best(fused.contraction).schedule)


def test_operands_of_another_type_than_the_products_are_converted_first_where_they_are_used_often() -> None:
    """Matrix instructions take B from shared memory, where every block that reads it would convert it again."""
    float8 = torch.float8_e4m3fn

    def product(size: int) -> Contraction:
        a, b = empty(size, size, dtype=float8), empty(size, size, dtype=float8)
        return weft.plan("mk,nk->mn", a, b, out_dtype=torch.float16, backend="reference").contraction

    assert best(product(4096)).schedule.family == "ttgt"
    assert best(product(256)).schedule.family == "gett"
    found = gett.schedules(product(4096), H200).schedules
    # Microseconds on an H200, by the tuner.
    timed = {"128x256x64 .*warps=8": 322, "128x128x64 .*warps=4 stages=3": 312, "128x128x64 .*warps=8": 340}
    for part, microseconds in timed.items():
        schedule = next(schedule for schedule in found if re.search(part, str(schedule)))
        assert gett.predict(product(4096), schedule, H200) == pytest.approx(microseconds * 1e-6, rel=0.1)
