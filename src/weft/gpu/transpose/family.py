"""Transposition in place: squares whose tiles change places, slots that move along cycles, and panels for the rest.

    squares         A x B squares of side s. Each is transposed where it lies; then [A][s][B] slots of s elements become
                    [B][s][A]. A square matrix is one of them, and no slot moves
    row panels      A panels of s rows, and rows left over, which are kept aside. Panels go by way of the workspace, the
                    last first, and come back as slots that stand where those of the result do, A to a row; then
                    [A][columns] slots become [columns][A], and what was kept fills up the rows
    column panels   the same backwards

Every element is moved twice, by way of the workspace three times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from weft.base.kept import is_capturing, keep_if_captured
from weft.errors import UnsupportedError
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import LINE, VECTOR, power_of_two
from weft.gpu.common.launch import TRITON_TYPES, KernelLaunch
from weft.gpu.permute import family as permute
from weft.gpu.permute.schedule import WORDS
from weft.planner.schedule import Scalar, Target
from weft.planner.target import target_of
from weft.spec import Layout, parse
from weft.spec.permutation import Permutation, canonical_modes, scaling_type

LEAST_WORKSPACE = 8 << 20  # bytes that may always be used: a matrix up to here goes out and comes back
MOST_WORKSPACE = 32 << 20  # bytes that are never exceeded


def workspace_bytes(moved_bytes: int) -> int:
    """Bytes that one call may use beside its matrices: an eighth of them, at least 8 MiB and at most 32 MiB."""
    return min(max(moved_bytes // 8, LEAST_WORKSPACE), MOST_WORKSPACE)


class SquareParams(NamedTuple):
    n: int  # rows and columns
    tiles: int  # along a side, even: an odd number is counted one more
    pairs: int  # tiles on and above the diagonal, each with its mirror image
    tile: int  # rows and columns of a tile
    inner: int  # matrices along the inner of two batch dimensions
    strides: tuple[int, ...]  # (outer batch, inner batch, row, column)
    words: int  # of an element, contiguous
    wide: bool  # offsets need 64 bits


def square_params(matrices: Layout, tile: int) -> SquareParams:
    """Parameters for matrices (outer batch, inner batch, n, n), with a last dimension of words where elements are
    two."""
    _, inner, n, _, *words = matrices.shape
    half = -(-n // (2 * tile))
    # Lanes may overhang the extents by a tile before they are masked.
    reach = sum(stride * (extent + tile) for stride, extent in zip(matrices.strides, matrices.shape, strict=True))
    pairs, strides = half * (2 * half + 1), matrices.strides[:4]
    return SquareParams(n, 2 * half, pairs, tile, inner, strides, math.prod(words), reach >= 2**31)


# Rows and columns of a tile and warps of its program, by bytes of an element, as they were fastest on an H200. Large
# tiles are for runs of two lines and more. They are for matrices of many tiles, and where each access takes 16 bytes:
# with narrower ones a thread holds too many addresses.
_LARGE = {1: (64, 8), 2: (128, 16), 4: (64, 8), 8: (64, 8), 16: (16, 4)}
_SMALL = {1: (64, 8), 2: (64, 8), 4: (32, 4), 8: (32, 4), 16: (16, 4)}
_ON_LINES = {2: (128, 8)}  # where rows begin with lines, fewer warps are waited for
_MANY = 8  # tiles along a side


def square_tile(matrices: Layout) -> tuple[int, int]:
    """(rows and columns of a tile, warps) for squares (outer batch, inner batch, n, n) or (..., n, n, words)."""
    size = matrices.dtype.itemsize * (matrices.shape[4] if len(matrices.shape) > 4 else 1)
    tile, warps = _ON_LINES.get(size, _LARGE[size]) if _are_whole(matrices, LINE) else _LARGE[size]
    return (tile, warps) if matrices.shape[2] >= _MANY * tile and _are_whole(matrices, VECTOR) else _SMALL[size]


def _are_whole(matrices: Layout, size: int) -> bool:
    """Whether all rows, or all columns, begin `size` bytes apart or multiples of it, and are made of accesses of 16."""
    unit = max(size // matrices.dtype.itemsize, 1)
    sides = zip(matrices.strides, matrices.shape, strict=True)
    whole = all(stride % unit == 0 for stride, extent in sides if extent > 1 and stride != 1)
    accesses = matrices.shape[3] * matrices.dtype.itemsize % VECTOR == 0 and matrices.alignment == VECTOR
    return whole and accesses and 1 in matrices.strides[2:]


class Slots(NamedTuple):
    """A dense matrix as slots of `side` elements, as many to a row as are whole; row after row, numbered from 0."""

    rows: int
    row: int  # elements from one row to the next
    side: int
    per_row: int

    @classmethod
    def of(cls, rows: int, columns: int, side: int) -> Slots:
        """One to a row where they stand without gaps."""
        if columns % side:
            return cls(rows, columns, side, columns // side)
        return cls(rows * columns // side, side, side, 1)


_WIDTH = 1024  # bytes of each slot that a program moves: runs that memory likes
_HELD = 16384  # bytes that it holds in registers
_GROUPS = (16, 128)  # slots that it moves: at least 16, for an eighth of all would have to be saved with less


class MoveParams(NamedTuple):
    group: int  # slots of a program
    width: int  # words of each that it moves, a power of two
    parts: int  # programs side by side along a slot
    span: int  # words of a slot that are moved
    per_row: int  # slots
    row: int  # from one row to the next
    slot: int  # from one slot to the next
    step: int  # from one word to the next
    wide: bool  # offsets need 64 bits


def move_group(span: int, size: int) -> tuple[int, int]:
    """(slots, words of each) of a program, for slots of so many words of so many bytes."""
    width = min(_WIDTH // size, power_of_two(span))
    return min(max(_HELD // (width * size), _GROUPS[0]), _GROUPS[1]), width


def move_params(slots: Slots, group: int, width: int, span: int, step: int, saved: int) -> MoveParams:
    """Parameters for `span` words of each slot; so many slots are saved."""
    wide = max((slots.rows * slots.row + width) * step, saved * span + width) >= 2**31
    lengths = (slots.per_row, slots.row * step, slots.side * step, step)
    return MoveParams(group, width, -(-span // width), span, *lengths, wide)


def move_tables(source: np.ndarray, group: int) -> tuple[np.ndarray, ...]:
    """Slots to be saved, and the moves of the permutation x[i] <- x[source[i]] of fewer than 2^31 slots.

    Both are (moves, 2) in int32: the slot that is written and the one that it becomes, those saved as -1, -2 and so on.
    Moves of one group may be made at once, and groups in any order; what fills up the last one is alike.
    """
    order = cycle_order(source)
    place = np.empty(source.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    wanted = source[order]
    crossing = np.flatnonzero(place[wanted] // group != np.arange(order.size) // group)
    aside = -1 - np.arange(crossing.size)
    saving = np.stack([aside, wanted[crossing]], 1)
    wanted[crossing] = aside
    moves = saving, np.stack([order, wanted], 1)
    return tuple(np.pad(each, ((0, -len(each) % group), (0, 0))).astype(np.int32) for each in moves)


def cycle_order(source: np.ndarray) -> np.ndarray:
    """All i but fixed points such that source[i] follows i, but for the last of each cycle."""
    after = source.tolist()
    left = bytearray((source != np.arange(source.size)).tobytes())
    order = []
    for start in range(len(after)):
        at = start
        while left[at]:
            left[at] = 0
            order.append(at)
            at = after[at]
    return np.array(order, dtype=np.int64)


# In moves of the whole matrix, as they were measured on an H200.
_VIA_WORKSPACE = 0.7  # that a pass by way of the workspace takes more than one without
_WORD, _LEFT = 2.0, 0.1  # that slots cost more which are moved by single bytes, and rows with gaps behind their slots
_MOST_SLOTS = 1 << 20  # their tables, which are made on the host, count for one


class TransposeSchedule(NamedTuple):
    """A decomposition into squares or panels of that side."""

    kind: str  # "squares", "row panels" or "column panels"
    side: int


@lru_cache(maxsize=256)
def best_decomposition(rows: int, columns: int, itemsize: int, workspace: int) -> TransposeSchedule:
    """The decomposition for a matrix that does not fit into the workspace: squares as large as they can be, or panels
    that the workspace holds, whichever has the longer slots and moves them by the longer words."""

    def moves(sides: np.ndarray, divided: int) -> np.ndarray:
        words = np.gcd(np.gcd(sides, divided) * itemsize, VECTOR)
        return LINE / (sides * itemsize) + _WORD / words + rows * columns / (sides * _MOST_SLOTS)

    common = math.gcd(rows, columns)
    found = [(float(moves(np.array(common), common)), TransposeSchedule("squares", common))]
    for kind, divided, other in (("row panels", rows, columns), ("column panels", columns, rows)):
        thickest = min(3 * workspace // (4 * other * itemsize), divided)
        sides = np.arange(max(thickest >> 10, 1), thickest + 1)
        sides = sides[divided % sides * other * itemsize <= workspace // 4]  # what is left over
        if sides.size:
            cost = _VIA_WORKSPACE + moves(sides, divided) + _LEFT * (divided % sides > 0)
            at = np.argmin(cost)
            found.append((float(cost[at]), TransposeSchedule(kind, int(sides[at]))))
    return min(found)[1]


SQUARE, MOVE = (DeviceFunction("weft.gpu.transpose.kernel", f"{name}_kernel") for name in ("square", "move"))


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
    if matrices.itemsize > 8 and matrices.stride(2) != 1:
        for part in torch.view_as_real(matrices).unbind(-1):
            rectangular_(part)
        return
    workspace = workspace_bytes(matrices.nbytes)
    if rows * columns * matrices.itemsize <= workspace:
        transpose_via_workspace_(matrices, workspace, alpha)
        return
    schedule = best_decomposition(rows, columns, matrices.itemsize, workspace)
    for matrix in matrices:
        decomposed_(matrix, schedule, workspace, alpha)


def transpose_via_workspace_(matrices: torch.Tensor, workspace: int, alpha: Scalar) -> None:
    """Transpose dense matrices (batch, rows, columns), as many at a time as fit into the workspace."""
    _, rows, columns = matrices.shape
    for part in matrices.split(workspace // (rows * columns * matrices.itemsize)):
        result = part.as_strided((len(part), columns, rows), (part.stride(0), rows * part.stride(2), part.stride(2)))
        copy(copied(part.mT, alpha), result)


def decomposed_(matrix: torch.Tensor, schedule: TransposeSchedule, workspace: int, alpha: Scalar) -> None:
    """Transpose one dense row-major matrix in stages."""
    (rows, columns), side = matrix.shape, schedule.side
    down, across = rows // side, columns // side
    if schedule.kind == "squares":
        transpose_squares_(matrix.unflatten(0, (down, side)).unflatten(2, (across, side)).transpose(1, 2), alpha)
        move_slots_(matrix, Slots.of(rows, columns, side), (down, side, across), workspace)
    elif schedule.kind == "row panels":
        result, slots = part_of(matrix, 0, columns, rows), Slots.of(columns, rows, side)
        left, panel = copied(matrix[down * side :].T, alpha), matrix.new_empty((columns, side))
        for at in reversed(range(down)):
            copy(matrix[at * side : (at + 1) * side].T, panel, alpha)
            for values, place in slot_views(panel, matrix, slots, at * columns):
                copy(values, place)
        del panel, values  # the workspace is for slots now
        move_slots_(matrix, slots, (down, 1, columns), workspace - left.nbytes)
        copy(left, result[:, down * side :])
    else:
        slots, left = Slots.of(rows, columns, side), copied(matrix[:, across * side :].T, alpha)
        move_slots_(matrix, slots, (rows, 1, across), workspace - left.nbytes)
        panel = matrix.new_empty((rows, side))
        for at in range(across):
            for values, place in slot_views(panel, matrix, slots, at * rows):
                copy(place, values)
            copy(panel.T, part_of(matrix, at * panel.numel(), side, rows), alpha)
        copy(left, part_of(matrix, across * side * rows, len(left), rows))


def part_of(matrix: torch.Tensor, start: int, rows: int, columns: int) -> torch.Tensor:
    """Elements of a dense row-major matrix, from that on, as another one."""
    step = matrix.stride(1)
    return matrix.as_strided((rows, columns), (columns * step, step), int(matrix.storage_offset()) + start * step)


def slot_views(
    panel: torch.Tensor, matrix: torch.Tensor, slots: Slots, first: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Values of a panel, and the slots from the first on that they are for: those of whole rows, and parts of rows."""
    per_row, end = slots.per_row, first + len(panel)
    lines, values = part_of(matrix, 0, slots.rows, slots.row), panel.view(-1)
    whole = min(-(-first // per_row) * per_row, end)
    last = max(end // per_row * per_row, whole)
    for start, stop in ((first, whole), (whole, last), (last, end)):
        if start < stop:
            columns = slice(start % per_row * slots.side, ((stop - 1) % per_row + 1) * slots.side)
            place = lines[start // per_row : -(-stop // per_row), columns]
            yield values[(start - first) * slots.side : (stop - first) * slots.side].view(place.shape), place


def transpose_squares_(matrices: torch.Tensor, alpha: Scalar) -> None:
    """Transpose square matrices (outer batch, inner batch, n, n) where they lie, any strides."""
    if matrices.itemsize > 8:
        matrices = torch.view_as_real(matrices)  # five dimensions: an element is two words
    words = matrices if alpha != 1 else matrices.view(WORDS[matrices.itemsize])
    square_launch(Layout.of(words), alpha != 1, target_of("triton", matrices.device))((words,), alpha, 0)


@lru_cache(maxsize=512)
def square_launch(matrices: Layout, scaled: bool, target: Target) -> KernelLaunch:
    tile, warps = square_tile(matrices)
    params = square_params(matrices, tile)
    scale = scaling_type(matrices.dtype, matrices.dtype)
    constants = {"PARAMS": params, "SCALE": TRITON_TYPES[scale] if scaled else None}
    programs = matrices.shape[0] * matrices.shape[1] * params.pairs
    return KernelLaunch(SQUARE, (matrices,), constants, scale.is_floating_point, target, programs, warps, stages=1)


def copied(source: torch.Tensor, alpha: Scalar) -> torch.Tensor:
    """alpha * source, contiguous."""
    target = source.new_empty(source.shape)
    copy(source, target, alpha)
    return target


def copy(source: torch.Tensor, target: torch.Tensor, alpha: Scalar = 1) -> None:
    """target[...] = alpha * source[...], of the same shape; their memories are apart.

    Part of a row is for torch: it is of another length in each panel, and a kernel would be compiled for each.
    """
    if alpha == 1 and source.dim() == 2 and len(source) == 1:
        target.copy_(source)
    elif source.numel():
        launch = copy_launch(_layout(source), _layout(target), alpha != 1, target_of("triton", source.device))
        launch(source, None, target, alpha, 0)


def _layout(tensor: torch.Tensor) -> Layout:
    """The layout with an alignment of 16 bytes or of an element, so that kernels are compiled twice at most."""
    layout = Layout.of(tensor)
    return layout if layout.alignment == 16 else layout._replace(alignment=min(tensor.itemsize, 8))


@lru_cache(maxsize=512)
def copy_launch(source: Layout, target: Layout, scaled: bool, device: Target) -> permute.PermuteLaunch:
    notation = parse({2: "ab->ab", 3: "abc->abc"}[len(source.shape)])
    modes = canonical_modes(notation, source, None, target, dict(zip(notation.output, source.shape, strict=True)))
    permutation = Permutation(modes, x=source, c=None, d=target, compute=source.dtype, scaled=scaled)
    schedule, _ = permute.best(permutation, device)
    return permute.build(permutation, schedule, device)


def move_slots_(matrix: torch.Tensor, slots: Slots, order: tuple[int, int, int], workspace: int) -> None:
    """Move the slots of a dense matrix from [A][q][B] to [B][q][A]; `order` is (A, q, B).

    Up to `workspace` bytes are allocated for saved ones, but always enough for a word of each. The tables of a
    permutation, 8 bytes for each slot, stay in the device's memory until those of 8 others were needed, and for good
    once a captured graph uses them. `UnsupportedError` where a graph is captured and they are not there yet.
    """
    words = matrix.as_strided((matrix.numel(),), (matrix.stride(1),))
    if matrix.itemsize > 8:  # without gaps
        words, slots = torch.view_as_real(words).flatten(), slots._replace(row=2 * slots.row, side=2 * slots.side)
    words = words.view(WORDS[words.itemsize])
    group, width = move_group(slots.side, words.itemsize)
    saving, moving = tables = _tables(*order, group, matrix.device)
    if not keep_if_captured(matrix.device, *tables) and matrix.is_cuda:
        for table in tables:  # they may be dropped before what is launched here has run
            table.record_stream(torch.cuda.current_stream(matrix.device))
    count = len(saving)
    room = max(workspace // max(count * words.itemsize, 1), 1)
    span = slots.side if slots.side <= room else room // width * width or power_of_two(room + 1) // 2
    saved = words.new_empty(count * span)
    target = target_of("triton", matrix.device)
    for start in range(0, slots.side, span):
        part = words[start:]
        length = min(span, slots.side - start)
        for moves in (saving, moving):
            launch = move_launch(Layout.of(part), slots, length, group, count, len(moves), target)
            launch((part, saved, moves), 0, 0)


@lru_cache(maxsize=512)
def move_launch(
    words: Layout, slots: Slots, span: int, group: int, saved: int, moves: int, target: Target
) -> KernelLaunch:
    """So many moves of `span` words of slots, which begin with the first of `words`."""
    _, width = move_group(span, words.dtype.itemsize)
    params = move_params(slots, group, width, span, words.strides[0], saved)
    layouts = (words, Layout.contiguous((saved, span), words.dtype), Layout.contiguous((moves, 2), torch.int32))
    programs = moves // group * params.parts
    return KernelLaunch(MOVE, layouts, {"PARAMS": params}, False, target, programs, warps=4, stages=1)


@lru_cache(maxsize=8)
def _tables(outer: int, middle: int, inner: int, group: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    if is_capturing(device):
        raise UnsupportedError("a matrix of this shape must be transposed once before that is captured in a graph")
    source = np.arange(outer * middle * inner).reshape(outer, middle, inner).transpose(2, 1, 0).reshape(-1)
    return tuple(torch.from_numpy(table).to(device) for table in move_tables(source, group))
