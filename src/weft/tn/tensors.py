"""Operations of algorithms on chains, whose tensors are torch's or conserve charges; truncations, and two-site updates
of a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch

import weft.blocks as blocks
from weft.api.contract import contract as contract_dense
from weft.blocks import ChargedTensor, Leg
from weft.blocks.weights import behind, length, relative
from weft.errors import AccuracyError, ArgumentError, DTypeError, ShapeError
from weft.spec.arguments import reads

Site = TypeVar("Site", torch.Tensor, ChargedTensor)


def contract(equation: str, a: Site, b: Site) -> Site:
    """The contraction of two tensors of one kind."""
    if isinstance(a, ChargedTensor):
        return blocks.contract(equation, a, b)
    return contract_dense(equation, a, b)


def vector(tensor: Site) -> torch.Tensor:
    """All elements that there are, in a row."""
    return tensor.buffer if isinstance(tensor, ChargedTensor) else tensor.reshape(-1)


def with_vector(tensor: Site, elements: torch.Tensor) -> Site:
    """A tensor like another with other elements."""
    if isinstance(tensor, ChargedTensor):
        return ChargedTensor.over(tensor.legs, tensor.charge, tensor.structure, elements)
    return elements.reshape(tensor.shape)


def scaled(tensor: Site, factor: Any) -> Site:
    return with_vector(tensor, vector(tensor) * factor)


def norm(tensor: Site) -> torch.Tensor:
    return length(vector(tensor))


def scalar(tensor: Site) -> torch.Tensor:
    """The one element of a tensor whose modes have extent 1."""
    return vector(tensor)[0]


def edge(tensor: Site, sides: Sequence[tuple[Site, int, bool]]) -> Site:
    """The environment at an end of a chain: one element, 1. `sides`: for each mode the tensor of which a mode ends
    there, the number of that mode, and whether it is contracted with it (its leg is the dual then)."""
    if not isinstance(tensor, ChargedTensor):
        return tensor.new_ones([1] * len(sides))
    legs: list[Leg] = []
    for other, mode, meets in sides:
        assert isinstance(other, ChargedTensor)
        legs.append(other.legs[mode].dual if meets else other.legs[mode])
    charge = tensor.symmetry.sum([(leg.sign, leg.sectors[0][0]) for leg in legs])
    return ChargedTensor(legs, tensor.buffer.new_ones(1), charge)


def qr(tensor: Site, rows: int, isometry: Literal["left", "right"]) -> tuple[Site, Site]:
    """An isometry and the rest, in the order of the modes."""
    if isinstance(tensor, ChargedTensor):
        return blocks.qr(tensor, rows, isometry=isometry)
    first, last = tensor.shape[:rows], tensor.shape[rows:]
    matrix = tensor.reshape(first.numel(), last.numel())
    if isometry == "left":
        left, right = torch.linalg.qr(matrix)
    else:
        q, rest = torch.linalg.qr(matrix.mH)
        left, right = rest.mH.resolve_conj(), q.mH.resolve_conj().contiguous()
    return left.reshape(*first, -1), right.reshape(-1, *last)


def split_at(
    tensor: Site, rows: int, max_bond: int | None, cutoff: float, absorb: Literal["left", "right"]
) -> tuple[Site, torch.Tensor, Site, torch.Tensor]:
    """Both factors of the truncated SVD, one of which has the singular values; these, and the error."""
    if isinstance(tensor, ChargedTensor):
        found = blocks.split(tensor, rows, max_bond=max_bond, cutoff=cutoff, absorb=absorb)
        return found.left, torch.cat(list(found.values.values())), found.right, found.error
    first, last = tensor.shape[:rows], tensor.shape[rows:]
    u, values, v, error = split(tensor.reshape(first.numel(), last.numel()), max_bond=max_bond, cutoff=cutoff)
    scale = values.to(u.dtype)
    u, v = (u * scale, v) if absorb == "left" else (u, scale[:, None] * v)
    return u.reshape(*first, -1), values, v.reshape(-1, *last), error


class Split(NamedTuple):
    """``left @ diag(values) @ right`` is the matrix, but for what was dropped.

    `left` (..., m, k) and `right` (..., k, n) are isometries, `values` (..., k) real and descending; `error` (...) is
    the sum of the squares of dropped singular values over that of all.
    """

    left: torch.Tensor
    values: torch.Tensor
    right: torch.Tensor
    error: torch.Tensor


@reads("tn.split")
def split(matrix: torch.Tensor, *, max_bond: int | None = None, cutoff: float = 0.0) -> Split:
    """The truncated SVD of a matrix (m, n), or of each of a batch (..., m, n), by torch's.

    `max_bond`: most singular values to keep. `cutoff`: of those as many are dropped, the smallest first, as weigh at
    most this much: the sum of their squares over that of all. In a batch all matrices keep as many as the one that
    needs most; what another one would have dropped is zero there, and counts as dropped.

    Raises `ShapeError` where all would be dropped or nothing is there to keep, with the range of the singular values,
    `ArgumentError` for a `max_bond` under 1 or a negative `cutoff`.
    """
    if max_bond is not None and max_bond < 1:
        raise ArgumentError(f"max_bond is 1 at least, not {max_bond}")
    if not cutoff >= 0:
        raise ArgumentError(f"cutoff is a share of the weight, 0 or more, not {cutoff}")
    if matrix.dim() < 2 or not all(matrix.shape[-2:]):
        raise ShapeError(f"a matrix of shape {tuple(matrix.shape)} has no singular values")
    if not (matrix.is_floating_point() or matrix.is_complex()):
        raise DTypeError(f"a matrix of {str(matrix.dtype).removeprefix('torch.')} has no singular values of its type")
    try:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    except torch.linalg.LinAlgError as failed:
        raise AccuracyError(f"the singular values are not found: {failed}") from None
    weights = relative(values)
    total = weights.sum(-1, keepdim=True)
    needed = (behind(weights) > cutoff * total).sum(-1) + 1
    drops_all = (total.squeeze(-1) <= cutoff * total.squeeze(-1)) | ~torch.isfinite(total.squeeze(-1))
    kept = int(needed.max())  # the only wait for the device
    if bool(drops_all.any()):
        low, high = float(values.min()), float(values.max())
        raise ShapeError(
            f"cutoff {cutoff} drops every singular value: they range from {low:.3g} to {high:.3g}, "
            f"the largest weighs {float((weights[..., 0] / total.squeeze(-1)).max()):.3g} of all"
        )
    kept = min(kept, values.shape[-1], max_bond or values.shape[-1])
    index = torch.arange(kept, device=values.device)
    values = torch.where(index < needed[..., None], values[..., :kept], torch.zeros_like(values[..., :kept]))
    rest = weights[..., :kept].masked_fill(index >= needed[..., None], 0).sum(-1)
    error = (1 - rest / total.squeeze(-1)).clamp_min(0)
    return Split(left[..., :kept], values, right[..., :kept, :], error)


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
    theta = contract_dense("...lsm,...mtr->...lstr", left, right, **keywords)
    if gate is not None:
        if gate.dim() != 4 or gate.shape[2:] != theta.shape[-3:-1]:
            sites = tuple(theta.shape[-3:-1])
            raise ShapeError(f"the gate {tuple(gate.shape)} is (s', t', s, t): the sites are {sites}")
        theta = contract_dense("...lstr,pqst->...lpqr", theta, gate, **keywords)
    *batch, l, s, t, r = theta.shape
    u, values, v, error = split(theta.reshape(*batch, l * s, t * r), max_bond=max_bond, cutoff=cutoff)
    if normalize:
        values = values / length(values, keepdim=True)
    scale = values.to(theta.dtype)
    if absorb == "both":
        scale = scale.sqrt()
    if absorb != "right":
        u = u * scale[..., None, :]
    if absorb != "left":
        v = scale[..., :, None] * v
    return TwoSite(u.reshape(*batch, l, s, -1), v.reshape(*batch, -1, t, r), values, error)
