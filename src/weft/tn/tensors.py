"""Operations of algorithms on chains, whose tensors are torch's or conserve charges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import torch

import weft.blocks as blocks
from weft.api.contract import contract as contract_dense
from weft.blocks import ChargedTensor, Leg
from weft.blocks.weights import length
from weft.tn.update import split as split_matrix

Site = TypeVar("Site", torch.Tensor, ChargedTensor)


def contract(equation: str, a: Site, b: Site) -> Site:
    """The contraction of two tensors of one kind."""
    if isinstance(a, ChargedTensor):
        return blocks.contract(equation, a, b)
    return contract_dense(equation, a, b)


def conj(tensor: Site) -> Site:
    return tensor.conj()


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


def split(
    tensor: Site, rows: int, max_bond: int | None, cutoff: float, absorb: Literal["left", "right"]
) -> tuple[Site, torch.Tensor, Site, torch.Tensor]:
    """Both factors of the truncated SVD, one of which has the singular values; these, and the error."""
    if isinstance(tensor, ChargedTensor):
        found = blocks.split(tensor, rows, max_bond=max_bond, cutoff=cutoff, absorb=absorb)
        return found.left, torch.cat(list(found.values.values())), found.right, found.error
    first, last = tensor.shape[:rows], tensor.shape[rows:]
    u, values, v, error = split_matrix(tensor.reshape(first.numel(), last.numel()), max_bond=max_bond, cutoff=cutoff)
    scale = values.to(u.dtype)
    u, v = (u * scale, v) if absorb == "left" else (u, scale[:, None] * v)
    return u.reshape(*first, -1), values, v.reshape(-1, *last), error
