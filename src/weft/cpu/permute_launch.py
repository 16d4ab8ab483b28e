"""Carrying out a permutation on the CPU: strided copies, and the transposition of blocks in cache.

A block of X is copied into a buffer, row by row; there functions and casts are applied; it is transposed in cache; and
its rows are copied to D.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from weft.cpu.permute_blocks import Blocks, Units, read_type, stored_type
from weft.cpu.shuffle import exchanged
from weft.cpu.workers import share
from weft.planner.schedule import Scalar
from weft.spec.permutation import Permutation

_UNPROMOTED = (torch.uint16, torch.uint32, torch.uint64)  # torch adds nothing of another type to these, nor them to it

Extents = tuple[int, ...]


class StraightLaunch:
    """One strided copy, which may cast and conjugate."""

    def __init__(self, permutation: Permutation, moved: Units) -> None:
        self._words = moved.dtype if permutation.is_move else None
        self._conjugate = permutation.conjugate
        self._extents = tuple(mode.extent for mode in moved.modes)
        self._from_x = tuple(mode.strides.a for mode in moved.modes)
        self._to_d = tuple(mode.strides.d for mode in moved.modes)

    def __call__(self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> None:
        source, target = _Memory.of(x, self._words), _Memory.of(d, self._words)
        values = source.view(self._extents, self._from_x)
        target.view(self._extents, self._to_d).copy_(values.conj() if self._conjugate else values)


class _Part(NamedTuple):
    """One block: its extent along every mode, and where it starts in X and in D (units)."""

    extents: Extents
    in_x: int
    in_d: int


class BlockedLaunch:
    """Block by block through a buffer; with `shuffle` each block is transposed before it is written.

    Each of `workers` threads draws blocks and takes them all the way, in its own buffer and cache.
    """

    def __init__(
        self, permutation: Permutation, moved: Units, blocks: Blocks, *, shuffle: bool, workers: int, threads: int
    ) -> None:
        self._permutation = permutation
        self._workers, self._threads = workers, threads
        self._modes = moved.modes
        self._blocks = blocks
        self._shuffle = shuffle
        self._read = blocks.read_order
        self._written = (*blocks.repeated, *(blocks.written_order if shuffle else blocks.read_order))
        self._from_x = tuple(moved.modes[at].strides.a for at in self._read)
        self._to_d = tuple(moved.modes[at].strides.d for at in self._written)
        self._words = moved.dtype if permutation.is_move else None
        self._stored = stored_type(permutation, moved)
        self._first = read_type(permutation, moved)

    def __call__(self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> None:
        source, target = _Memory.of(x, self._words), _Memory.of(d, self._words)

        def work(parts: Iterator[_Part]) -> None:
            size = self._blocks.size(self._read)
            buffer = torch.empty(size, dtype=self._first, device="cpu")
            results = buffer if self._first == self._stored else torch.empty(size, dtype=self._stored, device="cpu")
            for part in parts:
                values = self._values(source, part, buffer, results)
                if self._shuffle:
                    values = exchanged(values, *self._matrices(part.extents))
                self._write(values, target, part, alpha, beta if c is not None else 0)

        # Fewer threads than were planned for are a wish of the caller's.
        if self._workers == 1 or torch.get_num_threads() < self._workers * self._threads:
            work(self._parts())
        else:
            share(work, self._parts(), self._workers, self._threads)

    def _parts(self) -> Iterator[_Part]:
        """All blocks, D's innermost modes fastest."""
        modes, tile = self._modes, self._blocks.tile
        looped = [at for at, mode in enumerate(modes) if mode.extent > tile[at]]
        extents = list(tile)
        for corner in itertools.product(*(range(0, modes[at].extent, tile[at]) for at in looped)):
            in_x = in_d = 0
            for at, start in zip(looped, corner, strict=True):
                extents[at] = min(tile[at], modes[at].extent - start)
                in_x += start * modes[at].strides.a
                in_d += start * modes[at].strides.d
            yield _Part(tuple(extents), in_x, in_d)

    def _values(self, source: _Memory, part: _Part, buffer: torch.Tensor, results: torch.Tensor) -> torch.Tensor:
        """A block of X in the order in which it is read, its function applied, in the type that is stored."""
        shape = tuple(part.extents[at] for at in self._read)
        flat = buffer[: math.prod(shape)]
        block = source.view(shape, self._from_x, part.in_x)
        flat.view(shape).copy_(block.conj() if self._permutation.conjugate else block)
        if self._permutation.fn is None:
            return flat
        return results[: flat.numel()].copy_(self._permutation.fn(flat))  # type: ignore[arg-type]

    def _matrices(self, extents: Extents) -> tuple[int, int, int]:
        """Rows, columns and run of a block."""
        blocks = self._blocks
        groups = (blocks.rows, blocks.columns, blocks.run)
        rows, columns, run = (math.prod(extents[at] for at in group) for group in groups)
        return rows, columns, run

    def _write(self, values: torch.Tensor, target: _Memory, part: _Part, alpha: Scalar, beta: Scalar) -> None:
        """Scale, add and copy to D; copies along repeated modes come from the same values."""
        shape = tuple(part.extents[at] for at in self._written)
        block = target.view(shape, self._to_d, part.in_d)
        values = values.view(shape[len(self._blocks.repeated) :])
        if self._permutation.scaled:
            values.mul_(alpha)
            if beta != 0:
                values.add_(block.to(values.dtype) if block.dtype in _UNPROMOTED else block, alpha=beta)
        block.copy_(values)


class _Memory:
    """A tensor as memory: strided views from its first element on, of its own type or of words."""

    def __init__(self, flat: torch.Tensor, first: int) -> None:
        self._flat = flat
        self._first = first

    @classmethod
    def of(cls, tensor: torch.Tensor, words: torch.dtype | None) -> _Memory:
        if words is None:
            return cls(tensor, int(tensor.storage_offset()))
        if words.itemsize == tensor.itemsize:
            return cls(tensor.view(words), int(tensor.storage_offset()))
        return cls(_as_words(tensor, words), 0)

    def view(self, shape: Extents, strides: Extents, at: int = 0) -> torch.Tensor:
        return self._flat.as_strided(shape, strides, self._first + at)


def _as_words(tensor: torch.Tensor, words: torch.dtype) -> torch.Tensor:
    """The memory that `tensor` spans as a vector of wider words; its address is a multiple of their size.

    `Tensor.view` would also ask that its offset in its storage is one.
    """
    reach = sum(stride * (extent - 1) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)) + 1
    span = _Span(tensor.data_ptr(), reach * tensor.itemsize // words.itemsize, words.itemsize)
    return torch.from_numpy(np.asarray(span)).view(words)


class _Span:
    """Words of memory as NumPy takes them; whoever uses them keeps their tensor alive."""

    def __init__(self, address: int, length: int, size: int) -> None:
        kind = "c" if size == 16 else "i"
        self.__array_interface__ = {
            "data": (address, False), "shape": (length,), "typestr": f"={kind}{size}", "version": 3,
        }  # fmt: skip
