"""Sweeps over the bonds of a chain: DMRG with two sites at a time (S. R. White 1992; U. Schollwoeck, arXiv:1008.3477,
section 6), and TEBD, a state's evolution by gates on bonds (G. Vidal, arXiv:quant-ph/0310089), in Trotter steps of
second order. And over the rows of a rectangle: norms of projected entangled pair states, by a boundary state that takes
in row after row (F. Verstraete, J. I. Cirac, arXiv:cond-mat/0407066)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from weft.blocks import ChargedTensor
from weft.errors import ArgumentError, ShapeError
from weft.spec.arguments import reads
from weft.tn.operator import MPO, common
from weft.tn.state import MPS, grow_left, grow_right, outside
from weft.tn.tensors import contract, norm, qr, scaled, split_at, vector, with_vector


class DmrgResult(NamedTuple):
    """The energy after the last sweep, the state, and for each sweep its energy and its largest truncation error."""

    energy: float
    state: MPS
    energies: list[float]
    errors: list[float]


@reads("tn.dmrg")
def dmrg(
    operator: MPO, state: MPS, *, max_bond: int, sweeps: int = 10, cutoff: float = 1e-12, krylov: int = 4,
    tolerance: float = 0.0,
) -> DmrgResult:  # fmt: skip
    """The lowest eigenvalue of a Hermitian operator, and its state.

    A sweep goes over all bonds to the right and back. Each update takes `krylov` steps of Lanczos from the present
    tensors, and is split with `max_bond` and `cutoff` (see `split`). It stops after `sweeps`, or where a sweep lowers
    the energy by less than `tolerance`. `state` is where it begins, and stays as it is. A state and an operator that
    conserve charges keep the state's: contractions are those of its blocks, and `max_bond` counts all of a bond. The
    result is complex where either is.

    Raises `ShapeError` for chains of different lengths or of one site, `ArgumentError`, and what `split` raises.
    """
    if len(operator) != len(state) or len(state) < 2:
        raise ShapeError(f"an operator of {len(operator)} sites and a state of {len(state)}: equal, two at least")
    if sweeps < 1 or krylov < 2:
        raise ArgumentError(f"sweeps is 1 at least and krylov 2, not {sweeps} and {krylov}")
    dtype = common([state.tensors[0].dtype, *(piece.dtype for piece in operator.tensors)])
    psi = MPS([tensor.to(dtype) for tensor in state.tensors], state.center).canonicalize(0)
    psi.tensors[0] = scaled(psi.tensors[0], 1 / norm(psi.tensors[0]))
    lefts, rights = [outside(psi, operator, 0)], [outside(psi, operator, -1)]
    for at in range(len(psi) - 1, 1, -1):
        rights.append(grow_right(rights[-1], psi.tensors[at], operator.tensors[at]))
    energies: list[float] = []
    errors: list[float] = []
    for _ in range(sweeps):
        found: list[torch.Tensor] = []
        for at in range(len(psi) - 1):
            energy = _update(operator, psi, at, lefts[-1], rights[-1], (max_bond, cutoff, krylov), True, found)
            if at + 2 < len(psi):
                lefts.append(grow_left(lefts[-1], psi.tensors[at], operator.tensors[at]))
                rights.pop()
        for at in range(len(psi) - 2, -1, -1):
            energy = _update(operator, psi, at, lefts[-1], rights[-1], (max_bond, cutoff, krylov), False, found)
            if at:
                rights.append(grow_right(rights[-1], psi.tensors[at + 1], operator.tensors[at + 1]))
                lefts.pop()
        energies.append(float(energy))
        errors.append(float(torch.stack(found).max()))
        if len(energies) > 1 and energies[-2] - energies[-1] < tolerance:
            break
    return DmrgResult(energies[-1], psi, energies, errors)


def _update(
    operator: MPO, psi: MPS, at: int, left: Any, right: Any, options: tuple[int, float, int], rightwards: bool,
    errors: list[torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """The two sites from `at` on by Lanczos, the centre moved on; returns the energy."""
    max_bond, cutoff, krylov = options
    first, second = operator.tensors[at], operator.tensors[at + 1]

    theta = contract("lsm,mtr->lstr", psi.tensors[at], psi.tensors[at + 1])

    def apply(elements: torch.Tensor) -> torch.Tensor:
        value = contract("awl,lstr->awstr", left, with_vector(theta, elements))
        value = contract("awstr,wpsv->apvtr", value, first)
        value = contract("apvtr,vqtx->apqxr", value, second)
        return vector(contract("apqxr,bxr->apqb", value, right))

    energy, elements = lowest(apply, vector(theta), krylov)
    u, values, v, error = split_at(with_vector(theta, elements), 2, max_bond, cutoff, "right" if rightwards else "left")
    rest = 1 / torch.linalg.vector_norm(values)
    psi.tensors[at], psi.tensors[at + 1] = (u, scaled(v, rest)) if rightwards else (scaled(u, rest), v)
    psi.center = at + 1 if rightwards else at
    errors.append(error)
    return energy


def lowest(
    apply: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest eigenvalue of a Hermitian map within the Krylov space of `start`, and its vector of norm 1.

    Every vector is orthogonalised twice against all before it, as there are few. A space that closes early is left at
    that: vectors of no length come out as zeros, and are lifted out of the way of the lowest eigenvalue.
    """
    count = min(steps, start.numel())
    basis = start.new_zeros(count, start.numel())
    images = torch.zeros_like(basis)
    basis[0] = start / torch.linalg.vector_norm(start)
    tiny = torch.finfo(start.dtype).eps * 1e2
    for step in range(count):
        images[step] = apply(basis[step])
        if step + 1 == count:
            break
        vector = images[step]
        scale = torch.linalg.vector_norm(vector)
        for _ in range(2):
            vector = vector - basis[: step + 1].T @ (basis[: step + 1].conj() @ vector)
        length = torch.linalg.vector_norm(vector)
        basis[step + 1] = torch.where(length > tiny * scale, vector / length, torch.zeros_like(vector))
    small = basis.conj() @ images.T
    small = (small + small.mH) / 2
    empty = (torch.linalg.vector_norm(basis, dim=1) < 0.5).to(small.real.dtype)
    small = small + torch.diag(empty * (1 + small.abs().sum())).to(small.dtype)
    values, vectors = torch.linalg.eigh(small)
    best = vectors[:, 0] @ basis
    return values[0], best / torch.linalg.vector_norm(best)


class TebdResult(NamedTuple):
    """The state after the last step, and the sum of all truncation errors."""

    state: MPS
    error: float


@reads("tn.tebd")
def tebd(
    state: MPS, bonds: torch.Tensor | Sequence[torch.Tensor], *, step: complex, steps: int, max_bond: int,
    cutoff: float = 1e-12, normalize: bool = True,
) -> TebdResult:  # fmt: skip
    """Evolve a state by ``exp(step * H)``, `steps` times, where H is a sum of Hermitian terms on neighbouring sites.

    `bonds`: the terms (s', t', s, t), one for each bond or one for all. ``step=-1j * dt`` is real time, ``step=-dt``
    imaginary time, towards the lowest state. A step is half of the even bonds, all odd ones, and half of the even ones:
    its error is of third order in `step`. `max_bond` and `cutoff` as for `split`; `normalize` keeps the norm at 1.
    `state` stays as it is. One that conserves charges stays so, and terms that do not are an `ArgumentError`.

    Raises `ShapeError` for another number of terms than bonds, `ArgumentError`, and what `split` raises.
    """
    count = len(state) - 1
    if count < 1:
        raise ShapeError("a chain of one site has no bonds")
    terms = [bonds] * count if isinstance(bonds, torch.Tensor) else list(bonds)
    if len(terms) != count:
        raise ShapeError(f"{len(terms)} terms for {count} bonds")
    if steps < 0:
        raise ArgumentError(f"steps is 0 or more, not {steps}")
    first = state.tensors[0]
    dtype = common([first.dtype, *(term.dtype for term in terms)])
    if isinstance(step, complex):
        dtype = dtype.to_complex()
    psi = MPS([tensor.to(dtype) for tensor in state.tensors], state.center).canonicalize(0)
    half, whole = (
        [_gate(psi, at, term, part).to(dtype=dtype, device=first.device) for at, term in enumerate(terms)]
        for part in (step / 2, step)
    )
    errors: list[torch.Tensor] = []
    options = (max_bond, cutoff, normalize)
    for at in range(steps):
        _layer(psi, half if at == 0 else whole, 0, options, errors)
        _layer(psi, whole, 1, options, errors)
    if steps:
        _layer(psi, half, 0, options, errors)
    return TebdResult(psi, float(torch.stack(errors).sum()) if errors else 0.0)


def _gate(psi: MPS, at: int, term: torch.Tensor, step: complex) -> Any:
    """exp(step * term) on a site and the next; of a state that conserves charges it does, too."""
    if term.dim() != 4 or term.shape[:2] != term.shape[2:]:
        raise ShapeError(f"a term {tuple(term.shape)} is (s', t', s, t), of a square matrix")
    s, t = term.shape[:2]
    values, vectors = torch.linalg.eigh(term.reshape(s * t, s * t))
    factors = torch.exp(step * values)
    vectors = vectors.to(factors.dtype) if factors.is_complex() else vectors
    gate = ((vectors * factors) @ vectors.mH).reshape(s, t, s, t)
    if not isinstance(psi.tensors[at], ChargedTensor):
        return gate
    sites = [tensor.legs[1] for tensor in psi.tensors[at : at + 2]]
    rounding = gate.abs().max() * torch.finfo(gate.dtype).eps * s * t  # where charges forbid elements
    return ChargedTensor.from_dense(torch.where(gate.abs() > rounding, gate, 0), [*sites, *(leg.dual for leg in sites)])


def _layer(
    psi: MPS, gates: list[Any], parity: int, options: tuple[int, float, bool], errors: list[torch.Tensor]
) -> None:
    """Gates on every second bond, from the nearer end to the other; the centre is at each bond when it is split."""
    max_bond, cutoff, normalize = options
    places = list(range(parity, len(gates), 2))
    assert psi.center is not None
    rightwards = psi.center <= len(psi) // 2
    for at in places if rightwards else reversed(places):
        psi.canonicalize(at if rightwards else at + 1)
        theta = contract("lsm,mtr->lstr", psi.tensors[at], psi.tensors[at + 1])
        theta = contract("lstr,pqst->lpqr", theta, gates[at])
        left, values, right, error = split_at(theta, 2, max_bond, cutoff, "right" if rightwards else "left")
        rest = 1 / norm(values) if normalize else 1
        left, right = (left, scaled(right, rest)) if rightwards else (scaled(left, rest), right)
        psi.tensors[at], psi.tensors[at + 1] = left, right
        psi.center = at + 1 if rightwards else at
        errors.append(error)


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
    _check_rectangle(tensors)
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
        found[at], rest = qr(found[at], 3, "left")
        found[at + 1] = contract("ab,bkqr->akqr", rest, found[at + 1])
    for at in range(len(found) - 1, 0, -1):
        left, _, found[at], error = split_at(found[at], 1, max_bond, cutoff, "left")
        found[at - 1] = contract("akqb,bc->akqc", found[at - 1], left)
        errors.append(error)
    size = norm(found[0])
    if float(size) == 0:
        return found, 0.0, 0.0
    found[0] = found[0] / size
    return found, float(torch.stack(errors).max()) if errors else 0.0, float(torch.log10(size.double()))


def _check_rectangle(tensors: Sequence[Sequence[torch.Tensor]]) -> None:
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
