"""The last call of a network: whether this one brings the very same tensors, unchanged but for their values.

A signature of a hundred tensors costs a hundred microseconds to make; of tensors that are known it takes less to see
that they are what they were.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from weft.base.arrays import dispatch_modes, is_transforming
from weft.planner.validity import generation


class Recent:
    """Tensors of a call that was checked, and what was found for it."""

    __slots__ = ("_differentiable", "_facts", "_generation", "_refs", "found")

    def __init__(self, tensors: Sequence[torch.Tensor], found: Any) -> None:
        self._refs = [weakref.ref(tensor) for tensor in tensors]
        self._facts = _facts(tensors)
        self._generation = generation()
        self._differentiable = any(tensor.requires_grad for tensor in tensors)
        self.found = found

    def again(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same objects, lying as they did, in a call that `call_signature` would know again."""
        refs = self._refs
        if dispatch_modes() or is_transforming() or generation() != self._generation:
            return False
        if len(tensors) != len(refs) or (self._differentiable and torch.is_grad_enabled()):
            return False
        for tensor, ref in zip(tensors, refs, strict=True):
            if ref() is not tensor:
                return False
        return _facts(tensors) == self._facts


def _facts(tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Attributes of tensors that an operation in place, or other `data`, may change in addition to their values."""
    return [
        (x.data_ptr(), x.requires_grad, x.shape, x.stride(), x.dtype, x.is_conj(), x.is_neg()) for x in tensors
    ]
