"""Operands as libraries want them: every mode once, none of extent 1, and names that any of them can read."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weft.errors import UnsupportedError
from weft.spec.notation import Label
from weft_bench.cases import Case


@dataclass(frozen=True)
class View:
    """How to see a tensor with each of `labels` as one mode: a diagonal is a mode whose stride is the sum of its two.

    Modes of extent 1 are left out: along them an operand broadcasts.
    """

    labels: tuple[Label, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The view of a tensor that has the layout of the one it was made for; no copy."""
        return tensor.as_strided(self.extents, self.strides, tensor.storage_offset())


def view(term: Sequence[Label], tensor: torch.Tensor) -> View:
    """The view of `tensor` whose dimensions are named by `term`."""
    extents: dict[Label, int] = {}
    strides: dict[Label, int] = {}
    for label, extent, stride in zip(term, tensor.shape, tensor.stride(), strict=True):
        if extent != 1:
            extents[label] = extent
            strides[label] = strides.get(label, 0) + stride
    return View(tuple(extents), tuple(extents.values()), tuple(strides.values()))


def einsum_text(case: Case) -> str:
    """The case's equation in single letters, ellipses spelled out; `UnsupportedError` past 52 labels."""
    notation = case.notation
    labels = dict.fromkeys(label for term in (*notation.inputs, notation.output) for label in term)
    if len(labels) > len(string.ascii_letters):
        raise UnsupportedError(f"{len(labels)} labels: einsum has {len(string.ascii_letters)} letters")
    names = dict(zip(labels, string.ascii_letters, strict=False))
    a, b, d = ("".join(names[label] for label in term) for term in (*notation.inputs, notation.output))
    return f"{a},{b}->{d}"
