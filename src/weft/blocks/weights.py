"""Norms of values and weights of singular values at any scale: squares are taken beside the largest value, as they may
be past what their type holds."""

from __future__ import annotations

import torch


def length(values: torch.Tensor, dim: int = -1, keepdim: bool = False) -> torch.Tensor:
    """The 2-norm along a dimension."""
    if not values.numel():
        return torch.linalg.vector_norm(values, dim=dim, keepdim=keepdim)
    scale = _scale(values, dim)
    found = scale * torch.linalg.vector_norm(values / scale, dim=dim, keepdim=True)
    return found if keepdim else found.squeeze(dim)


def relative(values: torch.Tensor) -> torch.Tensor:
    """The squares of singular values in float64, up to a factor that all along the last dimension have in common."""
    values = values.to(torch.float64)
    return (values / _scale(values, -1)).square()


def behind(weights: torch.Tensor) -> torch.Tensor:
    """The weight of all that stand behind each but the last, along the last dimension; summed from the end, where the
    smallest are."""
    return weights.flip(-1).cumsum(-1).flip(-1)[..., 1:]


def _scale(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The largest modulus; 1 where that scales nothing."""
    largest = values.detach().abs().amax(dim, keepdim=True)
    return torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
