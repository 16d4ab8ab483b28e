"""Traces as torch's profiler writes them."""

from __future__ import annotations

from typing import Any

import pytest

from weft.machine.datasheets import LIMITS
from weft_bench.profiling.launches import read


def event(name: str, at: float, duration: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": duration, "args": args}


TAKEN = {"grid": [256, 2, 1], "block": [128, 1, 1], "registers per thread": 96, "shared memory": 40960}


def test_each_launch_gets_the_median_of_its_times() -> None:
    events = []
    for call, (pack, product) in enumerate(((5.0, 50.0), (4.0, 41.0), (4.5, 40.0))):
        events += [event("permute_kernel", 100 * call, pack), event("gett_kernel", 100 * call + 10, product, **TAKEN)]
    events += [
        {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1},
        {"cat": "cuda_runtime", "name": "x", "ts": 2, "dur": 1},
    ]
    first, second = read({"traceEvents": events[::-1]}, 3)
    assert (first.name, first.seconds) == ("permute_kernel", pytest.approx(4.5e-6))
    assert (second.name, second.seconds) == ("gett_kernel", pytest.approx(41e-6))
    assert (second.programs, second.threads, second.registers, second.shared) == (512, 128, 96, 40960)
    assert first.programs is None
    placed = second.on(LIMITS[90], 132)
    assert placed.occupancy == 5 * 4 / 64  # 96 registers allow five blocks of four warps
    assert placed.waves == 512 / (5 * 132)
    assert first.on(LIMITS[90], 132) == first


def test_a_first_call_that_did_more_is_left_out() -> None:
    events = [event("warm-up", 0, 9.0), *(event("k", 10 * at, 1.0) for at in range(1, 4))]
    assert [each.name for each in read({"traceEvents": events}, 3)] == ["k"]


def test_without_launches_there_are_none() -> None:
    assert read({"traceEvents": []}, 5) == []
    assert read({}, 5) == []
