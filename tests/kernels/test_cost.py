"""What the cost model must tell apart, whatever its numbers are."""

from __future__ import annotations

import torch

import weft
from weft.kernels import matrix
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
