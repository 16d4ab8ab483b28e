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

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch

from weft.base.kept import is_capturing, keep_if_captured
from weft.errors import UnsupportedError
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.launch import TRITON_TYPES, KernelLaunch
from weft.gpu.permute import family as permute
from weft.gpu.permute.schedule import WORDS
from weft.gpu.transpose import model
from weft.gpu.transpose.model import Slots, TransposeSchedule
from weft.planner.schedule import Scalar, Target
from weft.planner.target import target_of
from weft.spec import Layout, parse
from weft.spec.permutation import Permutation, canonical_modes, scaling_type

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
    workspace = model.workspace_bytes(matrices.nbytes)
    if rows * columns * matrices.itemsize <= workspace:
        transpose_via_workspace_(matrices, workspace, alpha)
        return
    schedule = model.best(rows, columns, matrices.itemsize, workspace)
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
    tile, warps = model.square_tile(matrices)
    params = model.square_params(matrices, tile)
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
    group, width = model.move_group(slots.side, words.itemsize)
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
    _, width = model.move_group(span, words.dtype.itemsize)
    params = model.move_params(slots, group, width, span, words.strides[0], saved)
    layouts = (words, Layout.contiguous((saved, span), words.dtype), Layout.contiguous((moves, 2), torch.int32))
    programs = moves // group * params.parts
    return KernelLaunch(MOVE, layouts, {"PARAMS": params}, False, target, programs, warps=4, stages=1)


@lru_cache(maxsize=8)
def _tables(outer: int, middle: int, inner: int, group: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    if is_capturing(device):
        raise UnsupportedError("a matrix of this shape must be transposed once before that is captured in a graph")
    source = np.arange(outer * middle * inner).reshape(outer, middle, inner).transpose(2, 1, 0).reshape(-1)
    return tuple(torch.from_numpy(table).to(device) for table in model.move_tables(source, group))
