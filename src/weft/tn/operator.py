"""Matrix product operators, and models as such."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.api.contract import contract
from weft.base.memory import check_room
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.spec.arguments import reads
from weft.spec.dtypes import dtype_name


class MPO:
    """A matrix product operator: tensors (left, out, in, right), the first `left` and the last `right` of extent 1."""

    @reads("tn.MPO.__init__")
    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        check_chain(self.tensors, 4)

    def __len__(self) -> int:
        return len(self.tensors)

    def to(self, *arguments: object, **keywords: object) -> MPO:
        """This operator on another device or in another type: the arguments of `torch.Tensor.to`."""
        try:
            moved = [tensor.to(*arguments, **keywords) for tensor in self.tensors]  # type: ignore[call-overload]
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:  # the last without CUDA
            reason = str(error).partition("\n")[0]
            raise ArgumentError(f"to takes a device, a type, or both, as torch.Tensor.to does: {reason}") from None
        return MPO(moved)

    def to_dense(self) -> torch.Tensor:
        """The whole matrix (out, in), of sites in order; for small chains."""
        total = self.tensors[0].new_ones(1, 1, 1)
        for tensor in self.tensors:
            total = contract("abw,wstv->asbtv", total, tensor)
            total = total.reshape(total.shape[0] * total.shape[1], -1, total.shape[-1])
        return total[..., 0]


def check_chain(tensors: Sequence[torch.Tensor], rank: int) -> None:
    """`ShapeError` that names the site where bonds do not fit."""
    if not tensors:
        raise ShapeError("a chain has one site at least")
    for at, tensor in enumerate(tensors):
        if tensor.dim() != rank:
            raise ShapeError(f"site {at} has {tensor.dim()} dimensions, not {rank}")
        before = tensors[at - 1].shape[-1] if at else 1
        if tensor.shape[0] != before:
            raise ShapeError(f"site {at} has a left bond of {tensor.shape[0]}, the site before a right one of {before}")
    if tensors[-1].shape[-1] != 1:
        raise ShapeError(f"the last site has a right bond of {tensors[-1].shape[-1]}, not 1")


@reads("tn.heisenberg")
def heisenberg(
    sites: int, *, coupling: float = 1.0, field: float = 0.0, dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> MPO:  # fmt: skip
    """``coupling * sum_i S_i . S_(i+1) - field * sum_i S^z_i`` of an open chain of spins 1/2.

    S . S = (S+ S- + S- S+) / 2 + Sz Sz, so that all numbers are real; bonds of 5.
    """
    up = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    z, one = torch.diag(torch.tensor([0.5, -0.5])), torch.eye(2)
    terms = [(coupling / 2 * up, up.T), (coupling / 2 * up.T, up), (coupling * z, z)]
    return _nearest_neighbours(sites, terms, -field * z, one, dtype, device)


@reads("tn.ising")
def ising(
    sites: int, *, coupling: float = 1.0, field: float = 1.0, dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> MPO:  # fmt: skip
    """``-coupling * sum_i Z_i Z_(i+1) - field * sum_i X_i`` of an open chain, with Pauli matrices; bonds of 3."""
    z, x = torch.diag(torch.tensor([1.0, -1.0])), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    return _nearest_neighbours(sites, [(-coupling * z, z)], -field * x, torch.eye(2), dtype, device)


@reads("tn.heisenberg_bond")
def heisenberg_bond(coupling: float = 1.0, *, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """``coupling * S . S`` of two spins 1/2, (s', t', s, t): what `tebd` takes for every bond."""
    swap = torch.eye(4, dtype=_floating(dtype)).reshape(2, 2, 2, 2).transpose(0, 1)
    return coupling * (swap / 2 - torch.eye(4, dtype=dtype).reshape(2, 2, 2, 2) / 4)


@reads("tn.ising_bonds")
def ising_bonds(
    sites: int, coupling: float = 1.0, field: float = 1.0, *, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    """The terms of `ising` bond by bond, (s', t', s, t) each; inner sites share their field between two bonds."""
    _check_sites(sites)
    dtype = _floating(dtype)
    z, x = torch.diag(torch.tensor([1.0, -1.0], dtype=dtype)), torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=dtype)
    one = torch.eye(2, dtype=dtype)
    found = []
    for bond in range(sites - 1):
        left, right = (1.0 if bond == 0 else 0.5), (1.0 if bond == sites - 2 else 0.5)
        matrix = -coupling * torch.kron(z, z) - field * (left * torch.kron(x, one) + right * torch.kron(one, x))
        found.append(matrix.reshape(2, 2, 2, 2))
    return found


def _floating(dtype: torch.dtype) -> torch.dtype:
    if not (dtype.is_floating_point or dtype.is_complex):
        raise DTypeError(f"a chain has a floating type, not {dtype_name(dtype)}")
    return dtype


def _check_sites(sites: int) -> None:
    if sites < 1:
        raise ArgumentError(f"a chain has one site at least, not {sites}")
    check_room(torch.device("cpu"), sites << 10)  # what a tensor takes beside its elements


def _nearest_neighbours(
    sites: int, terms: list[tuple[torch.Tensor, torch.Tensor]], alone: torch.Tensor, one: torch.Tensor,
    dtype: torch.dtype, device: torch.device | str,
) -> MPO:  # fmt: skip
    """The finite automaton of a sum of terms on one and two sites (F. Froewis, V. Nebendahl, W. Duer,
    arXiv:1003.1047): state 0 has placed everything, the last one nothing."""
    _check_sites(sites)
    bond = len(terms) + 2
    tensor = torch.zeros(bond, 2, 2, bond)
    tensor[0, :, :, 0] = tensor[-1, :, :, -1] = one
    tensor[-1, :, :, 0] = alone
    for at, (first, second) in enumerate(terms):
        tensor[-1, :, :, at + 1] = first
        tensor[at + 1, :, :, 0] = second
    tensor = tensor.to(device=device, dtype=_floating(dtype))
    tensors = [tensor] * sites
    tensors[0] = tensors[0][-1:].contiguous()
    tensors[-1] = tensors[-1][..., :1].contiguous()
    return MPO(tensors)
