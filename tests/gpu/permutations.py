"""Permutations as the planner describes them, for tests of the kernels that carry them out."""

from __future__ import annotations

import torch

from weft.planner.schedule import Target
from weft.spec import Layout, parse
from weft.spec.permutation import Permutation, canonical_modes

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)


def described(equation: str, shape: tuple[int, ...], dtype: torch.dtype, out: torch.dtype | None = None) -> Permutation:
    """One of a contiguous tensor, with a contiguous result, of the same type by default."""
    notation = parse(equation)
    extents = dict(zip(notation.inputs[0], shape, strict=True))
    x = Layout.contiguous(shape, dtype)
    d = Layout.contiguous([extents[label] for label in notation.output], out or dtype)
    return Permutation(canonical_modes(notation, x, None, d, extents), x, None, d, d.dtype, text=equation)
