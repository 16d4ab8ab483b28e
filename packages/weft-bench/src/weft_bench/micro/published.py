"""A thesis's measurements on an A100-SXM4-40GB: see `SOURCE`."""

from __future__ import annotations

from weft_bench.micro.record import Row

SOURCE = "Design and Performance Engineering of GPU-Accelerated Tensor Network Algorithms (2026), A100-SXM4-40GB"

#: Table 5.1: 1000 products of n x n matrices in fp64, launched one by one, and in one kernel.
LAUNCH: tuple[Row, ...] = tuple(
    {"n": n, "separate us": separate, "grouped us": fused}
    for n, separate, fused in (
        (1, 8022, 172), (2, 7941, 185), (4, 7835, 180), (8, 7895, 180), (13, 8477, 355), (16, 8104, 347),
        (23, 9217, 717), (32, 9752, 1380),
    )
)  # fmt: skip

#: Table 5.3: fp32 loads and stores at (thread x stride) mod N.
COALESCING: tuple[Row, ...] = tuple(
    {"stride": stride, "ms": milliseconds, "GB/s": rate}
    for stride, milliseconds, rate in (
        (1, 0.107776, 1245.34), (2, 0.152576, 879.68), (4, 0.242893, 552.58), (8, 0.432947, 310.01),
        (16, 0.822886, 163.11), (32, 0.841216, 159.55), (64, 0.600320, 223.58), (128, 0.237824, 564.36),
    )
)  # fmt: skip

#: Table 5.4: fp32 arithmetic with few and many registers.
REGISTERS: tuple[Row, ...] = (
    {"variant": "low", "ms": 0.594150, "Tflop/s": 14.46, "occupancy %": 100.0},
    {"variant": "high", "ms": 0.671002, "Tflop/s": 12.80, "occupancy %": 62.5},
)

#: Section 5.5.3: counters of three pairs. A branch is taken by whole warps, or splits each; of the two-site contraction
#: the source says that the ordered one has more of K1, K5 and K9, without values.
PAIRS: tuple[Row, ...] = (
    {"pair": "product", "variant": "cuBLAS", "K1 %": 98.45, "K2 %": 3.62, "K5 %": 98.67, "K9 %": 56.15},
    {"pair": "product", "variant": "naive", "K1 %": 54.32, "K2 %": 16.54, "K5 %": 28.05, "K9 %": 31.50},
    {"pair": "divergence", "variant": "by warp", "K10 %": 100.0},
    {"pair": "divergence", "variant": "by lane", "K10 %": 50.35},
)
