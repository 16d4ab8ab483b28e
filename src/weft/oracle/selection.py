"""Which pair an algebra selected, as the reference backend finds it: all pairs of one row of D after the other."""

from __future__ import annotations

import torch

from weft.fn.algebra import TracedAlgebra


def select(
    a: torch.Tensor, b: torch.Tensor, algebra: TracedAlgebra, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 indices (batch, m, n) of `a` (batch, k, m) and `b` (batch, k, n), none of them empty."""
    rows = []
    for row in a.unbind(2):
        left, right = torch.broadcast_tensors(row[:, :, None], b)
        pairs = algebra.combine(left, right)
        assert isinstance(pairs, torch.Tensor), "combine has one result"
        rows.append(pairs.max(1) if largest else pairs.min(1))
    return torch.stack([row.values for row in rows], 1).to(a.dtype), torch.stack([row.indices for row in rows], 1)
