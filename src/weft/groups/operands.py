"""Lists of tensors as numbers: addresses, shapes and strides, and what must be alike in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.base.arrays import as_tensor
from weft.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from weft.plans.checks import reject_gradient
from weft.spec.dtypes import dtype_name
from weft.spec.notation import Term, term_text


class Stack(NamedTuple):
    """Tensors of one type and device, and how they lie: (tensors, rank) each, addresses in bytes."""

    tensors: list[torch.Tensor]
    shapes: np.ndarray
    strides: np.ndarray
    addresses: np.ndarray

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    def starts(self) -> np.ndarray:
        """Elements from the first tensor's begin to each one's."""
        found: np.ndarray = (self.addresses - self.addresses[0]) // self.dtype.itemsize
        return found

    @property
    def even(self) -> int | None:
        """Elements from each tensor to the next where all are alike and lie evenly, as in one stack; else None."""
        count = len(self.tensors)
        if (self.shapes != self.shapes[0]).any() or (self.strides != self.strides[0]).any():
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
        """All of them as one tensor, where they lie evenly."""
        first = self.tensors[0]
        return first.as_strided((len(self.tensors), *first.shape), (step, *first.stride()))


def read_pairs(pairs: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The A's and the B's of a list of pairs."""
    if isinstance(pairs, (torch.Tensor, np.ndarray)) or not isinstance(pairs, Iterable):
        raise ArgumentError(f"pairs is a list of pairs (a, b), not {type(pairs).__name__}")
    found = list(pairs)
    for at, pair in enumerate(found):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ArgumentError(f"pair {at} is not a pair (a, b) but {_described(pair)}")
    return [a for a, _ in found], [b for _, b in found]


def stack_of(name: str, values: Sequence[Any], term: Term) -> Stack:
    """Tensors of a group as one `Stack`; errors name the pair by its place."""
    tensors = [value if type(value) is torch.Tensor and value.layout is torch.strided else
               as_tensor(f"{name} of pair {at}", value) for at, value in enumerate(values)]  # fmt: skip
    rank = len(term)
    kinds = {(tensor.dtype, tensor.device, tensor.dim(), tensor.requires_grad) for tensor in tensors}
    if len(kinds) > 1 or kinds != {(tensors[0].dtype, tensors[0].device, rank, False)}:
        _refuse_mixed(name, tensors, term)
    if any([tensor.is_neg() or tensor.is_conj() for tensor in tensors]):  # noqa: C419  a list: there may be thousands
        tensors = [tensor.resolve_neg().resolve_conj() for tensor in tensors]
    shape = (len(tensors), rank)
    return Stack(
        tensors,
        np.array([tuple(tensor.shape) for tensor in tensors], np.int64).reshape(shape),
        np.array([tensor.stride() for tensor in tensors], np.int64).reshape(shape),
        np.array([tensor.data_ptr() for tensor in tensors], np.int64),
    )


def _refuse_mixed(name: str, tensors: list[torch.Tensor], term: Term) -> None:
    """What is not alike in all of them, by place; gradients that nobody asks for are let through."""
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
                f"{name} of pair {at} has {tensor.dim()} dimensions, '{term_text(term)}' {len(term)} labels"
            )
        reject_gradient(f"{name} of pair {at}", tensor)


def _described(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__
