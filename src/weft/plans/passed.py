"""The arguments that a plan passes to the launch of a variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft.planner.request import Results
from weft.planner.schedule import AuxTensors, Scalar
from weft.plans.base import Variant
from weft.spec import Aux


def each_of(out: Any) -> tuple[Any, ...]:
    """The results of a call as a tuple."""
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def arguments_of(
    variant: Variant, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, out: Results, alpha: Scalar,
    beta: Scalar, operands: Mapping[str, torch.Tensor] | None,
) -> tuple[Any, ...]:  # fmt: skip
    """The arguments of a variant's launch."""
    # A launch sees memory as it is stored: conjugation is in the contraction, not in the tensor's bit.
    a, b = (x.conj() if x.is_conj() else x for x in (a, b))
    d, *others = out if isinstance(out, tuple) else (out,)
    if variant.description.aux:
        return a, b, c, d, alpha, beta, in_order(variant.description.aux, operands or {}, others)
    return a, b, c, d, alpha, beta


def in_order(aux: Sequence[Aux], operands: Mapping[str, torch.Tensor], outputs: Sequence[torch.Tensor]) -> AuxTensors:
    """Auxiliary tensors in the contraction's order: operands by name, None for an index, then further
    outputs."""
    aux_args = [operands.get(each.name) for each in aux if each.kind != "output"]
    return (*aux_args, *outputs)
