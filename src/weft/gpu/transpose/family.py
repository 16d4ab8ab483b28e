"""Transposition in place: squares, super-elements along cycles, rows that slide, and which of them serves.

Matrices that are no squares are made of them: padding is taken out, the main part moved, and padding put in.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from weft.base.kept import is_capturing, keep_if_captured
from weft.errors import UnsupportedError
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.launch import TRITON_TYPES, KernelLaunch
from weft.gpu.permute import family as permute
from weft.gpu.permute.family import PermuteLaunch
from weft.gpu.permute.schedule import WORDS
from weft.gpu.transpose import model
from weft.gpu.transpose.model import CycleTables, SlideParams, TransposeSchedule
from weft.planner.schedule import Scalar, Target
from weft.planner.target import target_of
from weft.spec import Label, Layout, parse
from weft.spec.permutation import Permutation, canonical_modes

SQUARE, SAVE, CYCLE, SAVE_ENDS, SLIDE = (
    DeviceFunction("weft.gpu.transpose.kernel", f"{name}_kernel")
    for name in ("square", "save", "cycle", "save_ends", "slide")
)

_WARPS = 4


def as_words(matrix: torch.Tensor) -> list[torch.Tensor]:
    """A matrix of elements as matrices of words of at most 8 bytes: one where its rows are contiguous, else two."""
    if matrix.itemsize <= 8:
        return [matrix.view(WORDS[matrix.itemsize])]
    pairs = torch.view_as_real(matrix).view(torch.int64)
    return [pairs.flatten(1)] if matrix.stride(1) == 1 else list(pairs.unbind(-1))


def transpose_squares_(matrices: torch.Tensor, alpha: Scalar) -> None:
    """Transpose square matrices (outer batch, inner batch, n, n) where they lie, any strides."""
    if matrices.shape[-1] == 1 and alpha == 1:
        return
    if matrices.itemsize > 8:
        matrices = torch.view_as_real(matrices)  # five dimensions: an element is two words
    words = matrices if alpha != 1 else matrices.view(WORDS[matrices.itemsize])
    target = target_of("triton", matrices.device)
    square_launch(Layout.of(words), alpha != 1, target)((words,), alpha, 0)


@lru_cache(maxsize=512)
def square_launch(matrices: Layout, scaled: bool, target: Target) -> KernelLaunch:
    tile, warps = model.square_tile(matrices)
    params = model.square_params(matrices, tile)
    scale = torch.float64 if matrices.dtype is torch.float64 else torch.float32
    if not matrices.dtype.is_floating_point:
        scale = torch.int64
    constants = {"PARAMS": params, "SCALE": TRITON_TYPES[scale] if scaled else None}
    programs = matrices.shape[0] * matrices.shape[1] * params.pairs
    real = scale.is_floating_point
    return KernelLaunch(SQUARE, (matrices,), constants, real, target, programs, warps, stages=1)


@lru_cache(maxsize=512)
def cycle_launches(
    part: Layout, group: int, width: int, saved: int, moved: int, target: Target
) -> tuple[KernelLaunch, KernelLaunch]:
    """(saving, moving) a part of all super-elements."""
    params = model.cycle_params(part, group, width, saved)
    words, numbers = Layout.contiguous((saved, params.span), part.dtype), Layout.contiguous((moved,), torch.int32)
    constants = {"PARAMS": params}
    save, move = (count // group * params.parts for count in (saved, moved))
    return (
        KernelLaunch(SAVE, (part, numbers, words), constants, False, target, save, _WARPS, stages=1),
        KernelLaunch(CYCLE, (part, numbers, numbers, words), constants, False, target, move, _WARPS, stages=1),
    )


@lru_cache(maxsize=256)
def slide_launches(
    alignment: int, dtype: torch.dtype, params: SlideParams, target: Target
) -> tuple[KernelLaunch, KernelLaunch]:
    """(saving, sliding) of rows that begin at an address of so many bytes."""
    words = Layout((params.reach,), (params.step,), dtype, alignment)
    layouts, constants = (words, Layout.contiguous((params.saved,), dtype)), {"PARAMS": params}
    ends = params.programs * params.parts
    return (
        KernelLaunch(SAVE_ENDS, layouts, constants, False, target, ends, _WARPS, stages=1),
        KernelLaunch(SLIDE, layouts, constants, False, target, params.programs, _WARPS, stages=1),
    )


def copy(source: torch.Tensor, target: torch.Tensor, alpha: Scalar = 1) -> None:
    """target[...] = alpha * source[...], of the same shape; their memories are apart."""
    if source.numel() == 0:
        return
    if alpha == 1 and source.is_contiguous() and target.is_contiguous():
        target.copy_(source)
        return
    device = target_of("triton", source.device)
    copy_launch(_few_alignments(source), _few_alignments(target), alpha != 1, device)(source, None, target, alpha, 0)


def transpose_via_workspace_(matrices: torch.Tensor, workspace: int, alpha: Scalar) -> None:
    """Transpose dense matrices (batch, rows, columns), as many at a time as fit into the workspace; at least one."""
    batch, rows, columns = matrices.shape
    step, base = matrices.stride(2), int(matrices.storage_offset())
    if batch == 0:
        return
    together = evenly(batch, max(workspace // (rows * columns * matrices.itemsize), 1))
    buffer = torch.empty((together, columns, rows), dtype=matrices.dtype, device=matrices.device)
    for start in range(0, batch, together):
        out = matrices[start : start + together]
        full = buffer[: out.shape[0]]
        copy(out.mT, full, alpha)
        back = (matrices.stride(0), rows * step, step)
        copy(full, matrices.as_strided(full.shape, back, base + start * matrices.stride(0)))


def evenly(count: int, most: int) -> int:
    """How many of `count` to take at a time, at most `most`, so that all rounds are nearly alike."""
    return -(-count // -(-count // most))


def _few_alignments(tensor: torch.Tensor) -> Layout:
    """The layout with an alignment of 16 bytes or of an element, so that kernels are compiled twice at most."""
    layout = Layout.of(tensor)
    return layout if layout.alignment == 16 else layout._replace(alignment=min(tensor.itemsize, 8))


@lru_cache(maxsize=512)
def copy_launch(source: Layout, target: Layout, scaled: bool, device: Target) -> PermuteLaunch:
    term = "abc"[: len(source.shape)]
    extents: dict[Label, int] = dict(zip(term, source.shape, strict=True))
    modes = canonical_modes(parse(f"{term}->{term}"), source, None, target, extents)
    permutation = Permutation(modes, x=source, c=None, d=target, compute=source.dtype, scaled=scaled)
    schedule, _ = permute.best(permutation, device)
    return permute.build(permutation, schedule, device)


def pad_(matrix: torch.Tensor, columns: int, workspace: int, *, insert: bool) -> None:
    """Move the first columns of a dense matrix together: they form a dense matrix afterwards, at the same address; or
    `insert` padding: what is a dense matrix of these columns becomes the first columns of `matrix`."""
    if not _slid(matrix, columns, workspace, insert=insert):
        pitch = matrix.shape[1]
        _move_rows(matrix, columns, *((columns, pitch) if insert else (pitch, columns)), workspace)


def slide_(words: torch.Tensor, params: SlideParams) -> None:
    """Slide the rows that begin with the first word of `words`."""
    saved = torch.empty(params.saved, dtype=words.dtype, device=words.device)
    save, slide = slide_launches(Layout.of(words).alignment, words.dtype, params, target_of("triton", words.device))
    save((words, saved), 0, 0)
    slide((words, saved), 0, 0)


def _slid(matrix: torch.Tensor, columns: int, workspace: int, *, insert: bool) -> bool:
    """Slide the rows, where enough programs can; False where they cannot, and nothing was moved."""
    rows, pitch = matrix.shape
    if pitch == columns or rows < 2:  # the first row stays where it is
        return True
    found = []
    for words in as_words(matrix):
        each = words.shape[1] // pitch  # words of an element
        params = model.slide_params(
            rows, columns * each, (pitch - columns) * each, words.stride(1), words.itemsize, workspace, insert=insert
        )
        if params is None:
            return False
        found.append((words, params))
    for words, params in found:
        slide_(words, params)
    return True


def _move_rows(matrix: torch.Tensor, columns: int, pitch: int, new_pitch: int, workspace: int) -> None:
    """Move rows of some columns, `pitch` elements apart, to a pitch of `new_pitch`, by way of the workspace.

    First to last to a smaller pitch, last to first to a larger one: what is written then was read before. Rows longer
    than the workspace are cut.
    """
    rows, step, base = matrix.shape[0], matrix.stride(1), int(matrix.storage_offset())
    room = max(workspace // matrix.itemsize, 1)
    width = min(columns, room)
    height = evenly(rows - 1, room // width) if width == columns else 1
    buffer = torch.empty(height * width, dtype=matrix.dtype, device=matrix.device)
    blocks = [(i, j) for i in range(1, rows, height) for j in range(0, columns, width)]
    for i, j in blocks if new_pitch < pitch else reversed(blocks):
        shape = (min(height, rows - i), min(width, columns - j))
        full = buffer[: shape[0] * shape[1]].view(shape)
        copy(matrix.as_strided(shape, (pitch * step, step), base + (i * pitch + j) * step), full)
        copy(full, matrix.as_strided(shape, (new_pitch * step, step), base + (i * new_pitch + j) * step))


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
    return CycleTables(*(torch.from_numpy(table).to(device) for table in model.cycle_tables(source, group)))


def _hold(tables: Tables) -> None:
    """Keep the tables' memory for what is being launched, though they may be dropped before it has run."""
    device = tables.target.device
    if device.type != "cuda":
        return
    if not keep_if_captured(device, *tables):
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
    workspace = model.workspace_bytes(seen.numel() * seen.itemsize)
    if rows * columns * seen.itemsize <= workspace:
        transpose_via_workspace_(seen, workspace, alpha)
        return
    schedule = model.best(rows, columns, seen.itemsize, workspace)
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
    pad_(matrix[:main_rows], main_columns, room, insert=False)

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
    pad_(result[:main_columns], main_rows, room, insert=True)
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
