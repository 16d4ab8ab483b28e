"""The rungs of a product of matrices, in their order."""

from __future__ import annotations

import torch

from weft.errors import DTypeError
from weft_bench.ladder.problems import LadderContraction, product
from weft_bench.ladder.published import NETWORKS, SLIDES, product_kernel, slides
from weft_bench.ladder.rung import Flight, Ladder, Prediction, Published, Rung, Size

USUAL = 4096
DOUBLE_USUAL = 5000  # as the dense thesis times its kernels


def _times_issue(cycles: float, because: str) -> Prediction:
    """`cycles` of the port to caches and shared memory for one multiply-add of a warp; four of those fit in a cycle."""
    return Prediction(max(1.0, 4 * cycles), because)


_CYCLE = "one load of a warp a cycle and SM, against four multiply-adds"


def _instructions(count: int, products: int) -> Prediction:
    """So many instructions of a warp for so many multiply-adds: of the machine code for sm_90, loops counted out."""
    because = f"{count} instructions for {products} multiply-adds: issue slots bind, not loads; waits are not counted"
    return Prediction(count / products, because)


_ROOF = Prediction(1.0, "the roof is the library's rate when the device's ceilings were measured")

FP32 = (
    Rung("naive", "multiply.naive", _times_issue(33, f"32 transactions of A and one of B; {_CYCLE}"),
         (slides(498.7),)),
    Rung("coalesced", "multiply.coalesced", _times_issue(2, f"one transaction of A and one of B; {_CYCLE}"), (
        slides(6358.7, 498.7),
        Published("SM throughput (K1) 54.32 %, DRAM (K2) 16.54 %, FMA pipe (K5) 28.05 %, issue slots (K9) 31.50 %, "
                  "A100; cuBLAS 98.45, 3.62, 98.67 and 56.15 %", NETWORKS),
    )),
    Rung("shared sums", "multiply.shared_sums",
         _times_issue(2 + 4 / 32, "two loads a multiply-add, and the sum in and out once in 32")),
    Rung("shared tiles", "multiply.shared_tiles",
         _times_issue(2, "two loads a multiply-add, as from the L1 (nvcc joins four loads of A, numba does not)"),
         (slides(9190.8, 6358.7),), over="coalesced"),
    Rung("padded tiles", "multiply.padded_tiles",
         _times_issue(2, "with matrices stored by rows no lane reads a column: no bank conflict to avoid")),
    Rung("column a thread", "multiply.column_per_thread", _times_issue(9 / 8, "nine loads for eight multiply-adds"),
         (slides(19823.7, 9190.8),), over="shared tiles"),
    Rung("4 x 4 a thread", "multiply.four_by_four",
         _times_issue(12 / 16, "four loads of A, four of B in two turns each, for 16 multiply-adds"),
         over="padded tiles"),
    Rung("8 x 8 a thread", "multiply.eight_by_eight",
         _times_issue(40 / 64, "eight loads of A, eight of B in four turns each, for 64 multiply-adds"),
         (slides(25806.8, 19823.7),), over="column a thread"),
    Rung("vectors", "multiply.vectors", _instructions(807, 512),
         (Published("about 2 to 3 % faster, some 500 GFLOP/s, H100", SLIDES, 1.025),)),
    Rung("warp tiles", "multiply.warp_tiles", _instructions(838, 512)),
    Rung("double buffers", "multiply.double_buffers", _instructions(1753, 1024)),
    Rung("weft's own kernel", "multiply.weft_kernel",
         Prediction(2.5, "the cost model's time for its best schedule over its floor"), tool="weft family"),
    Rung("weft", "multiply.weft_call", Prediction(1.0, "the cost model chooses the library here"), tool="weft"),
    Rung("cuBLAS", "multiply.library", _ROOF, tool="torch"),
)  # fmt: skip

_DOUBLE = "a warp's load of doubles takes the port twice as long, and the roof is that of the tensor cores"


def _double(
    name: str, module: str, loads: float, number: str, before: str = "", over: str = "", function: str = "run"
) -> Rung:
    """A kernel of the dense thesis in the type that it was published in; `loads` for one multiply-add of a warp."""
    return Rung(name, f"multiply.{module}", _times_issue(2 * loads, f"{loads:g} loads a multiply-add: {_DOUBLE}"),
                (product_kernel(number, before or None),), function, over=over, double=True)  # fmt: skip


FP64 = (
    _double("flat tiles", "flat_tiles", 2 + 4 / 32, "1.1"),
    _double("numbered threads", "flat_tiles", 2 + 4 / 32, "1.2", "1.1", function="run_numbered"),
    _double("shared sums", "shared_sums", 2 + 4 / 32, "1.3", "1.2"),
    _double("shared tiles", "shared_tiles", 2, "1.4", "1.3"),
    _double("padded tiles", "padded_tiles", 2, "1.5", "1.4"),
    _double("4 x 4 a thread", "four_by_four", 12 / 16, "1.6", "1.5"),
    Rung("weft", "multiply.weft_call", Prediction(1.0, "the cost model chooses the library here"), tool="weft"),
    Rung("cuBLAS", "multiply.library", _ROOF, tool="torch"),
)

TF32 = (
    Rung("TF32", "multiply.tf32", Prediction(4.7, "an operand with k not along rows: 85 of 397 TFLOP/s on an H200"),
         tool="Triton"),
    Rung("weft", "multiply.weft_call", Prediction(1.1, "packs B once at the speed of memory"), function="run_tf32",
         tool="weft"),
    Rung("cuBLAS", "multiply.library", _ROOF, function="run_tf32", tool="torch"),
)  # fmt: skip

FP16 = (
    Rung("warps", "multiply.warp_mma",
         Prediction(2.4, "tiles of 64 x 64 ask the L2 for 20 TB/s at full rate, and it has 8.3 (`weft micro l2`)"),
         tool="Triton"),
    Rung("warp groups", "multiply.warpgroup_mma",
         Prediction(2.0, "copies by threads (cp.async) keep tensor cores about half busy"), tool="Triton"),
    Rung("TMA", "multiply.tensor_maps",
         Prediction(1.2, "full rate, but results are stored while nothing is multiplied, in four waves of programs"),
         tool="Triton"),
    Rung("warp specialization", "multiply.warp_specialization",
         Prediction(1.15, "loads never wait for products; stores are still waited for"), tool="Gluon"),
    Rung("weft", "multiply.weft_call",
         Prediction(1.05, "persistent programs store one tile while the next is multiplied"), tool="weft"),
    Rung("cuBLAS", "multiply.library", _ROOF, tool="torch"),
)  # fmt: skip


def _single(size: Size, kind: str) -> LadderContraction:
    _only(size, (torch.float32,), "fp32")
    return product(*_extents(size), torch.float32)


def _tf32(size: Size, kind: str) -> LadderContraction:
    _only(size, (torch.float32,), "tf32")
    return product(*_extents(size), torch.float32, "tf32")


def _half(size: Size, kind: str) -> LadderContraction:
    _only(size, (torch.float16, torch.bfloat16), "fp16")
    return product(*_extents(size), size.dtype or torch.float16)


def _doubles(size: Size, kind: str) -> LadderContraction:
    _only(size, (torch.float64,), "fp64")
    return product(*_extents(size, DOUBLE_USUAL), torch.float64)


def _extents(size: Size, usual: int = USUAL) -> tuple[int, int, int]:
    extent = size.extent or usual
    return extent, extent, extent


def _only(size: Size, types: tuple[torch.dtype, ...], flight: str) -> None:
    if size.dtype is not None and size.dtype not in types:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in types)
        raise DTypeError(f"flight '{flight}' is of {allowed}, not of {str(size.dtype).removeprefix('torch.')}")


LADDER = Ladder(
    "multiply",
    "A product of two square matrices, from a thread for each element to the vendor's library.",
    (
        Flight("fp32", "Single precision by ordinary multiply-adds.", _single, FP32),
        Flight("tf32", "The same numbers by tensor cores, with ten bits of mantissa.", _tf32, TF32),
        Flight("fp16", "Half precision by tensor cores, sums in single.", _half, FP16),
        Flight("fp64", "Double precision, as the kernels of the dense thesis were published.", _doubles, FP64),
    ),
    tiny=40,
)
