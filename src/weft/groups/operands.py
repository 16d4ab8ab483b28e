"""Lists of tensors as numbers: addresses, shapes and strides, and what must be alike in all of them.

Results are stored in one tensor: views of it, made when the first is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, overload

import numpy as np
import torch

from weft.base.arrays import as_tensor
from weft.base.figures import counted, given
from weft.engine.calls import LOW
from weft.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from weft.plans.checks import check_storage, reject_gradient
from weft.spec.arguments import read_sequence
from weft.spec.dtypes import dtype_name
from weft.spec.group import contiguous_strides
from weft.spec.notation import Term, term_text

_KIND = attrgetter("dtype", "device", "ndim", "requires_grad")
_STORED = attrgetter("layout", "is_nested")
_TYPES = {torch.Tensor, torch.nn.Parameter}


class Stack(NamedTuple):
    """Tensors of one type and device, and their layouts: (tensors, rank) each, addresses in bytes."""

    tensors: Sequence[torch.Tensor]
    shapes: np.ndarray
    strides: np.ndarray
    addresses: np.ndarray
    alike: bool  # all have the same extents and strides

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    def starts(self) -> np.ndarray:
        """Elements from the first tensor's begin to each one's; `UnsupportedError` where they are no whole number."""
        size, bytes_from = self.dtype.itemsize, self.addresses - self.addresses[0]
        if int(np.bitwise_or.reduce(bytes_from)) % size:
            at = int(np.flatnonzero(bytes_from % size)[0])
            raise UnsupportedError(
                f"the tensor of pair {at} begins at an address that is no whole number of elements ({size} bytes) from "
                "that of pair 0: pass a copy of it"
            )
        return bytes_from // size

    def over(self, tensors: Sequence[torch.Tensor], addresses: np.ndarray) -> Stack:
        """Other tensors with the layouts of these."""
        return Stack(tensors, self.shapes, self.strides, addresses, self.alike)

    def check_like(self, name: str, new: Stack) -> None:
        """An error where other tensors have not the layouts of these, which a plan was made of."""
        if len(self.shapes) != len(new.shapes):
            raise ShapeError(f"the plan is of {counted(len(self.shapes), 'pair')}, {given(len(new.shapes))}")
        if self.dtype != new.dtype or self.device != new.device:
            raise DTypeError(
                f"{name}: the plan is of {dtype_name(self.dtype)} on {self.device}, "
                f"given are {dtype_name(new.dtype)} on {new.device}"
            )
        wrong = np.flatnonzero((self.shapes != new.shapes).any(1) | (self.strides != new.strides).any(1))
        if wrong.size:
            raise ShapeError(f"{name} of pair {int(wrong[0])} lies otherwise than the plan's: make another plan")

    @property
    def even(self) -> int | None:
        """Elements from each tensor to the next where all are alike and evenly spaced, as in one stack; else None."""
        count = len(self.tensors)
        if not self.alike:
            return None
        steps = np.diff(self.starts())
        if count > 1 and ((steps != steps[0]).any() or steps[0] < 0):
            return None
        step = int(steps[0]) if count > 1 else 0
        storage = self.tensors[0].untyped_storage()
        end = self.tensors[0].storage_offset() + step * (count - 1)
        end += int(((self.shapes[0] - 1).clip(0) * self.strides[0]).sum()) + 1
        return step if end * self.dtype.itemsize <= storage.nbytes() else None

    def stacked(self, step: int) -> torch.Tensor:
        """All of them as one tensor, where they are evenly spaced."""
        first = self.tensors[0]
        return first.as_strided((len(self.tensors), *first.shape), (step, *first.stride()))


def read_pairs(pairs: Iterable[Any]) -> list[Any]:
    """A list of pairs as one list: a, b of the first, a, b of the second, and so on."""
    if isinstance(pairs, (torch.Tensor, np.ndarray)) or not isinstance(pairs, Iterable):
        raise ArgumentError(f"pairs is a list of pairs (a, b), not {type(pairs).__name__}")
    found = pairs if isinstance(pairs, (list, tuple)) else read_sequence("pairs", pairs)
    if not (set(map(type, found)) <= {tuple, list} and set(map(len, found)) <= {2}):
        for at, pair in enumerate(found):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ArgumentError(f"pair {at} is not a pair (a, b) but {_described(pair)}")
    return list(chain.from_iterable(found))


def as_operands(values: Sequence[Any], name: Callable[[int], str] | None = None) -> list[torch.Tensor]:
    """Values as tensors; errors name one by `name`, by default as that of a pair in a flat list of them."""
    plain = set(map(type, values)) <= _TYPES and torch._C._get_tracing_state() is None
    if plain and set(map(_STORED, values)) <= {(torch.strided, False)}:
        return list(values)
    name = name or (lambda at: f"{'ab'[at % 2]} of pair {at // 2}")
    return [as_tensor(name(at), value) for at, value in enumerate(values)]


def stack_of(name: str, tensors: Sequence[torch.Tensor], term: Term) -> Stack:
    """Tensors of a group as one `Stack`; errors name the pair by its place."""
    rank = len(term)
    kind = (tensors[0].dtype, tensors[0].device, rank)
    alike = {(*kind, False)} if torch.is_grad_enabled() else {(*kind, False), (*kind, True)}
    if not alike.issuperset(map(_KIND, tensors)):
        _refuse_mixed(name, tensors, term)
    tensors = without_views(tensors)
    shapes, strides = (
        np.fromiter(chain.from_iterable(map(read, tensors)), np.int64, len(tensors) * rank).reshape(-1, rank)
        if rank else np.zeros((len(tensors), 0), np.int64)
        for read in (torch.Tensor.size, torch.Tensor.stride)
    )  # fmt: skip
    same = not ((shapes != shapes[0]).any() or (strides != strides[0]).any())
    return Stack(tensors, shapes, strides, addresses_of(tensors), same)


def without_views(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Tensors whose memory is what they say: of conjugate and negative views, copies."""
    if not (any(map(torch.Tensor.is_neg, tensors)) or any(map(torch.Tensor.is_conj, tensors))):
        return tensors
    return [tensor.resolve_neg().resolve_conj() for tensor in tensors]


def addresses_of(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """Where tensors begin; `ShapeError` where the memory of one was freed."""
    found = np.fromiter(map(torch.Tensor.data_ptr, tensors), np.int64, len(tensors))
    for at in np.flatnonzero(found < LOW).tolist():
        check_storage(f"tensor {at} of the group", tensors[at])
    return found


def _refuse_mixed(name: str, tensors: Sequence[torch.Tensor], term: Term) -> None:
    """Raise where tensors differ in type, device or rank, or where a gradient is requested of one."""
    first = tensors[0]
    for at, tensor in enumerate(tensors):
        if tensor.dtype is not first.dtype:
            raise DTypeError(
                f"{name} of pair {at} is {dtype_name(tensor.dtype)}, that of pair 0 {dtype_name(first.dtype)}: "
                "a group has one type"
            )
        if tensor.device != first.device:
            raise UnsupportedError(f"{name} of pair {at} is on {tensor.device}, that of pair 0 on {first.device}")
        if tensor.dim() != len(term):
            raise ShapeError(
                f"{name} of pair {at} has {counted(tensor.dim(), 'dimension')}, "
                f"'{term_text(term)}' {counted(len(term), 'label')}"
            )
        reject_gradient(f"{name} of pair {at}", tensor)


def _described(value: Any) -> str:
    return counted(len(value), "value") if isinstance(value, (tuple, list)) else type(value).__name__


class Places:
    """Layout of results of given shapes, (results, rank), in one buffer: one after the other, without gaps."""

    def __init__(self, shapes: np.ndarray) -> None:
        self.shapes = shapes
        ends = np.cumsum(shapes.prod(1))
        self.starts = np.concatenate([[0], ends[:-1]])
        self.size = int(ends[-1])
        self._views: tuple[list[list[int]], list[list[int]], list[int]] | None = None

    def __len__(self) -> int:
        return len(self.shapes)

    def all(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """All results as views; their shapes and strides are kept for the next buffer."""
        if self._views is None:
            self._views = (self.shapes.tolist(), contiguous_strides(self.shapes).tolist(), self.starts.tolist())
        return list(map(buffer.as_strided, *self._views))

    def within(self, buffer: torch.Tensor) -> Sequence[torch.Tensor]:
        """All results as views that are made when the first is read."""
        return _GroupResults(buffer, self)


class _GroupResults(Sequence[torch.Tensor]):
    """Tensors in one `buffer`, at their `places`: views, made when the first is read."""

    def __init__(self, buffer: torch.Tensor, places: Places) -> None:
        self.buffer, self._places = buffer, places
        self._views: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._views = self._views or self._places.all(self.buffer)
        return iter(self._views)

    @overload
    def __getitem__(self, at: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, at: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, at: int | slice) -> torch.Tensor | list[torch.Tensor]:
        return (self._views or [*self])[at]
