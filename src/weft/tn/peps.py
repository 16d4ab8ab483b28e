"""Norms of projected entangled pair states, by a boundary state that takes in row after row
(F. Verstraete, J. I. Cirac, arXiv:cond-mat/0407066)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from weft.api.contract import contract
from weft.blocks.weights import length
from weft.errors import ShapeError
from weft.spec.arguments import reads
from weft.tn.update import split


class PepsNorm(NamedTuple):
    """<psi|psi> = ``mantissa * 10**exponent``, and the largest truncation error met on the way."""

    mantissa: float
    exponent: float
    error: float


@reads("tn.peps_norm")
def peps_norm(
    tensors: Sequence[Sequence[torch.Tensor]], *, max_bond: int | None = None, cutoff: float = 0.0
) -> PepsNorm:
    """<psi|psi> of a PEPS on a rectangle.

    `tensors`: rows of tensors (up, left, down, right, site); those at the border have outer bonds of 1. Each
    row is contracted onto a boundary state, whose bonds are cut by SVDs with `max_bond` and `cutoff` (see `split`): by
    default nothing is cut, and bonds grow with the power of the rows. The result comes with a power of ten, as norms of
    many sites leave the range of any type.

    Raises `ShapeError` that names the site where bonds do not fit.
    """
    _check(tensors)
    scale, worst = 0.0, 0.0
    first = tensors[0][0]
    boundary = [first.new_ones(1, 1, 1, 1) for _ in tensors[0]]  # (left, ket, bra, right)
    for row in tensors:
        boundary = [_onto(old, new) for old, new in zip(boundary, row, strict=True)]
        boundary, error, power = _compressed(boundary, max_bond, cutoff)
        scale, worst = scale + power, max(worst, error)
    total = first.new_ones(1, 1)
    for tensor in boundary:  # by now ket and bra have extents of 1
        total = contract("ab,bkqr->ar", total, tensor)
    return PepsNorm(float(total.real[0, 0]), scale, worst)


def _onto(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """One site of the boundary with the site below it: (left, ket, bra, right), all horizontal bonds in one."""
    half = contract("xuvy,uldrs->xvylrds", old, new)
    both = contract("xvylrds,vmefs->xlmdeyrf", half, new.conj())
    x, l, m, d, e, y, r, f = both.shape
    return both.reshape(x * l * m, d, e, y * r * f)


def _compressed(
    boundary: list[torch.Tensor], max_bond: int | None, cutoff: float
) -> tuple[list[torch.Tensor], float, float]:
    """A boundary state with smaller bonds, its norm taken out as a power of ten: QR to the right, SVDs to the left."""
    found, errors = list(boundary), []
    for at in range(len(found) - 1):
        a, k, q, b = found[at].shape
        left, rest = torch.linalg.qr(found[at].reshape(a * k * q, b))
        found[at] = left.reshape(a, k, q, -1)
        found[at + 1] = contract("ab,bkqr->akqr", rest, found[at + 1])
    for at in range(len(found) - 1, 0, -1):
        a, k, q, b = found[at].shape
        left, values, right, error = split(found[at].reshape(a, k * q * b), max_bond=max_bond, cutoff=cutoff)
        found[at] = right.reshape(-1, k, q, b)
        found[at - 1] = contract("akqb,bc->akqc", found[at - 1], left * values.to(left.dtype))
        errors.append(error)
    norm = length(found[0].reshape(-1))
    if float(norm) == 0:
        return found, 0.0, 0.0
    found[0] = found[0] / norm
    return found, float(torch.stack(errors).max()) if errors else 0.0, float(torch.log10(norm.double()))


def _check(tensors: Sequence[Sequence[torch.Tensor]]) -> None:
    if not tensors or not tensors[0]:
        raise ShapeError("a PEPS has one site at least")
    for i, row in enumerate(tensors):
        if len(row) != len(tensors[0]):
            raise ShapeError(f"row {i} has {len(row)} sites, row 0 {len(tensors[0])}")
        for j, tensor in enumerate(row):
            if tensor.dim() != 5:
                raise ShapeError(f"site ({i}, {j}) has {tensor.dim()} dimensions: (up, left, down, right, site)")
            above = tensors[i - 1][j].shape[2] if i else 1
            before = row[j - 1].shape[3] if j else 1
            if tensor.shape[0] != above or tensor.shape[1] != before:
                raise ShapeError(
                    f"site ({i}, {j}) has bonds {tensor.shape[0]} up and {tensor.shape[1]} to the left, "
                    f"its neighbours {above} and {before}"
                )
            if (i + 1 == len(tensors) and tensor.shape[2] != 1) or (j + 1 == len(row) and tensor.shape[3] != 1):
                raise ShapeError(f"site ({i}, {j}) is at the border and has an outer bond over 1")
