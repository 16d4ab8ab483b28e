"""Super-elements that change places within their memory: each is some contiguous elements.

x[A][q][B] becomes x[B][q][A], every entry of it a super-element. One launch saves the few that must not be lost, a
second one moves all along the cycles of the permutation. Where the saved ones would outgrow the workspace, a slice of
all super-elements is moved at a time.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from weft.base.kept import is_capturing, keep_for_graphs
from weft.errors import UnsupportedError
from weft.gpu.common.constraints import power_of_two
from weft.gpu.transpose.cycles import CycleTables, cycle_tables
from weft.gpu.transpose.launch import cycle_launches
from weft.planner.target import target_of
from weft.spec import Layout

_WIDTH = 1024  # bytes of each super-element that a program moves: runs that memory likes
_HELD = 16384  # bytes that it holds in registers
_GROUPS = (16, 128)  # super-elements that it moves: at least 16, for an eighth of all would have to be saved with less

Tables = CycleTables[torch.Tensor]


def move_super_elements_(rows: torch.Tensor, order: tuple[int, int, int], workspace: int) -> None:
    """Move super-elements, the rows of a matrix of words, from [A][q][B] to [B][q][A]; `order` is (A, q, B).

    Up to `workspace` bytes are allocated for saved ones, but always enough for a word of each. The tables of a
    permutation, 8 bytes for each super-element, stay in the device's memory until those of 8 others were needed, and
    for good once a captured graph uses them. `UnsupportedError` where a graph is captured and they are not there yet.
    """
    size, length = rows.itemsize, rows.shape[1]
    width = min(_WIDTH // size, power_of_two(length))
    group = min(max(_HELD // (width * size), _GROUPS[0]), _GROUPS[1])
    tables = _tables(*order, group, rows.device)
    _hold(tables)
    if not tables.target.numel():
        return
    saved = tables.saved.numel()
    slice_width = length
    if saved * length * size > workspace:
        room = max(workspace // (saved * size), 1)
        slice_width = room // width * width or power_of_two(room + 1) // 2
        width = min(width, slice_width)
    buffer = torch.empty(saved * slice_width, dtype=rows.dtype, device=rows.device)
    target = target_of("triton", rows.device)
    for start in range(0, length, slice_width):
        part = rows[:, start : start + slice_width]
        save, move = cycle_launches(Layout.of(part), group, width, saved, tables.target.numel(), target)
        if saved:
            save((part, tables.saved, buffer), 0, 0)
        move((part, tables.target, tables.source, buffer), 0, 0)


@lru_cache(maxsize=8)
def _tables(outer: int, middle: int, inner: int, group: int, device: torch.device) -> Tables:
    if is_capturing(device):
        raise UnsupportedError("a matrix of this shape must be transposed once before that is captured in a graph")
    source = np.arange(outer * middle * inner).reshape(outer, middle, inner).transpose(2, 1, 0).reshape(-1)
    return CycleTables(*(torch.from_numpy(table).to(device) for table in cycle_tables(source, group)))


def _hold(tables: Tables) -> None:
    """Keep the tables' memory for what is being launched, though they may be dropped before it has run."""
    device = tables.target.device
    if device.type != "cuda":
        return
    if is_capturing(device):
        keep_for_graphs(*tables)
        return
    for table in tables:
        table.record_stream(torch.cuda.current_stream(device))
