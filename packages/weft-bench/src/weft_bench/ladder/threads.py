"""Kernels of single threads by numba-cuda: on torch's tensors and stream, or in its simulator where no GPU is.

The simulator runs each thread of a block as a thread of Python: it is right, and very slow. numba reads whether to
simulate when `numba.cuda` is first imported, so import it from here alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch

from weft.errors import UnsupportedError

_ASKED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
SIMULATED = _ASKED or not torch.cuda.is_available() or torch.version.hip is not None

if SIMULATED and "numba.cuda" not in sys.modules:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    from numba.core import config

    config.ENABLE_CUDASIM = 1


@contextmanager
def _names_that_numba_cuda_knows() -> Iterator[None]:
    """NumPy 2.5 dropped `row_stack`, another name of `vstack`, which numba-cuda up to 0.30 looks up when imported."""
    gone = not hasattr(np, "row_stack")
    if gone:
        setattr(np, "row_stack", np.vstack)  # noqa: B010  # no name of NumPy's any more
    try:
        yield
    finally:
        if gone:
            delattr(np, "row_stack")


with _names_that_numba_cuda_knows():
    from numba import cuda, float32, float64, int32, uint32

    if not SIMULATED:
        import_module("numba.cuda.cudaimpl")  # else imported with the first kernel

__all__ = ["SIMULATED", "at_most", "blocks", "cuda", "float32", "float64", "int32", "launch", "uint32"]

_simulating = "simulator" in cuda.jit.__module__  # which numba decided when `numba.cuda` was first imported


def blocks(extent: int, tile: int) -> int:
    """Blocks of `tile` that cover `extent`."""
    return -(-extent // tile)


def at_most(registers: int) -> dict[str, int]:
    """Options of `cuda.jit` that hold the compiler to so many registers a thread; the simulator knows none."""
    return {} if SIMULATED else {"max_registers": registers}


def launch(kernel: Any, grid: tuple[int, ...], threads: int | tuple[int, ...], *tensors: torch.Tensor) -> None:
    """Start `kernel` on torch's current stream, or go through it in the simulator; nothing where the grid is empty.

    Raises `UnsupportedError` where neither can be: for tensors on a CPU where numba.cuda was imported for a GPU.
    """
    if 0 in grid:
        return
    if SIMULATED:
        if not _simulating:
            raise UnsupportedError("numba.cuda was imported before the ladder: set NUMBA_ENABLE_CUDASIM=1 beforehand")
        kernel[grid, threads](*(tensor.numpy() for tensor in tensors))
        return
    if not all(tensor.is_cuda for tensor in tensors):
        raise UnsupportedError("kernels are compiled for the GPU here: set NUMBA_ENABLE_CUDASIM=1 to simulate them")
    stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
    kernel[grid, threads, stream](*(cuda.as_cuda_array(tensor) for tensor in tensors))


_KERNELS = "numba.cuda.simulator.kernelapi"


def _shared_array(memory: Any, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
    """The simulator's `cuda.shared.array`: one array for each line that asks for one.

    Its own refuses an alignment, which means nothing there, and reads source files at each call.
    """
    kernelapi: Any = sys.modules[_KERNELS]
    asked = sys._getframe(1)
    dtype = kernelapi.numpy_support.as_dtype(dtype) if isinstance(dtype, kernelapi.types.Type) else dtype
    return memory._allocations.setdefault((asked.f_code, asked.f_lineno), np.empty(shape, dtype))


if _simulating:
    sys.modules[_KERNELS].FakeCUDAShared.array = _shared_array
