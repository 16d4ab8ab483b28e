"""Matrix product operators, and models as such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft.api.contract import contract
from weft.base.memory import check_room
from weft.blocks import ChargedTensor, Leg, Symmetry
from weft.blocks.charges import Charge
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.spec.arguments import reads
from weft.spec.dtypes import dtype_name


class MPO:
    """A matrix product operator: tensors (left, out, in, right), the first `left` and the last `right` of extent 1.

    Those of one that conserves charges are `weft.blocks.ChargedTensor`, with legs of signs 1, 1, -1, -1.
    """

    @reads("tn.MPO.__init__")
    def __init__(self, tensors: Sequence[torch.Tensor | ChargedTensor]) -> None:
        self.tensors: list[Any] = list(tensors)
        check_chain(self.tensors, 4)

    @classmethod
    @reads("tn.MPO.from_terms")
    def from_terms(
        cls, sites: int, terms: Sequence[tuple[complex, Mapping[int, torch.Tensor]]], *,
        extent: int | Leg = 2, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu",
    ) -> MPO:  # fmt: skip
        """A sum of products of operators on sites.

        `terms`: pairs of a factor and a dict from sites to matrices (out, in); sites that it does not name have the
        identity, of `extent`. Terms that end alike share their bonds: pairs at all distances take bonds that grow with
        the sites, those of neighbours constant ones. A `weft.blocks.Leg` as `extent` gives each basis state of a site a
        charge. The operator conserves their sum then, and so does each term: else it is an `ArgumentError`.

        Raises `ShapeError` for a matrix of another extent, `ArgumentError` for a site that is not there or no term.

        >>> import torch
        >>> from weft import tn
        >>> z = torch.diag(torch.tensor([1.0, -1.0]))
        >>> mpo = tn.MPO.from_terms(3, [(0.5, {0: z, 2: z}), (1.0, {1: z})])
        >>> mpo.to_dense().diag().tolist()
        [1.5, 0.5, -0.5, -1.5, 0.5, 1.5, -1.5, -0.5]
        """
        _check_sites(sites)
        count = extent.extent if isinstance(extent, Leg) else extent
        _check_terms(sites, terms, count, _floating(dtype))
        one = torch.eye(count, dtype=dtype, device="cpu")
        steps, bonds = automaton(sites, [(factor, placed or {0: one}) for factor, placed in terms])
        legs = None if not isinstance(extent, Leg) else bond_legs(steps, bonds, site_leg(extent))
        tensors = []
        for at, moves in enumerate(steps):
            tensor = torch.zeros(len(bonds[at]), count, count, len(bonds[at + 1]), dtype=dtype, device="cpu")
            for (before, after), matrix in moves.items():
                tensor[bonds[at][before], :, :, bonds[at + 1][after]] = one if matrix is None else _as(matrix, dtype)
            tensors.append(tensor.to(device))
        if legs is None or not isinstance(extent, Leg):
            return cls(tensors)
        site = site_leg(extent)
        return cls([ChargedTensor.from_dense(tensor, [left, site, site.dual, right.dual])
                    for tensor, left, right in zip(tensors, legs[:-1], legs[1:], strict=True)])  # fmt: skip

    def __len__(self) -> int:
        return len(self.tensors)

    def to(self, *arguments: object, **keywords: object) -> MPO:
        """This operator on another device or in another type: the arguments of `torch.Tensor.to`."""
        try:
            moved = [tensor.to(*arguments, **keywords) for tensor in self.tensors]
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:  # the last without CUDA
            reason = str(error).partition("\n")[0]
            raise ArgumentError(f"to takes a device, a type, or both, as torch.Tensor.to does: {reason}") from None
        return MPO(moved)

    def to_dense(self) -> torch.Tensor:
        """The whole matrix (out, in), of sites in order; for small chains."""
        tensors = [each.to_dense() if isinstance(each, ChargedTensor) else each for each in self.tensors]
        total = tensors[0].new_ones(1, 1, 1)
        for tensor in tensors:
            total = contract("abw,wstv->asbtv", total, tensor)
            total = total.reshape(total.shape[0] * total.shape[1], -1, total.shape[-1])
        return total[..., 0]


def site_leg(leg: Leg) -> Leg:
    """The leg of a site, by which charges flow in; `ArgumentError` for fermions."""
    if leg.symmetry.has_fermions:
        raise ArgumentError("chains of fermions have signs in their operators (Jordan-Wigner): give charges of bosons")
    return leg if leg.sign > 0 else leg.dual


def check_chain(tensors: Sequence[Any], rank: int) -> None:
    """`ShapeError` that names the site where bonds do not fit."""
    if not tensors:
        raise ShapeError("a chain has one site at least")
    for at, tensor in enumerate(tensors):
        if len(tensor.shape) != rank:
            raise ShapeError(f"site {at} has {len(tensor.shape)} dimensions, not {rank}")
        before = tensors[at - 1].shape[-1] if at else 1
        if tensor.shape[0] != before:
            raise ShapeError(f"site {at} has a left bond of {tensor.shape[0]}, the site before a right one of {before}")
    if tensors[-1].shape[-1] != 1:
        raise ShapeError(f"the last site has a right bond of {tensors[-1].shape[-1]}, not 1")


@reads("tn.heisenberg")
def heisenberg(
    sites: int, *, coupling: float = 1.0, field: float = 0.0, extent: int | Leg = 2,
    dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu",
) -> MPO:  # fmt: skip
    """``coupling * sum_i S_i . S_(i+1) - field * sum_i S^z_i`` of an open chain of spins 1/2.

    S . S = (S+ S- + S- S+) / 2 + Sz Sz, so that all numbers are real; bonds of 5. `extent`: a leg that gives up and
    down charges which are conserved, ``Leg(U1, {1: 1, -1: 1})``.
    """
    up = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64, device="cpu")
    z = torch.diag(torch.tensor([0.5, -0.5], dtype=torch.float64, device="cpu"))
    pairs = [(coupling / 2, up, up.T), (coupling / 2, up.T, up), (coupling, z, z)]
    return _nearest_neighbours(sites, pairs, (-field, z), dtype, device, extent)


@reads("tn.ising")
def ising(
    sites: int, *, coupling: float = 1.0, field: float = 1.0, dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> MPO:  # fmt: skip
    """``-coupling * sum_i Z_i Z_(i+1) - field * sum_i X_i`` of an open chain, with Pauli matrices; bonds of 3."""
    z, x = torch.diag(torch.tensor([1.0, -1.0], device="cpu")), torch.tensor([[0.0, 1.0], [1.0, 0.0]], device="cpu")
    return _nearest_neighbours(sites, [(-coupling, z, z)], (-field, x), dtype, device)


@reads("tn.heisenberg_bond")
def heisenberg_bond(coupling: float = 1.0, *, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """``coupling * S . S`` of two spins 1/2, (s', t', s, t): what `tebd` takes for every bond."""
    swap = torch.eye(4, dtype=_floating(dtype), device="cpu").reshape(2, 2, 2, 2).transpose(0, 1)
    return coupling * (swap / 2 - torch.eye(4, dtype=dtype, device="cpu").reshape(2, 2, 2, 2) / 4)


@reads("tn.ising_bonds")
def ising_bonds(
    sites: int, coupling: float = 1.0, field: float = 1.0, *, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    """The terms of `ising` bond by bond, (s', t', s, t) each; inner sites share their field between two bonds."""
    _check_sites(sites)
    dtype = _floating(dtype)
    z = torch.diag(torch.tensor([1.0, -1.0], dtype=dtype, device="cpu"))
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=dtype, device="cpu")
    one = torch.eye(2, dtype=dtype, device="cpu")
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
    sites: int, pairs: Sequence[tuple[float, torch.Tensor, torch.Tensor]], alone: tuple[float, torch.Tensor],
    dtype: torch.dtype, device: torch.device | str, extent: int | Leg = 2,
) -> MPO:  # fmt: skip
    _check_sites(sites)
    terms: list[Term] = [(factor, {at: x, at + 1: y}) for at in range(sites - 1) for factor, x, y in pairs]
    terms += [(alone[0], {at: alone[1]}) for at in range(sites)]
    return MPO.from_terms(sites, terms, extent=extent, dtype=dtype, device=device)


Term = tuple[complex, Mapping[int, torch.Tensor]]
State = tuple[tuple[int, bytes], ...] | None  # operators that are still to come, None before the first
Moves = dict[tuple[State, State], torch.Tensor | None]  # None: the identity
_WIDEST = torch.complex128


def automaton(sites: int, terms: Sequence[Term]) -> tuple[list[Moves], list[dict[State, int]]]:
    """The finite automaton of a sum of terms (F. Froewis, V. Nebendahl, W. Duer, arXiv:1003.1047): for each site its
    moves from state to state, and the number of each state on each bond.

    A state is what is still to come of a term, so that terms which end alike share it. The factor stands at the first
    operator of a term.
    """
    steps: list[Moves] = [{} for _ in range(sites)]
    for factor, placed in terms:
        first, *others = sorted(placed)
        for at in range(first):
            steps[at][None, None] = None
        state: State = tuple([(at, _name(placed[at])) for at in others])
        _begin(steps[first], state, factor * placed[first].to(_WIDEST))
        for at in range(first + 1, sites):
            following = state[1:] if state and state[0][0] == at else state
            assert following is not None
            steps[at][state, following] = placed[at] if following != state else None
            state = following
    bonds: list[dict[State, int]] = [{None: 0}]
    for moves in steps:
        bonds.append({state: at for at, state in enumerate(dict.fromkeys(after for _, after in moves))})
    return steps, bonds


def bond_legs(steps: Sequence[Moves], bonds: list[dict[State, int]], site: Leg) -> list[Leg]:
    """The legs of the bonds, by the charges of their states; states are numbered anew, those of one charge together."""
    symmetry, charges = site.symmetry, [charge for charge, size in site.sectors for _ in range(size)]
    known: dict[State, Charge] = {None: symmetry.zero}
    legs = [Leg(symmetry, {symmetry.zero: 1})]
    for at, moves in enumerate(steps):
        found: dict[State, Charge] = {}
        for (before, after), matrix in moves.items():
            charge = symmetry.sum([(1, known[before]), (1, symmetry.zero if matrix is None else
                                                        _charge_of(matrix, charges, symmetry, at))])  # fmt: skip
            if found.setdefault(after, charge) != charge or (after == () and charge != symmetry.zero):
                raise ArgumentError(f"a term that ends on site {at} changes the charge: it is not conserved")
        order = sorted(found, key=lambda state: list(dict.fromkeys(found.values())).index(found[state]))
        bonds[at + 1] = {state: number for number, state in enumerate(order)}
        sectors: dict[Charge, int] = {}
        for state in order:
            sectors[found[state]] = sectors.get(found[state], 0) + 1
        legs.append(Leg(symmetry, sectors))
        known = found
    return legs


def _charge_of(matrix: torch.Tensor, charges: Sequence[Charge], symmetry: Symmetry, site: int) -> Charge:
    """The charge that an operator adds to its site's."""
    found = {symmetry.sum([(1, charges[i]), (-1, charges[j])]) for i, j in matrix.nonzero().tolist()}
    if len(found) > 1:
        raise ArgumentError(f"an operator on site {site} changes the charge by {' and by '.join(map(str, found))}")
    return found.pop() if found else symmetry.zero


def _begin(moves: Moves, state: State, matrix: torch.Tensor) -> None:
    """One more term begins here."""
    before = moves.get((None, state))
    moves[None, state] = matrix if before is None else before + matrix


def _name(matrix: torch.Tensor) -> bytes:
    """Equal matrices have equal names."""
    values = matrix.detach().to("cpu", _WIDEST).resolve_conj().contiguous()
    return bytes(values.numpy().tobytes())


def _as(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (matrix if dtype.is_complex or not matrix.is_complex() else matrix.real).to(dtype)


def as_operator(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A matrix in the type of a state, complex where either is."""
    wanted = common([dtype, matrix.dtype])
    check_room(matrix.device, matrix.numel() * wanted.itemsize)
    return matrix.to(wanted)


def common(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """The first of these types, complex where one is."""
    return dtypes[0].to_complex() if any(dtype.is_complex for dtype in dtypes) else dtypes[0]


def _check_terms(sites: int, terms: Sequence[Term], extent: int, dtype: torch.dtype) -> None:
    if not terms:
        raise ArgumentError("a sum of no terms is no operator: give one term at least")
    for at, (factor, placed) in enumerate(terms):
        if not dtype.is_complex and (complex(factor).imag or any(each.is_complex() for each in placed.values())):
            raise DTypeError(f"term {at} is complex, the operator {dtype_name(dtype)}")
        for site, matrix in placed.items():
            if not isinstance(site, int) or not 0 <= site < sites:
                raise ArgumentError(f"term {at} has an operator on site {site!r} of {sites}")
            if matrix.shape != (extent, extent):
                shape = tuple(matrix.shape)
                raise ShapeError(f"term {at} has an operator {shape} on site {site}, which is {extent} by {extent}")
