"""Transposition in place: squares, super-elements along cycles, and which of them serves."""

from __future__ import annotations

from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch

from weft.base.kept import is_capturing, keep_for_graphs
from weft.errors import UnsupportedError
from weft.gpu.common.constraints import power_of_two
from weft.gpu.permute.schedule import WORDS
from weft.gpu.transpose.launch import (
    as_words,
    copy,
    cycle_launches,
    insert_padding_,
    remove_padding_,
    transpose_squares_,
    transpose_via_workspace_,
)
from weft.gpu.transpose.model import TransposeSchedule, best, workspace_bytes
from weft.planner.schedule import Scalar
from weft.planner.target import target_of
from weft.spec import Layout

_SPACING = 64  # elements between the places where cycles are first entered, on average

Table = TypeVar("Table")  # an array, or a tensor on a device


class CycleTables(NamedTuple, Generic[Table]):
    """Super-element ``target[k]`` becomes ``source[k]``, or ``saved[-1 - source[k]]`` where that is negative.

    The lists are padded to whole groups: `target` and `saved` with -1, `source` with 0.
    """

    target: Table  # (moves,) int32
    source: Table  # (moves,) int32
    saved: Table  # (saved super-elements,) int32: which ones


def cycle_tables(source: np.ndarray, group: int) -> CycleTables[np.ndarray]:
    """The tables of the permutation x[i] <- x[source[i]] of fewer than 2^31 super-elements, fixed points left out."""
    order = cycle_order(source)
    place = np.empty(source.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    wanted = source[order]
    crossing = np.flatnonzero(place[wanted] // group != np.arange(order.size) // group)
    saved = wanted[crossing]
    wanted[crossing] = -1 - np.arange(crossing.size)
    return CycleTables(_padded(order, group, -1), _padded(wanted, group, 0), _padded(saved, group, -1))


def cycle_order(source: np.ndarray) -> np.ndarray:
    """All i but fixed points such that source[i] follows i, but for the last of each cycle.

    Cycles are entered at random places and followed from all of them at once, each until the next such place. What
    lies on none of these paths are short cycles; these are followed once from their smallest elements.
    """
    moving = source != np.arange(source.size)
    if not moving.any():
        return np.empty(0, dtype=np.int64)
    entries = np.flatnonzero((np.random.default_rng(0).random(source.size) * _SPACING < 1) & moving)
    path, element, after = _followed(source, entries)
    rank = _linked(after)
    left = moving
    left[element] = False
    smallest = _smallest_of_cycles(source, np.flatnonzero(left))
    short_path, short_element, _ = _followed(source, smallest)
    long = element[np.argsort(rank[path], kind="stable")]
    return np.concatenate([long, short_element[np.argsort(short_path, kind="stable")]])


def _followed(source: np.ndarray, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(path of each element, element, next path of each path): from every entry to before the next, in steps."""
    number = np.full(source.size, -1, dtype=np.int64)
    number[entries] = path = np.arange(entries.size)
    at = entries
    paths, elements = [path], [at]
    after = np.empty(entries.size, dtype=np.int64)
    while at.size:
        at = source[at]
        reached = number[at]
        ended = reached >= 0
        after[path[ended]] = reached[ended]
        path, at = path[~ended], at[~ended]
        paths.append(path)
        elements.append(at)
    return np.concatenate(paths), np.concatenate(elements), after


def _linked(after: np.ndarray) -> np.ndarray:
    """The rank of each path when every path is followed by the next one of its cycle."""
    following = after.tolist()
    rank = [-1] * len(following)
    count = 0
    for start in range(len(following)):
        at = start
        while rank[at] < 0:
            rank[at] = count
            count += 1
            at = following[at]
    return np.array(rank, dtype=np.int64)


def _smallest_of_cycles(source: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """The smallest element of each of some whole cycles: the one from which no smaller is met before it comes again."""
    start, at = elements, source[elements]
    found = []
    while start.size:
        found.append(start[at == start])
        larger = at > start
        start, at = start[larger], source[at[larger]]
    return np.concatenate([*found, np.empty(0, dtype=np.int64)])


def _padded(values: np.ndarray, group: int, filler: int) -> np.ndarray:
    padded = np.full(-(-values.size // group) * group, filler, dtype=np.int32)
    padded[: values.size] = values
    return padded


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


def square_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose square matrices (batch, n, n) where they lie, any strides, scaled by `alpha`; no workspace.

    Each element is read once and written once. Scaling complex matrices is not supported on the GPU yet.
    """
    transpose_squares_(matrices[None], alpha)


def rectangular_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose dense row-major matrices (batch, rows, columns), scaled by `alpha`.

    Their strides are (any, columns * step, step); afterwards the same memory holds row-major matrices (batch, columns,
    rows). Workspace as said above. Scaling complex matrices is not supported on the GPU yet.
    """
    _, rows, columns = matrices.shape
    seen = matrices if alpha != 1 or matrices.itemsize > 8 else matrices.view(WORDS[matrices.itemsize])
    workspace = workspace_bytes(seen.numel() * seen.itemsize)
    if rows * columns * seen.itemsize <= workspace:
        transpose_via_workspace_(seen, workspace, alpha)
        return
    schedule = best(rows, columns, seen.itemsize, workspace)
    for matrix in seen:
        decomposed_(matrix, schedule, workspace, alpha)


def decomposed_(matrix: torch.Tensor, schedule: TransposeSchedule, workspace: int, alpha: Scalar) -> None:
    """Transpose one dense row-major matrix in stages."""
    rows, columns = matrix.shape
    main_rows, main_columns, side = schedule.rows, schedule.columns, schedule.side
    room = workspace - (matrix.numel() - main_rows * main_columns) * matrix.itemsize

    # (1) Keep what lies outside the main part, transposed, and take out the padding that it is.
    below = _transposed(matrix[main_rows:], alpha) if main_rows < rows else None
    right = _transposed(matrix[:main_rows, main_columns:], alpha) if main_columns < columns else None
    remove_padding_(matrix[:main_rows], main_columns, room)

    # (2) Transpose the main part, which lies dense now.
    main = _dense(matrix, main_rows, main_columns)
    if schedule.kind == "squares":
        down, across = main_rows // side, main_columns // side
        transpose_squares_(main.unflatten(0, (down, side)).unflatten(2, (across, side)).transpose(1, 2), alpha)
        _move_super_elements(main, side, (down, side, across), room)
    elif schedule.kind == "row panels":
        transpose_via_workspace_(main.unflatten(0, (-1, side)), room, alpha)
        _move_super_elements(main, side, (main_rows // side, 1, columns), room)
    else:
        panels = main_columns // side
        _move_super_elements(main, side, (rows, 1, panels), room)
        transpose_via_workspace_(_dense(matrix, panels * rows, side).unflatten(0, (panels, rows)), room, alpha)

    # (3) Make room for what was kept and put it there.
    result = _dense(matrix, columns, rows)
    insert_padding_(result[:main_columns], main_rows, room)
    if below is not None:
        copy(below, result[:, main_rows:])
    if right is not None:
        copy(right, result[main_columns:, :main_rows])


def _transposed(matrix: torch.Tensor, alpha: Scalar) -> torch.Tensor:
    """A transposed copy."""
    result = torch.empty(matrix.shape[::-1], dtype=matrix.dtype, device=matrix.device)
    copy(matrix.T, result, alpha)
    return result


def _dense(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The first elements of a dense row-major matrix as another one."""
    step = matrix.stride(1)
    return matrix.as_strided((rows, columns), (columns * step, step), int(matrix.storage_offset()))


def _move_super_elements(main: torch.Tensor, side: int, order: tuple[int, int, int], workspace: int) -> None:
    """Move the super-elements of `side` elements of a dense matrix."""
    for words in as_words(_dense(main, main.numel() // side, side)):
        move_super_elements_(words, order, workspace)
