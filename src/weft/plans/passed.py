"""The arguments that a plan passes to the launch of a variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from weft.planner.request import Results
from weft.planner.schedule import Scalar
from weft.plans.base import Variant


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
    if not variant.description.aux:
        return a, b, c, d, alpha, beta
    given = operands or {}  # by name; None for an index, then further results
    aux = [given.get(each.name) for each in variant.description.aux if each.kind != "output"]
    return a, b, c, d, alpha, beta, (*aux, *others)
