"""Factorisations of tensors that conserve charges: one of torch's for each charge between rows and columns."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch

from weft.blocks.charged import ChargedTensor, allowed
from weft.blocks.charges import Charge, Leg
from weft.blocks.weights import behind, relative
from weft.errors import ArgumentError, ShapeError
from weft.spec.arguments import reads


class ChargedSplit(NamedTuple):
    """``left``, with the legs of rows and the bond, times ``right``, with the bond and the other legs.

    `values`: the singular values of each charge of the bond, descending; `error`: the sum of the squares of those that
    were dropped over that of all.
    """

    left: ChargedTensor
    values: dict[Charge, torch.Tensor]
    right: ChargedTensor
    error: torch.Tensor


@reads("blocks.split")
def split(
    tensor: ChargedTensor, rows: int, *, max_bond: int | None = None, cutoff: float = 0.0,
    absorb: Literal["left", "right"] = "right",
) -> ChargedSplit:  # fmt: skip
    """The truncated SVD of a tensor, whose first `rows` legs are rows.

    `max_bond`: most singular values to keep, of all charges together. `cutoff`: as many are dropped, the smallest
    first, as weigh at most this much: the sum of their squares over that of all. `absorb`: the factor that has the
    singular values; the other one is an isometry. The bond has sign -1 in `left`, which has no charge of its own.

    Raises `ShapeError` where all would be dropped, `ArgumentError` for no rows or no columns.
    """
    if max_bond is not None and max_bond < 1:
        raise ArgumentError(f"max_bond is 1 at least, not {max_bond}")
    if not cutoff >= 0:
        raise ArgumentError(f"cutoff is a share of the weight, 0 or more, not {cutoff}")
    matrix = _matrix(tensor, rows)
    found = {key: torch.linalg.svd(block, full_matrices=False) for key, block in matrix.blocks.items()}
    kept, error = _kept({key: values for key, (_, values, _) in found.items()}, max_bond, cutoff)
    lefts, rights, chosen = {}, {}, {}
    for key, count in kept.items():
        left, values, right = found[key]
        scale = values[:count].to(left.dtype)
        lefts[key] = left[:, :count] * scale if absorb == "left" else left[:, :count]
        rights[key] = scale[:, None] * right[:count] if absorb == "right" else right[:count]
        chosen[key[0]] = values[:count]
    left, right = _joined(tensor, rows, matrix, lefts, rights)
    return ChargedSplit(left, chosen, right, error)


@reads("blocks.qr")
def qr(
    tensor: ChargedTensor, rows: int, *, isometry: Literal["left", "right"] = "left"
) -> tuple[ChargedTensor, ChargedTensor]:
    """A tensor as the product of an isometry and the rest, by QR; its first `rows` legs are rows, as for `split`."""
    matrix = _matrix(tensor, rows)
    lefts, rights = {}, {}
    for key, block in matrix.blocks.items():
        if isometry == "left":
            lefts[key], rights[key] = torch.linalg.qr(block)
        else:
            q, rest = torch.linalg.qr(block.mH)
            lefts[key], rights[key] = rest.mH, q.mH
    return _joined(tensor, rows, matrix, lefts, rights)


def _matrix(tensor: ChargedTensor, rows: int) -> ChargedTensor:
    """The tensor with two legs: all rows as one, and all columns."""
    if not 0 < rows < len(tensor.legs):
        raise ArgumentError(f"rows is 1 to {len(tensor.legs) - 1} of {len(tensor.legs)} legs, not {rows}")
    return tensor.fuse(rows, len(tensor.legs) - rows, sign=-1).fuse(0, rows)


def _joined(
    tensor: ChargedTensor, rows: int, matrix: ChargedTensor, lefts: dict[tuple[Any, ...], torch.Tensor],
    rights: dict[tuple[Any, ...], torch.Tensor],
) -> tuple[ChargedTensor, ChargedTensor]:  # fmt: skip
    """Both factors, of blocks by the charges of rows and columns, with the legs that were fused."""
    symmetry = tensor.symmetry
    bond = Leg(symmetry, [(key[0], block.shape[1]) for key, block in lefts.items()])
    by_row = {key[0]: block for key, block in lefts.items()}
    by_bond = {key[0]: block for key, block in rights.items()}
    made = []
    for legs, charge, blocks in (
        ((matrix.legs[0], bond.dual), symmetry.zero, by_row), ((bond, matrix.legs[1]), tensor.charge, by_bond)
    ):  # fmt: skip
        structure = allowed(legs, charge)
        parts = []
        for key, shape in zip(structure.keys, structure.shapes, strict=True):
            block = blocks.get(key[0])
            parts.append((matrix.buffer.new_zeros(shape) if block is None else block).reshape(-1))
        made.append(ChargedTensor(legs, torch.cat(parts), charge))
    return made[0].split_leg(0), made[1].split_leg(1)


def _kept(
    values: dict[tuple[Any, ...], torch.Tensor], max_bond: int | None, cutoff: float
) -> tuple[dict[tuple[Any, ...], int], torch.Tensor]:
    """How many values of each matrix are kept, and the weight that is not; matrices of which none is are left out."""
    every = torch.cat([*values.values()])
    owners = torch.cat([torch.full(each.shape, at, device="cpu") for at, each in enumerate(values.values())])
    ordered, places = relative(every).sort(descending=True, stable=True)
    total = ordered.sum()
    count = min(int((behind(ordered) > cutoff * total).sum()) + 1, max_bond or len(ordered))
    weight = float(total.detach())
    if not weight > 0 or weight <= cutoff * weight:
        raise ShapeError(f"cutoff {cutoff} drops every singular value: the largest is {float(every.max()):.3g}")
    counts = torch.bincount(owners[places[:count].cpu()], minlength=len(values)).tolist()
    error = (1 - ordered[:count].sum() / total).clamp_min(0)
    return {key: number for key, number in zip(values, counts, strict=True) if number}, error
