"""The tensors that a cascade is planned for, and the tensors of a call held against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.cascades.notation import CascadeNotation
from weft.errors import DTypeError, ShapeError
from weft.spec import Label
from weft.spec.dtypes import dtype_name


@dataclass(frozen=True, slots=True)
class Described:
    """The tensors that a plan is for: shapes, types and labels of A, B, C and of operands by name, and coordinates."""

    notation: CascadeNotation
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    device: torch.device
    operands: Mapping[str, tuple[tuple[Label, ...], tuple[int, ...], torch.dtype]]
    indices: Mapping[str, Label]
    extents: Mapping[Label, int]

    def place_type(self, label: Label) -> torch.dtype:
        """The type of a coordinate along a label."""
        return torch.int32 if self.extents[label] < 2**31 else torch.int64

    @property
    def given(self) -> dict[str, tuple[torch.dtype, frozenset[Label]]]:
        """The type and the labels of what the function takes beside its value, by name."""
        found = {name: (dtype, frozenset(terms)) for name, (terms, _, dtype) in self.operands.items()}
        return found | {name: (self.place_type(label), frozenset((label,))) for name, label in self.indices.items()}

    def own(self, term: Sequence[Label], shape: Sequence[int]) -> tuple[Label, ...]:
        """The labels of an operand along which it does not broadcast."""
        pairs = zip(term, shape, strict=True)
        return tuple(dict.fromkeys(label for label, extent in pairs if extent == self.extents[label]))

    def check(self, tensors: Sequence[Tensor], operands: Mapping[str, Tensor]) -> None:
        """`ShapeError` or `DTypeError` for tensors of a call that are others than planned."""
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        if shapes != self.shapes:
            raise ShapeError(f"the plan is for operands of shapes {self.shapes}, not {shapes}")
        if set(operands) != set(self.operands):
            raise ShapeError(f"the plan is for operands named {sorted(self.operands)}, not {sorted(operands)}")
        for name, (_, shape, dtype) in self.operands.items():
            if tuple(operands[name].shape) != shape or operands[name].dtype != dtype:
                raise ShapeError(f"operand '{name}' was planned with shape {shape} and type {dtype_name(dtype)}")
        for tensor in tensors:
            if tensor.dtype != self.dtype or tensor.device != self.device:
                raise DTypeError(f"the plan is for {dtype_name(self.dtype)} tensors on {self.device}")
