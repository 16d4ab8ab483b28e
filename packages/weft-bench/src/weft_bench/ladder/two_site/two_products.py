"""The update as two products with any kernel for batches of matrices: first G X, then (G X) M."""

from __future__ import annotations

from collections.abc import Callable

import torch

Batched = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]  # (1 or b, m, k), (1 or b, k, n) -> (b, m, n)


def two_products(batched: Batched, g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Y by `batched`, twice; the second time b and p are rows of one matrix, since M is the same for all."""
    between = torch.empty(x.shape[0], g.shape[0], x.shape[2], dtype=x.dtype, device=x.device)
    batched(g[None], x, between)
    batched(between.view(1, -1, between.shape[2]), m[None], y.view(1, -1, y.shape[2]))
    return y
