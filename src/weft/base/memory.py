"""New tensors, and memory that cannot be had: what was asked for, and what there is."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from functools import lru_cache

import torch

from weft.base.figures import si
from weft.errors import WorkspaceError, is_out_of_memory

_MOST = 2**63 - 1  # bytes that torch counts


def new_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device, workspace: int = 0) -> torch.Tensor:
    """An empty tensor; `WorkspaceError` where it and `workspace` bytes besides are more than there is memory."""
    size = math.prod(shape) * dtype.itemsize
    check_room(device, size, workspace)
    try:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise workspace_error(device, size, workspace) from error
        raise


def check_room(device: torch.device, result: int, workspace: int = 0) -> None:
    """`WorkspaceError` for a call that needs more bytes than the device has at all: before anything is allocated."""
    if result + workspace > whole(device):
        raise workspace_error(device, result, workspace)


def has_room(size: int) -> bool:
    """Whether this process may have so many bytes more of memory; its limits count, what others have taken does not."""
    try:
        mmap.mmap(-1, size).close()
    except OSError:
        return False
    return True


def workspace_error(device: torch.device, result: int, workspace: int) -> WorkspaceError:
    """The error for a call that needs `result` bytes for what it returns and `workspace` bytes besides."""
    free = available(device)
    there = f"{free} bytes ({si(free, 'B')}) are available" if free is not None else "that is more than is available"
    return WorkspaceError(
        f"out of memory on {device}: the call allocates {result + workspace} bytes ({si(result, 'B')} for the result, "
        f"{si(workspace, 'B')} of workspace), {there}"
    )


def available(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device; None where nothing says it."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _pages("SC_AVPHYS_PAGES")


@lru_cache
def whole(device: torch.device) -> int:
    """Bytes that a device has, swap included; where nothing says it, as many as torch counts."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "cpu" and (physical := _pages("SC_PHYS_PAGES")) is not None:
        return physical + _swap()
    return _MOST


def _pages(name: str) -> int | None:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _swap() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("SwapTotal:"))
    except (OSError, ValueError):
        return 0
