"""Networks of one operand: nothing meets. Where the exponent is kept apart the operand is scaled before."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from weft.api.einsum import of_one
from weft.errors import DTypeError
from weft.networks.finite import check_alone
from weft.networks.planned import Planned
from weft.spec import Notation
from weft.spec.dtypes import REAL_OF, dtype_name


def scaled(operand: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operand over 10**exponent, its largest magnitude at most one, and the exponent: float64, of no dimension.

    `DTypeError` for whole numbers.
    """
    dtype = operand.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise DTypeError(f"strip_exponent is for floating types, the operand is {dtype_name(dtype)}")
    largest = operand.abs().amax().double() if operand.numel() else torch.zeros((), dtype=torch.float64, device="cpu")
    real = REAL_OF.get(dtype, dtype)
    most = int(math.log2(torch.finfo(real).max))  # of a power of two that the type holds, and the inverse too
    exponent = torch.frexp(largest)[1].clamp(-most, most - 1).to(operand.device)
    factor = torch.exp2(-exponent.double()).to(real)
    return operand * factor, exponent.double() * math.log10(2.0)


def move_alone(network: Planned, operand: torch.Tensor, place: torch.Tensor) -> None:
    """A network of one operand into `place`: nothing meets, it is moved or reduced."""
    (seen,) = network.folded.tree.graph.operands
    options = replace(network.settings.options, tune=None, out_dtype=place.dtype)
    of_one(Notation((seen.term,), network.graph.output), seen.view(operand), options, out=place)
    if network.settings.check_finite:
        check_alone(operand, place)
