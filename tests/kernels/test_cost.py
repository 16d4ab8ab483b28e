"""What the cost model must tell apart, whatever its numbers are."""

from __future__ import annotations

import torch

import weft
from weft.kernels import matrix, vector
from weft.kernels.cost import launched
from weft.plan.schedule import Target

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)


def seconds(m: int, k: int, n: int, dtype: torch.dtype = torch.float16) -> float:
    a, b = torch.empty(m, k, dtype=dtype, device="meta"), torch.empty(k, n, dtype=dtype, device="meta")
    contraction = weft.plan("mk,kn->mn", a, b, backend="reference").contraction
    found = matrix.schedules(contraction, H200).schedules
    return min(matrix.predict(contraction, schedule, H200) for schedule in found)


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
    found = vector.schedules(contraction, H200).schedules
    best = min(found, key=lambda schedule: vector.predict(contraction, schedule, H200))  # type: ignore[arg-type]
    assert [cut.tile for cut in best.k] == [1]  # type: ignore[attr-defined]
