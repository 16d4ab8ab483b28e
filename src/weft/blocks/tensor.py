"""A tensor of blocks, which lie one after the other in one buffer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from weft.base.caches import BoundedCache, cached_property
from weft.base.dispatch import near_dynamo, outside
from weft.base.figures import counted
from weft.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, call_context
from weft.groups.operands import as_operands, without_views
from weft.spec.arguments import reads
from weft.spec.dtypes import dtype_name
from weft.spec.group import contiguous_strides

Sector = Hashable
Key = tuple[Sector, ...]

_STRUCTURES = BoundedCache(256)  # by keys and shapes


@dataclass(frozen=True)
class Structure:
    """The blocks that there are, the shape of each, and where it begins in the buffer.

    Blocks of a tensor with symmetries may be others with their modes exchanged, or negated: then `strides` and `signs`
    say how each is read, and `symmetry` has all the permutations of modes, with a sign each, that leave the tensor as
    it is. Otherwise all of them are empty, and each block is contiguous.
    """

    keys: tuple[Key, ...]
    shapes: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...] = ()
    signs: tuple[int, ...] = ()
    symmetry: tuple[tuple[tuple[int, ...], int], ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Made once: every contraction asks for it, and there may be thousands of blocks."""
        return hash((self.keys, self.shapes, self.starts, self.signs, self.symmetry))

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the hash, which is another one in another process."""
        return Structure, (self.keys, self.shapes, self.starts, self.strides, self.signs, self.symmetry)

    @classmethod
    @reads("blocks.Structure.of")
    def of(cls, keys: Sequence[Key], shapes: Sequence[tuple[int, ...]]) -> Structure:
        return _laid_out(keys, shapes)

    def sectors(self) -> tuple[dict[Sector, int], ...]:
        """For each mode its sectors, in the order in which blocks name them, with their extents."""
        found: tuple[dict[Sector, int], ...] = tuple([{} for _ in self.keys[0]])
        for key, shape in zip(self.keys, self.shapes, strict=True):
            for mode, sector, extent in zip(found, key, shape, strict=True):
                mode[sector] = extent
        return found

    def slices(self, modes: Sequence[Mapping[Sector, int]]) -> list[tuple[slice, ...]]:
        """Where blocks are in the dense tensor whose modes have these sectors, in their order."""
        starts = [dict(zip(mode, itertools.accumulate([0, *mode.values()]), strict=False)) for mode in modes]
        return [
            tuple([slice(start[at], start[at] + extent) for start, at, extent in zip(starts, key, shape, strict=True)])
            for key, shape in zip(self.keys, self.shapes, strict=True)
        ]

    @cached_property
    def size(self) -> int:
        """Elements of the buffer."""
        last = max(range(len(self.starts)), key=self.starts.__getitem__) if self.strides else -1
        return self.starts[last] + math.prod(self.shapes[last])

    @cached_property
    def stored(self) -> range | list[int]:
        """The numbers of the blocks that the buffer holds, each once, as they are."""
        if not self.strides:
            return range(len(self.keys))
        first: dict[int, int] = {}
        for at, start in enumerate(self.starts):
            first.setdefault(start, at)
        return list(first.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the buffer."""
        return (self.size,)

    def layout(self, strides: tuple[int, ...] | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The shapes and the strides of blocks, (blocks, rank) each, and where they begin."""
        shapes = np.array(self.shapes, np.int64).reshape(len(self.starts), -1)
        own = np.array(self.strides, np.int64) if self.strides else contiguous_strides(shapes)
        return shapes, own, np.array(self.starts, np.int64)

    def read(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer in memory: a gradient may be any view."""
        return buffer.resolve_conj().resolve_neg().contiguous()

    def joined(self, found: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The buffer of some blocks; others are zero."""
        one = next(iter(found.values()))
        return torch.cat([
            found[at].reshape(-1) if at in found else one.new_zeros(math.prod(self.shapes[at])) for at in self.stored
        ])  # fmt: skip

    def block(self, buffer: torch.Tensor, at: int) -> torch.Tensor:
        """The block of that number, a view; a copy where it is another one negated."""
        shape, start = self.shapes[at], self.starts[at]
        if not self.strides:
            return buffer[start : start + math.prod(shape)].view(shape)
        view = buffer.as_strided(shape, self.strides[at], buffer.storage_offset() + start)
        return view if self.signs[at] > 0 else -view


class BlockError(ArgumentError, KeyError):
    """A tensor has no block of that name."""

    __str__ = Exception.__str__


class BlockTensor:
    """A tensor of which only some blocks are not zero.

    `blocks`: from a tuple of sectors, one for each mode, to a tensor of as many dimensions; one type and device for
    all, and one extent for a sector of a mode. They are copied into one `buffer`, through which gradients reach them;
    ``tensor[key]`` is a view of it.

    >>> import torch, weft
    >>> parts = {(0, 0): torch.ones(2, 3), (1, 1): torch.ones(4, 1)}
    >>> x = weft.blocks.BlockTensor(parts)
    >>> weft.blocks.contract("ab,cb->ac", x, x)[1, 1].shape
    torch.Size([4, 4])
    """

    def __init__(self, blocks: Mapping[Key, Any]) -> None:
        self._set(*(outside(_built, blocks) if near_dynamo() else _built(blocks)))

    def _set(self, structure: Structure, buffer: torch.Tensor) -> None:
        self.structure, self.buffer = structure, buffer
        self._place = {key: at for at, key in enumerate(structure.keys)}

    @classmethod
    def over(cls, structure: Structure, buffer: torch.Tensor) -> BlockTensor:
        """Blocks that lie in a buffer already, where the structure says."""
        made = cls.__new__(cls)
        made._set(structure, buffer)
        return made

    @property
    def dtype(self) -> torch.dtype:
        """The type of all blocks."""
        return self.buffer.dtype

    @property
    def device(self) -> torch.device:
        """Where the buffer lies."""
        return self.buffer.device

    @property
    def rank(self) -> int:
        """How many modes each block has."""
        return len(self.structure.keys[0])

    def keys(self) -> tuple[Key, ...]:
        """The tuples of sectors that name the blocks, in the order of the buffer."""
        return self.structure.keys

    def items(self) -> Iterator[tuple[Key, torch.Tensor]]:
        """Each key with its block, a view of the buffer."""
        return ((key, self[key]) for key in self.structure.keys)

    def __len__(self) -> int:
        return len(self.structure.keys)

    def __contains__(self, key: object) -> bool:
        try:
            return key in self._place
        except TypeError:  # what has no hash names no block
            return False

    def __getitem__(self, key: Key) -> torch.Tensor:
        if key not in self:
            there = ", ".join(map(repr, self.structure.keys[:8]))
            raise BlockError(f"there is no block {key!r}: the blocks are {there}")
        return self.structure.block(self.buffer, self._place[key])

    def __repr__(self) -> str:
        size = f"{counted(len(self), 'block')} of {counted(self.rank, 'mode')}"
        return f"BlockTensor({size}, {dtype_name(self.dtype)}, {self.device})"

    def sectors(self) -> tuple[dict[Sector, int], ...]:
        """For each mode its sectors, in the order in which blocks name them, with their extents."""
        return self.structure.sectors()

    @reads("blocks.BlockTensor.to_dense")
    def to_dense(self, sectors: Sequence[Mapping[Sector, int]] | None = None) -> torch.Tensor:
        """The whole tensor, zeros and all; `sectors` says which each mode has and in which order (see `sectors`)."""
        modes = self.sectors() if sectors is None else sectors
        for mode, own in enumerate(self.sectors()):
            if len(modes) != self.rank or not own.items() <= modes[mode].items():
                raise ShapeError(f"sectors has those of each of {self.rank} modes, those of the blocks among them")
        dense = self.buffer.new_zeros([sum(mode.values()) for mode in modes])
        for at, place in enumerate(self.structure.slices(modes)):
            dense[place] = self.structure.block(self.buffer, at)
        return dense


def _built(blocks: Mapping[Key, Any]) -> tuple[Structure, torch.Tensor]:
    """The structure of some blocks, kept for others of the same keys and shapes, and a buffer with their values."""
    with call_context(lambda: "BlockTensor"):
        if not isinstance(blocks, Mapping) or not len(blocks):
            raise ArgumentError("blocks is a dict with one block at least, from tuples of sectors to tensors")
        keys = tuple(blocks)
        tensors = without_views(as_operands([*blocks.values()], lambda at: f"block {keys[at]}"))
        shapes = tuple(map(_SHAPE, tensors))
        structure: Structure = _STRUCTURES.made((keys, shapes), lambda: _checked(keys, shapes))
        _check_alike(keys, tensors)
    buffer = torch._C._nn.flatten_dense_tensors(list(tensors))
    return structure, buffer.clone() if len(tensors) == 1 else buffer  # one tensor is flattened where it lies


_SHAPE, _KIND = attrgetter("shape"), attrgetter("dtype", "device")


def _checked(keys: tuple[Key, ...], shapes: Sequence[torch.Size]) -> Structure:
    """The structure of blocks that are alike in rank and in the extents of sectors."""
    extents: dict[tuple[int, Sector], int] = {}
    for key, shape in zip(keys, shapes, strict=True):
        if not isinstance(key, tuple):
            raise ArgumentError(f"block {key!r} is named by a tuple, a sector for each mode")
        if not len(shape) == len(key) == len(keys[0]):
            wanted = counted(len(keys[0]), "mode")
            raise ShapeError(f"block {key} has {counted(len(shape), 'dimension')}, the first {wanted}")
        for mode, (sector, extent) in enumerate(zip(key, shape, strict=True)):
            if extents.setdefault((mode, sector), extent) != extent:
                raise ShapeError(
                    f"sector {sector!r} of mode {mode} has extent {extent} in block {key}, "
                    f"{extents[mode, sector]} in another"
                )
    return _laid_out(keys, shapes)


def _laid_out(keys: Sequence[Key], shapes: Sequence[Sequence[int]]) -> Structure:
    """Blocks one after the other."""
    starts = [0, *itertools.accumulate(map(math.prod, shapes))]
    return Structure(tuple(keys), tuple([tuple(shape) for shape in shapes]), tuple(starts[:-1]))


def _check_alike(keys: tuple[Key, ...], tensors: Sequence[torch.Tensor]) -> None:
    """One type and one device for all."""
    dtype, device = tensors[0].dtype, tensors[0].device
    if set(map(_KIND, tensors)) == {(dtype, device)}:
        return
    for key, tensor in zip(keys, tensors, strict=True):
        if tensor.dtype != dtype:
            raise DTypeError(f"block {key} is {dtype_name(tensor.dtype)}, {keys[0]} is {dtype_name(dtype)}")
        if tensor.device != device:
            raise UnsupportedError(f"block {key} is on {tensor.device}, {keys[0]} is on {device}")
