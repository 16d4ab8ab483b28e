"""TEBD: a state's evolution by gates on bonds (G. Vidal, arXiv:quant-ph/0310089), in Trotter steps of second order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from weft.blocks import ChargedTensor
from weft.errors import ArgumentError, ShapeError
from weft.spec.arguments import reads
from weft.tn.operator import common
from weft.tn.state import MPS
from weft.tn.tensors import contract, norm, scaled, split


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
        left, values, right, error = split(theta, 2, max_bond, cutoff, "right" if rightwards else "left")
        rest = 1 / norm(values) if normalize else 1
        left, right = (left, scaled(right, rest)) if rightwards else (scaled(left, rest), right)
        psi.tensors[at], psi.tensors[at + 1] = left, right
        psi.center = at + 1 if rightwards else at
        errors.append(error)
