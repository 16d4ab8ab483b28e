"""The tensors of one call on one rank, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.spec.dtypes import dtype_name


@dataclass(frozen=True)
class RankTensors:
    """This rank's parts; `asking` are the names of those that require gradients."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None
    operands: Mapping[str, torch.Tensor]
    asking: Sequence[str]

    def same(self) -> dict[str, Any]:
        """Facts that must be equal on every rank: the backward pass moves the same tensors on all of them."""
        return {
            "which tensors require a gradient": ", ".join(self.asking) or "none",
            "the type of c": None if self.c is None else dtype_name(self.c.dtype),
        }
