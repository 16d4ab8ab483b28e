"""A profile made up for tests: known figures instead of measured ones."""

from __future__ import annotations

from typing import Any

from weft_bench.profiling.counters import CounterSet
from weft_bench.profiling.launches import Launch
from weft_bench.profiling.profile import Profile

HOSTILE = '<img src=http://127.0.0.1:9/x onerror=alert(1)> & "quotes"'

_COUNTERS = {
    "K1": 55.5, "K2": 81.0, "K3": 48.75, "K4": 12.5, "K5": 4.75, "K6": 24.1, "K7": 2.0, "K8": 0.5, "K9": 28.2,
    "K10": 98.44, "tensor": 31.3, "dram_read": 3.3e7, "dram_write": 6.7e7, "seconds": 41e-6,
}  # fmt: skip


def profile(name: str = "weft", seconds: float = 40e-6, **counters: float) -> Profile:
    """On an H200, bound by memory."""
    kernel: dict[str, Any] = {
        "name": "gett_kernel", "programs": 512, "warps": 8, "registers": 96, "spills": 0, "shared": 40960,
        "blocks_per_sm": 2, "occupancy": 0.25, "limited_by": ["registers"], "waves": 1.94, "tail": 248,
        "slots_used": 0.97,
    }  # fmt: skip
    return Profile(
        name, "mk,kn->mn m=64,k=64,n=64", "NVIDIA H200", "2026-11-23T16:00:00+00:00", schedule="gett 128x128x64",
        samples=tuple(seconds * (1 + 0.001 * at) for at in range(-5, 6)),
        timing={"calls": 100, "captured": True, "mode": "cold", "notes": [], "clocks": None}, host=12e-6,
        flops=10**9, bytes=8 * 10**7,
        floor={"seconds": 22e-6, "binds": "memory", "compute": 2e-6, "memory": 21e-6, "launch": 1e-6},
        ceilings={"source": "measured", "read": 4.3e12, "write": 4.6e12, "copy": 4.2e12, "rate": "float16",
                  "products": 7.6e14, "matrix": {"float16": 7.6e14, "float32": 5.1e13}, "launch": 1e-6, "l2": 5.5e12},
        kernels=[kernel], launches=[Launch("gett_kernel", seconds, 512, 256, 96, 40960), Launch(HOSTILE, 1e-6)],
        counters=[CounterSet("gett_kernel", {**_COUNTERS, **counters}, {}, "NVIDIA H200")],
        error_over_bound=0.3, missing={"energy": HOSTILE},
        environment={"artifacts": {"command": "weft profile", "commit": "abc123"}},
    )  # fmt: skip
