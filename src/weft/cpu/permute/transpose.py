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
from weft.cpu.host import scalar_words, together
from weft.cpu.permute import params as at
from weft.cpu.permute.schedule import LINE, SMALL, SQUARES
from weft.planner.schedule import Scalar
from weft.spec.permutation import scaling_type

PANEL = 1 << 21  # bytes
SIDE = 64  # of the tiles of square matrices
LEAST = 128  # bytes of a vector: panels of wider matrices take more than PANEL

_Words = ctypes.c_int64 * at.CALL_WORDS
KERNELS = ("pairs", "panels", "cycles")


def square_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose square matrices (batch, n, n) in place, any strides, scaled by `alpha`."""
    call = _square_call(matrices.shape, matrices.stride(), matrices.dtype, alpha)
    if call is None:
        _by_way_of_a_copy(matrices, alpha)
    else:
        call(matrices.data_ptr())


@lru_cache(maxsize=1024)
def _square_call(shape: Sequence[int], strides: tuple[int, ...], dtype: torch.dtype, alpha: Scalar) -> _Call | None:
    """The call that transposes square matrices of that layout; None where there is no kernel for them."""
    if not _has_kernels(dtype, alpha):
        return None
    (batch, n, _), (_, row, column) = shape, strides
    call = _Call(dtype, strides[0], math.prod(shape), alpha, min(n, SIDE), (max(row, column), min(row, column)))
    sides = max(n // SIDE, 1)
    most = n - SIDE * (sides - 1)
    room = 2 * most * most * dtype.itemsize + 32 * most + 2 * LINE
    words = {at.WIDTH: n, at.SIDE: SIDE, at.SIDES: sides, at.ROOM: room}
    return call.of("pairs", words, batch * (sides * (sides + 1) // 2))


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
    return jit.compiled(jit.kernel_source(f"weft.cpu.permute.transpose_kernel.{name}"), kernel=True)


class _Call:
    """A block of words for calls on matrices of one kind; they may run in several threads at once."""

    def __init__(
        self, dtype: torch.dtype, batch_step: int, elements: int, alpha: Scalar, shortest: int, steps: tuple[int, int]
    ) -> None:
        from weft.cpu.permute.launch import Values, cells_kernel, squares_of, stage

        size = dtype.itemsize
        self._words = np.zeros(at.PLACE_WORDS, np.int64)
        self._bytes = elements * size
        self._scalars = [0] * 4
        if alpha != 1:
            self._words[at.SCALE] = stage(Values(dtype, dtype, scaled=True)).address
            self._scalars = [*scalar_words(alpha, 0, scaling_type(dtype, dtype))]
        side = next((side for side in SQUARES[size] if side <= shortest), 0) if steps[1] == 1 else 0
        self._words[at.TURN] = squares_of(size, side) if side else 0
        self._words[at.COPY], self._words[at.ITEM] = cells_kernel(), size
        self._words[at.BATCH_STEP] = batch_step * size
        self._words[at.ROW_STEP], self._words[at.COLUMN_STEP] = steps[0] * size, steps[1] * size

    def of(self, name: str, words: dict[int, int], tasks: int) -> _Call:
        """This call of the kernel of that name."""
        for place, value in words.items():
            self._words[place] = value
        self._words[at.PLACE_TASKS], self._tasks = tasks, tasks
        self._plan, self._kernel = self._words.ctypes.data, kernel_of(name)
        return self

    def __call__(self, address: int) -> None:
        """Run it on the matrices at an address."""

        frame = _Words(self._plan, 0, *self._scalars, address)
        together(self._kernel, frame, self._tasks if 2 * self._bytes > SMALL else 1)


def _panels(matrices: torch.Tensor, alpha: Scalar, height: int) -> None:
    """Each panel of `height` rows to what were its columns; the last panel may have fewer rows."""
    _panels_call(matrices.shape, matrices.stride(), matrices.dtype, alpha, height)(matrices.data_ptr())


@lru_cache(maxsize=1024)
def _panels_call(
    shape: Sequence[int], strides: tuple[int, ...], dtype: torch.dtype, alpha: Scalar, height: int
) -> _Call:
    """The call that transposes panels of matrices of that layout."""
    (batch, rows, columns), size, step = shape, dtype.itemsize, strides[2]
    count = -(-rows // height)
    last = rows - (count - 1) * height
    call = _Call(dtype, strides[0], math.prod(shape), alpha, min(last, columns), (columns * step, step))
    room = height * columns * size + 24 * (height + columns) + 2 * LINE
    words = {
        at.HEIGHT: height, at.LAST_HEIGHT: last, at.PANELS: count, at.PANEL_STEP: height * columns * step * size,
        at.WIDTH: columns, at.ROOM: room,
    }  # fmt: skip
    return call.of("panels", words, batch * count)


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
        _insert(memory, short, count * height, left)
        return
    _extract(memory, short, count * height, left)
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
    call = _Call(memory.dtype, 0, memory.numel(), 1, 0, (1, 1))
    size = height * memory.itemsize
    parts = min(torch.get_num_threads(), max(size // LINE, 1))
    words = {at.VECTOR: size, at.VECTOR_ROWS: rows, at.VECTOR_COLUMNS: columns, at.PARTS: parts}
    call.of("cycles", words, parts)(memory.data_ptr())


def _insert(memory: torch.Tensor, short: int, body: int, tail: int) -> None:
    """S bodies and behind them S tails -> each tail behind its body."""
    if tail:
        start, size = memory.data_ptr(), memory.itemsize
        tails = memory[short * body :].clone()
        for s in reversed(range(short)):
            end = start + s * (body + tail) * size
            ctypes.memmove(end, start + s * body * size, body * size)
            ctypes.memmove(end + body * size, tails.data_ptr() + s * tail * size, tail * size)


def _extract(memory: torch.Tensor, short: int, body: int, tail: int) -> None:
    """The inverse: each tail behind its body -> S bodies and behind them S tails."""
    if tail:
        start, size = memory.data_ptr(), memory.itemsize
        tails = memory.view(short, body + tail)[:, body:].contiguous()
        for s in range(short):
            ctypes.memmove(start + s * body * size, start + s * (body + tail) * size, body * size)
        memory[short * body :].copy_(tails.view(-1))


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
