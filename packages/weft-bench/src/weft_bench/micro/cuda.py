"""Kernels in CUDA C++ for what Triton cannot say: branches of single lanes, registers one by one, banks.

NVRTC compiles them, through CuPy where it is installed, else through torch's own (private) door to it. They are
launched on torch's current stream, so that they are timed, and captured in graphs, as everything else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from weft.errors import UnsupportedError

BRANCH = r"""
extern "C" __global__ void branch(float* out, int by_lane, int steps) {
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    int side = by_lane ? (threadIdx.x >> 4) & 1 : (threadIdx.x >> 5) & 1;  // 16 lanes and 16, or whole warps
    float x = thread * 1e-6f, y = 1.0f;
    if (side) {
        #pragma unroll 4
        for (int i = 0; i < steps; ++i) { x = fmaf(x, 0.999f, y); y = fmaf(y, 1.001f, x); }
    } else {
        #pragma unroll 4
        for (int i = 0; i < steps; ++i) { y = fmaf(x, y, 0.5f); x = fmaf(y, 0.25f, x); }
    }
    out[thread] = x + y;
}
"""

#: LIVE sums are kept by each thread, each in a register, and all are added to in every step. HELD more registers are
#: kept from before the steps until after them, and nothing is done to them.
LIVE_SUMS = r"""
extern "C" __global__ void live_sums(float* out, int steps, float a, float b) {
    float sums[LIVE], held[HELD + 1];
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    #pragma unroll
    for (int i = 0; i < HELD; ++i) held[i] = *(volatile float*)&out[thread];
    #pragma unroll
    for (int i = 0; i < LIVE; ++i) sums[i] = thread * (i + 1) * 1e-7f;
    #pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        #pragma unroll
        for (int i = 0; i < LIVE; ++i) sums[i] = fmaf(sums[i], a, b);
    }
    float total = 0.0f;
    #pragma unroll
    for (int i = 0; i < LIVE; ++i) total += sums[i];
    #pragma unroll
    for (int i = 0; i < HELD; ++i) total += held[i];
    out[thread] = total;
}
"""

#: Neighbouring lanes read words of shared memory that lie `stride` apart.
BANKS = r"""
extern "C" __global__ void banks(float* out, int stride, int steps) {
    __shared__ float words[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) words[i] = i;
    __syncthreads();
    int at = (threadIdx.x * stride) & 1023;
    float total = 0.0f;
    #pragma unroll 8
    for (int step = 0; step < steps; ++step) {
        total += *(volatile float*)&words[at];
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}
"""

SOURCES = {"branch": BRANCH, "live_sums": LIVE_SUMS, "banks": BANKS}


class CudaKernel:
    """A compiled kernel; call it with grid, block, and arguments (tensors of torch's, ints and floats)."""

    def __init__(self, launch: Any, registers: int | None) -> None:
        self._launch = launch
        self.registers = registers  # of a thread; None where the compiler's door does not say

    def __call__(self, grid: int, block: int, *arguments: Any) -> None:
        self._launch(grid, block, arguments)


@cache
def kernel(name: str, **macros: int) -> CudaKernel:
    """A kernel of `SOURCES` for the current GPU, macros defined. `UnsupportedError` where nothing here compiles it."""
    lines = [f"#define {macro} {value}" for macro, value in macros.items()]
    source = "\n".join([*lines, SOURCES[name]])
    try:
        import cupy
    except ImportError:
        return _by_torch(name, source)
    return _by_cupy(cupy, name, source)


def _by_cupy(cupy: Any, name: str, source: str) -> CudaKernel:
    import numpy as np

    function = cupy.RawKernel(source, name)

    def launch(grid: int, block: int, arguments: Sequence[Any]) -> None:
        words = [_word(np, each) for each in arguments]
        stream = torch.cuda.current_stream().cuda_stream
        with cupy.cuda.Device(torch.cuda.current_device()), cupy.cuda.ExternalStream(stream):
            function((grid,), (block,), tuple(words))

    try:
        with cupy.cuda.Device(torch.cuda.current_device()):
            return CudaKernel(launch, int(function.num_regs))
    except Exception as error:  # CuPy's own kinds
        said = str(error).strip().partition("\n")[0]
        raise UnsupportedError(f"CuPy does not compile {name}: {type(error).__name__}: {said}") from error


def _word(np: Any, value: Any) -> Any:
    """An argument as the bits that a kernel takes."""
    if isinstance(value, torch.Tensor):
        return np.uint64(value.data_ptr())
    return np.float32(value) if isinstance(value, float) else np.int32(value)


def _by_torch(name: str, source: str) -> CudaKernel:
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None:
        raise UnsupportedError(
            "kernels in CUDA C++ are compiled by CuPy, or by a torch that has a door to NVRTC; there is neither"
        )
    function = compile_kernel(source, name)

    def launch(grid: int, block: int, arguments: Sequence[Any]) -> None:
        function(grid=(grid, 1, 1), block=(block, 1, 1), args=list(arguments))

    return CudaKernel(launch, None)
