"""Block-sparse tensors, as tensor networks with symmetries have them: a dict of blocks, each named by its sectors.

A sector is any hashable label of a part of a mode: a charge, say. A block is named by one sector for each mode. Blocks
that are not there are zero. All blocks lie in one buffer, and a contraction of two tensors is one launch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.api import contract as pairwise
from weft.api.keywords import Equation
from weft.api.lookup import read_notation
from weft.api.options import read_options, resolved
from weft.base.arrays import as_tensor
from weft.base.bounded_cache import BoundedCache
from weft.base.describe import describe_call
from weft.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, call_context
from weft.groups.launch import launch_of
from weft.plans.checks import reject_gradient
from weft.plans.keywords import refuse_unknown
from weft.spec import Notation
from weft.spec.dtypes import dtype_name
from weft.spec.group import contiguous_strides, group_form, group_table
from weft.spec.notation import term_text

Sector = Hashable
Key = tuple[Sector, ...]

_PLANS = BoundedCache(512)


class Structure(NamedTuple):
    """Which blocks there are, of which shapes, and where each begins in the buffer."""

    keys: tuple[Key, ...]
    shapes: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, keys: Sequence[Key], shapes: Sequence[tuple[int, ...]]) -> Structure:
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        starts = [0, *itertools.accumulate(sizes)]
        return cls(tuple(keys), tuple(shapes), tuple(starts[:-1]))


class BlockTensor:
    """A tensor of which only some blocks are not zero.

    `blocks`: from a tuple of sectors, one for each mode, to a tensor of as many dimensions; one type and device for
    all, and one extent for a sector of a mode. They are copied into one `buffer`; ``tensor[key]`` is a view of it.

    >>> import torch, weft
    >>> x = weft.blocks.BlockTensor({(0, 0): torch.ones(2, 3), (1, 1): torch.ones(4, 1)})
    >>> weft.blocks.contract("ab,cb->ac", x, x)[1, 1].shape
    torch.Size([4, 4])
    """

    def __init__(self, blocks: Mapping[Key, Any]) -> None:
        with call_context(lambda: describe_call("BlockTensor", f"{len(blocks)} blocks")):
            keys, tensors = _read(blocks)
        structure = Structure.of(keys, [tuple(tensor.shape) for tensor in tensors])
        self._set(structure, torch.cat([tensor.reshape(-1) for tensor in tensors]))

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
        return self.buffer.dtype

    @property
    def device(self) -> torch.device:
        return self.buffer.device

    @property
    def rank(self) -> int:
        return len(self.structure.keys[0])

    def keys(self) -> tuple[Key, ...]:
        return self.structure.keys

    def items(self) -> Iterator[tuple[Key, torch.Tensor]]:
        return ((key, self[key]) for key in self.structure.keys)

    def __len__(self) -> int:
        return len(self.structure.keys)

    def __contains__(self, key: object) -> bool:
        return key in self._place

    def __getitem__(self, key: Key) -> torch.Tensor:
        at = self._place[key]
        shape, start = self.structure.shapes[at], self.structure.starts[at]
        return self.buffer[start : start + int(np.prod(shape, dtype=np.int64))].view(shape)

    def __repr__(self) -> str:
        return f"BlockTensor({len(self)} blocks of {self.rank} modes, {dtype_name(self.dtype)}, {self.device})"

    def sectors(self) -> tuple[dict[Sector, int], ...]:
        """For each mode its sectors, in the order in which blocks name them, with their extents."""
        found: tuple[dict[Sector, int], ...] = tuple({} for _ in range(self.rank))
        for key, shape in zip(self.structure.keys, self.structure.shapes, strict=True):
            for mode, sector, extent in zip(found, key, shape, strict=True):
                mode[sector] = extent
        return found

    def to_dense(self, sectors: Sequence[Mapping[Sector, int]] | None = None) -> torch.Tensor:
        """The whole tensor, zeros and all; `sectors` says which each mode has and in which order (see `sectors`)."""
        modes = self.sectors() if sectors is None else sectors
        starts = [dict(zip(mode, itertools.accumulate([0, *mode.values()]), strict=False)) for mode in modes]
        dense = self.buffer.new_zeros([sum(mode.values()) for mode in modes])
        for key, block in self.items():
            at = tuple(slice(start[sector], start[sector] + extent)
                       for start, sector, extent in zip(starts, key, block.shape, strict=True))  # fmt: skip
            dense[at] = block
        return dense


def contract(equation: Equation, a: BlockTensor, b: BlockTensor, **keywords: Any) -> BlockTensor:
    """Contract two block-sparse tensors in one launch: blocks meet where the sectors of the modes they share agree.

    `equation` as for `weft.contract`, without ``...`` and without a label twice in one operand. `a_fn`, `b_fn` and
    `epilogue` are functions of the values of blocks; what is no block stays zero, whatever they make of zero.
    `out_dtype`, `precision`, `accumulate`, `backend` as for `weft.contract`. Every block of the result is the sum of
    all its products, in the order of the blocks of `a`. The plan is kept for tensors of the same blocks.

    Raises what `weft.contract` raises; a `ShapeError` names the sector whose extents differ. A result without a block
    is a `ShapeError`, too: no sectors meet.
    """
    with call_context(lambda: describe_call("blocks.contract", equation)):
        refuse_unknown("blocks.contract", keywords)
        for name, value in (("a", a), ("b", b)):
            if not isinstance(value, BlockTensor):
                raise ArgumentError(f"{name} is a weft.blocks.BlockTensor, not {type(value).__name__}")
        if a.device != b.device:
            raise UnsupportedError(f"a is on {a.device}, b on {b.device}")
        notation = read_notation(equation)
        key = (notation, a.structure, b.structure, a.dtype, b.dtype, a.device, tuple(keywords.items()))
        try:
            plan = _PLANS.get(key)
        except TypeError:
            raise ArgumentError("a keyword of blocks.contract has no hash") from None
        if plan is None:
            plan = _Plan(notation, a, b, keywords)
            _PLANS.put(key, plan)
        return plan(a, b)


class _Plan:
    """Which blocks meet, and the launch that multiplies them."""

    def __init__(self, notation: Notation, a: BlockTensor, b: BlockTensor, keywords: dict[str, Any]) -> None:
        for name, term, tensor in zip("ab", notation.inputs, (a, b), strict=True):
            if len(term) != tensor.rank:
                text = term_text(term)
                raise ShapeError(f"'{text}' has {len(term)} labels, the blocks of {name} {tensor.rank} modes")
            if len(set(term)) < len(term):
                raise UnsupportedError(f"'{term_text(term)}' has a label twice: diagonals are not for blocks")
        self._notation, self._keywords = notation, keywords
        self._pairs = meeting(notation, a.structure, b.structure)
        if not self._pairs:
            raise ShapeError(f"no blocks of a and b meet by '{notation}': the result is zero")
        rows = [(i, j) for pairs in self._pairs.values() for i, j in pairs]
        shapes = [np.array([tensor.structure.shapes[row[at]] for row in rows], np.int64).reshape(len(rows), -1)
                  for at, tensor in enumerate((a, b))]  # fmt: skip
        _check_sectors(notation, a, b)
        form = group_form(notation)
        table, d_shapes = group_table(form, shapes, [contiguous_strides(each) for each in shapes])
        for at, tensor in enumerate((a, b)):
            table.rows[:, at] = [tensor.structure.starts[row[at]] for row in rows]
        ends = np.cumsum([len(pairs) for pairs in self._pairs.values()])
        firsts = ends - [len(pairs) for pairs in self._pairs.values()]
        self.structure = Structure.of(list(self._pairs), [tuple(shape) for shape in d_shapes[firsts].tolist()])
        outputs = np.stack([np.array(self.structure.starts, np.int64), firsts, ends], 1)
        i, j = rows[0]
        request = resolved(notation, str(notation), a[a.keys()[i]], b[b.keys()[j]], read_options("grouped", keywords))
        self._dtype = request.d_dtype
        self._launch = launch_of(table._replace(outputs=outputs), request, b.dtype, False)

    def __call__(self, a: BlockTensor, b: BlockTensor) -> BlockTensor:
        size = self.structure.starts[-1] + int(np.prod(self.structure.shapes[-1], dtype=np.int64))
        made = BlockTensor.over(self.structure, torch.empty(size, dtype=self._dtype, device=a.device))
        if self._launch is not None:
            self._launch(a.buffer, b.buffer, made.buffer)
        else:
            self._one_by_one(a, b, made)
        return made

    def _one_by_one(self, a: BlockTensor, b: BlockTensor, made: BlockTensor) -> None:
        """For types and functions that no kernel for groups takes."""
        epilogue = self._keywords.get("epilogue")
        others = {name: value for name, value in self._keywords.items() if name != "epilogue"}
        terms = (*self._notation.inputs, self._notation.output)
        for key, pairs in self._pairs.items():
            place = made[key]
            for at, (i, j) in enumerate(pairs):
                last = epilogue if at + 1 == len(pairs) else None
                x, y = a[a.keys()[i]], b[b.keys()[j]]
                pairwise.contract(terms, x, y, c=place if at else None, out=place, epilogue=last, **others)


def meeting(notation: Notation, a: Structure, b: Structure) -> dict[Key, list[tuple[int, int]]]:
    """For each block of the result the pairs of blocks, by place, that are summed into it."""
    first, second = notation.inputs
    shared = [label for label in first if label in second]
    of_a, of_b = [first.index(label) for label in shared], [second.index(label) for label in shared]
    by_sectors = defaultdict(list)
    for j, key in enumerate(b.keys):
        by_sectors[tuple(key[at] for at in of_b)].append(j)
    found: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    places = [(0, first.index(label)) if label in first else (1, second.index(label)) for label in notation.output]
    for i, key in enumerate(a.keys):
        for j in by_sectors.get(tuple(key[at] for at in of_a), ()):
            both = (key, b.keys[j])
            found[tuple(both[which][at] for which, at in places)].append((i, j))
    return dict(found)


def _check_sectors(notation: Notation, a: BlockTensor, b: BlockTensor) -> None:
    """A sector of a shared mode has one extent in both; extents of 1 do not broadcast here."""
    first, second = notation.inputs
    modes_a, modes_b = a.sectors(), b.sectors()
    for at, label in enumerate(first):
        if label in second:
            other = modes_b[second.index(label)]
            for sector, extent in modes_a[at].items():
                if other.get(sector, extent) != extent:
                    raise ShapeError(
                        f"sector {sector!r} of '{label}' has extent {extent} in a and {other[sector]} in b"
                    )


def _read(blocks: Mapping[Key, Any]) -> tuple[list[Key], list[torch.Tensor]]:
    """Keys and tensors, alike in rank, type, device and the extents of sectors."""
    if not isinstance(blocks, Mapping) or not blocks:
        raise ArgumentError("blocks is a dict with one block at least, from tuples of sectors to tensors")
    keys: list[Key] = []
    tensors: list[torch.Tensor] = []
    extents: dict[tuple[int, Sector], int] = {}
    for key, value in blocks.items():
        if not isinstance(key, tuple):
            raise ArgumentError(f"block {key!r} is named by a tuple, a sector for each mode")
        tensor = as_tensor(f"block {key}", value).resolve_conj().resolve_neg()
        reject_gradient(f"block {key}", tensor)
        if tensor.dim() != len(key) or (keys and len(key) != len(keys[0])):
            wanted = len(keys[0]) if keys else len(key)
            raise ShapeError(f"block {key} has {tensor.dim()} dimensions, the first {wanted} modes")
        if tensors and tensor.dtype != tensors[0].dtype:
            raise DTypeError(f"block {key} is {dtype_name(tensor.dtype)}, {keys[0]} is {dtype_name(tensors[0].dtype)}")
        if tensors and tensor.device != tensors[0].device:
            raise UnsupportedError(f"block {key} is on {tensor.device}, {keys[0]} is on {tensors[0].device}")
        for mode, (sector, extent) in enumerate(zip(key, tensor.shape, strict=True)):
            if extents.setdefault((mode, sector), extent) != extent:
                raise ShapeError(
                    f"sector {sector!r} of mode {mode} has extent {extent} in block {key}, "
                    f"{extents[mode, sector]} in another"
                )
        keys.append(key)
        tensors.append(tensor)
    return keys, tensors
