"""Matrices transposed in place on the CPU: the two doors, as `weft.gpu.transpose.family` has them for the GPU.

    square_         tiles and their mirror images change places: every element is read and written once
    rectangular_    panels of whole rows, each transposed in a buffer; vectors of what were a panel's columns are then
                    moved along the cycles of their permutation. Rows that no panel of one height takes are put between
                    at the end. A wide matrix goes the same way backwards. Every element is moved twice, or three times

Where numba is missing, for elements with gaps between them, and to scale what the kernels do not compute with, a matrix
goes by way of a copy.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from weft.cpu import jit
from weft.cpu.host import PlanWords, WordsLaunch, scalar_words
from weft.cpu.permute import params as at
from weft.cpu.permute.schedule import LINE, SMALL, SQUARES
from weft.planner.schedule import Scalar
from weft.spec.permutation import scaling_type

PANEL = 1 << 21  # bytes
SIDE = 64  # of the tiles of square matrices
LEAST = 128  # bytes of a vector: panels of wider matrices take more than PANEL

KERNELS = ("blocks", "cycles")
_Words = ctypes.c_int64 * at.CALL_WORDS
_UNSCALED = (0, 0, 0, 0)


def square_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose square matrices (batch, n, n) in place, any strides, scaled by `alpha`."""
    call = _blocks(matrices.shape, matrices.stride(), matrices.dtype, alpha)
    if call is None:
        _by_way_of_a_copy(matrices, alpha)
    else:
        call(matrices.data_ptr())


def rectangular_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose dense row-major matrices (batch, rows, columns), scaled by `alpha`.

    Their strides are (any, columns * step, step); afterwards the same memory holds row-major matrices (batch, columns,
    rows). Workspace: up to 2 MiB for each thread; where the shorter side is over 16 Ki elements it grows with the side.
    Besides, a bit for each vector of at least 128 bytes.
    """
    _, rows, columns = matrices.shape
    size, step = matrices.itemsize, matrices.stride(2)
    whole = rows * columns * size <= PANEL
    if not _has_kernels(matrices.dtype, alpha) or (step != 1 and not whole):
        _by_way_of_a_copy(matrices, alpha)
    elif whole:
        _panels(matrices, alpha, rows)
    else:
        for matrix in matrices:
            _large(matrix, alpha)


def _has_kernels(dtype: torch.dtype, alpha: Scalar) -> bool:
    if jit.fault() is not None or dtype.itemsize not in SQUARES:
        return False
    from weft.cpu.gett.family import LOADABLE

    return alpha == 1 or dtype in LOADABLE


def kernel_of(name: str) -> int:
    """The address of one of `KERNELS`."""
    return jit.compiled_kernel(f"weft.cpu.permute.transpose_kernel.{name}")


class _Call(WordsLaunch):
    """A call of a kernel on matrices of one kind, wherever they are: so many bytes, shared out as so many tasks."""

    def __init__(self, name: str, size: int, tasks: int, words: dict[int, int], scalars: Sequence[int] = _UNSCALED):
        super().__init__(kernel_of(name), tasks if 2 * size > SMALL else 1)
        self._plan, self._scalars = PlanWords(at.PLACE_WORDS), scalars
        for place, value in words.items():
            self._plan.words[place] = value
        self._plan.words[at.PLACE_TASKS] = tasks

    def __call__(self, address: int) -> None:
        """Run it on the matrices at an address."""
        self.start(_Words(self._plan.address, 0, *self._scalars, address))


@lru_cache(maxsize=1024)
def _blocks(
    shape: Sequence[int], strides: tuple[int, ...], dtype: torch.dtype, alpha: Scalar, height: int = 0
) -> _Call | None:
    """The call that transposes matrices of that layout: each panel of `height` rows to what were its columns, or
    square ones by tiles where there is no height; None where there is no kernel for them."""
    if not _has_kernels(dtype, alpha):
        return None
    from weft.cpu.permute.launch import Values, cells_kernel, squares_of, stage

    (batch, rows, across), size, paired = shape, dtype.itemsize, not height
    if paired:
        height, sides = min(SIDE, rows), max(rows // SIDE, 1)
        last = across = rows - height * (sides - 1)
        step, row_step = sorted(strides[1:])
    else:
        sides = -(-rows // height)
        last = rows - height * (sides - 1)
        step, row_step = strides[2], across * strides[2]
    most = max(height, last)
    side = next((side for side in SQUARES[size] if side <= min(height, last, across)), 0) if step == 1 else 0
    room = (1 + paired) * most * across * size + 16 * (most + across) + 8 * max(most, across) + 2 * LINE
    words = {
        at.PAIRED: paired, at.SIDE: height, at.LAST: last, at.SIDES: sides, at.ACROSS: across, at.ROOM: room,
        at.BATCH_STEP: strides[0] * size, at.ROW_STEP: row_step * size, at.COLUMN_STEP: step * size, at.ITEM: size,
        at.TURN: squares_of(size, side) if side else 0, at.COPY: cells_kernel(),
        at.SCALE: stage(Values(dtype, dtype, scaled=True)).address if alpha != 1 else 0,
    }  # fmt: skip
    scalars = scalar_words(alpha, 0, scaling_type(dtype, dtype)) if alpha != 1 else _UNSCALED
    tasks = batch * (sides * (sides + 1) // 2 if paired else sides)
    return _Call("blocks", math.prod(shape) * size, tasks, words, scalars)


def _panels(matrices: torch.Tensor, alpha: Scalar, height: int) -> None:
    """Each panel of `height` rows to what were its columns; the last panel may have fewer rows."""
    call = _blocks(matrices.shape, matrices.stride(), matrices.dtype, alpha, height)
    assert call is not None, "there are kernels"
    call(matrices.data_ptr())


def _large(matrix: torch.Tensor, alpha: Scalar) -> None:
    """One matrix without gaps. Of its longer side `height` elements make a vector, and left over ones a shorter."""
    rows, columns = matrix.shape
    short, long = sorted((rows, columns))
    height = _height(short, long, matrix.itemsize)
    count, left = divmod(long, height)
    memory = matrix.as_strided((rows * columns,), (1,), int(matrix.storage_offset()))
    if rows == long:
        _panels(matrix[None], alpha, height)
        _move_vectors(memory, height, count, short)
        _slide(memory, short, count * height, left, insert=True)
        return
    _slide(memory, short, count * height, left, insert=False)
    _move_vectors(memory, height, short, count)
    full = short * count * height
    _panels(memory[:full].view(count, short, height), alpha, short)
    if left:
        _panels(memory[full:].view(1, short, left), alpha, short)


def _height(short: int, long: int, size: int) -> int:
    """The height of panels: a divisor of the longer side near what PANEL holds, where there is one."""
    wanted = min(max(PANEL // (short * size), LEAST // size), long)
    near = np.arange(wanted, max(wanted // 2, LEAST // size) - 1, -1)
    divisors = near[long % near == 0]
    return int(divisors[0]) if len(divisors) else wanted


def _move_vectors(memory: torch.Tensor, height: int, rows: int, columns: int) -> None:
    from weft.cpu.permute.launch import cells_kernel

    size = height * memory.itemsize
    words = {at.COPY: cells_kernel(), at.VECTOR: size, at.VECTOR_ROWS: rows, at.VECTOR_COLUMNS: columns}
    parts = min(torch.get_num_threads(), max(size // LINE, 1))
    _Call("cycles", memory.numel() * memory.itemsize, parts, words)(memory.data_ptr())


def _slide(memory: torch.Tensor, short: int, body: int, tail: int, *, insert: bool) -> None:
    """Each of S tails, which stand behind S bodies, to behind its own; or the inverse."""
    if not tail:
        return
    start, size = memory.data_ptr(), memory.itemsize
    own, apart = memory.view(short, body + tail)[:, body:], memory[short * body :].view(short, tail)
    tails = (apart if insert else own).clone()
    for s in reversed(range(short)) if insert else range(short):
        wide, narrow = start + s * (body + tail) * size, start + s * body * size
        ctypes.memmove(*((wide, narrow) if insert else (narrow, wide)), body * size)
    (own if insert else apart).copy_(tails)


def _by_way_of_a_copy(matrices: torch.Tensor, alpha: Scalar) -> None:
    """Matrices (batch, rows, columns) in place, one after the other, each by way of a copy."""
    for matrix in matrices:
        rows, columns = matrix.shape
        step = matrix.stride(1)
        target = matrix if rows == columns else matrix.as_strided(
            (columns, rows), (rows * step, step), int(matrix.storage_offset())
        )  # fmt: skip
        scale = scaling_type(matrix.dtype, matrix.dtype)
        target.copy_(matrix.T.to(scale, copy=True).mul_(alpha) if alpha != 1 else matrix.T.clone())
