"""What the hardware is, as kernels and cost models count with it: facts, none of them fitted.

Sources: CUDA C++ Programming Guide, "Compute Capabilities" and "Tensor Memory Access"; PTX ISA, `cp.async`, `wgmma`.
"""

from __future__ import annotations

from weft.planner.schedule import Target

SECTOR, LINE = 32, 128  # bytes: what memory moves at least, and a line of the caches
VECTOR = 16  # bytes: the widest access of a thread; TMA wants addresses and strides aligned so, and cuBLAS is fast then
LEAST_COPY = 4  # bytes: of the smallest asynchronous copy to shared memory (`cp.async`)
GROUP_ROWS = 64  # rows of D that one instruction of a group of four warps (`wgmma`) makes
REGISTERS, SHARED_MEMORY, WARPS = 65536, 227 * 1024, 64  # of one SM, on Hopper; 32-bit registers, bytes
SM_COUNT = 132  # of an H200, which costs were fitted on


def sm_count(target: Target) -> int:
    """SMs of the device; those of an H200 for a target without any, as Triton's interpreter."""
    return target.processors if target.processors > 1 else SM_COUNT
