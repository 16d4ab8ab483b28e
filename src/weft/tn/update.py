"""Two neighbouring sites under a gate, and apart again."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch

from weft.api.contract import contract
from weft.errors import ArgumentError, ShapeError
from weft.spec.arguments import reads
from weft.tn.truncation import split


class TwoSite(NamedTuple):
    """The new tensors (..., l, s, k) and (..., k, t, r), singular values (..., k) and truncation errors (...)."""

    left: torch.Tensor
    right: torch.Tensor
    values: torch.Tensor
    error: torch.Tensor


@reads("tn.two_site_update")
def two_site_update(
    left: torch.Tensor,
    right: torch.Tensor,
    gate: torch.Tensor | None = None,
    *,
    max_bond: int | None = None,
    cutoff: float = 0.0,
    absorb: Literal["left", "right", "both"] = "right",
    normalize: bool = False,
    **keywords: Any,
) -> TwoSite:
    """Contract two neighbours, apply a gate, and split them by a truncated SVD.

    `left` (..., l, s, m) and `right` (..., m, t, r), with any batch dimensions in front, the same in both; `gate`
    (s', t', s, t) or None. `max_bond` and `cutoff` as for `split`. `absorb`: which tensor gets the singular values, or
    their roots for both. `normalize`: the kept singular values are scaled to a norm of 1. Keywords are those of
    `weft.contract`.

    The split is the best one where the bond between them is the state's centre of orthogonality. Raises `ShapeError`
    and what `split` and `weft.contract` raise.
    """
    if absorb not in ("left", "right", "both"):
        raise ArgumentError(f"absorb is 'left', 'right' or 'both', not {absorb!r}")
    if left.dim() < 3 or left.dim() != right.dim() or left.shape[:-3] != right.shape[:-3]:
        shapes = f"left {tuple(left.shape)} and right {tuple(right.shape)}"
        raise ShapeError(f"{shapes} are (..., l, s, m) and (..., m, t, r)")
    theta = contract("...lsm,...mtr->...lstr", left, right, **keywords)
    if gate is not None:
        if gate.dim() != 4 or gate.shape[2:] != theta.shape[-3:-1]:
            sites = tuple(theta.shape[-3:-1])
            raise ShapeError(f"the gate {tuple(gate.shape)} is (s', t', s, t): the sites are {sites}")
        theta = contract("...lstr,pqst->...lpqr", theta, gate, **keywords)
    *batch, l, s, t, r = theta.shape
    u, values, v, error = split(theta.reshape(*batch, l * s, t * r), max_bond=max_bond, cutoff=cutoff)
    if normalize:
        values = values / torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    scale = values.to(theta.dtype)
    if absorb == "both":
        scale = scale.sqrt()
    if absorb != "right":
        u = u * scale[..., None, :]
    if absorb != "left":
        v = scale[..., :, None] * v
    return TwoSite(u.reshape(*batch, l, s, -1), v.reshape(*batch, -1, t, r), values, error)
