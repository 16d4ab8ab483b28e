"""Memory that could not be had: what was asked for, and what there was."""

from __future__ import annotations

import os

import torch

from weft.base.figures import si
from weft.errors import WeftError, WorkspaceError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: torch's on a GPU or the CPU, NumPy's, or Python's own."""
    if isinstance(error, WeftError):
        return False
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


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
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
