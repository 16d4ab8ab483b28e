"""Programs of a public suite: a few lines with weft, torch's plain way, and the tensors that both take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

KEPT = 16  # extents up to this one stay where a case is shrunk

Program = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class ProgramCase:
    """One program. `weft` and `plain` take the tensors in their order; `weft` may take keywords of a plan besides.

    `equation` is that of its largest product, by whose modes the work is counted. `drawn` says how a tensor is filled:
    "rand" from 0 to 1 (the usual), "randn", or "layer", as torch starts a linear layer; `made` makes a tensor of that.
    """

    name: str
    group: str
    equation: str
    weft: Program
    plain: Program
    tensors: Mapping[str, str]  # modes by name
    extents: Mapping[str, int]
    drawn: Mapping[str, str] = field(default_factory=dict)
    made: Callable[[torch.Tensor], torch.Tensor] | None = None
    dtype: torch.dtype = torch.float32
    sums: bool = False  # whether each element is a sum of products alone, judged by the sum of their absolute values
    multiple: int = 1  # that the extent of n is of
    tiers: bool = True  # whether `weft` takes the keyword `specialize`

    def __str__(self) -> str:
        return self.name

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the tensors."""
        return tuple(tuple(self.extents[label] for label in modes) for modes in self.tensors.values())

    @property
    def elements(self) -> int:
        """Elements of all tensors and of the result of the equation."""
        result = self.equation.partition("->")[2]
        return sum(map(math.prod, self.shapes)) + math.prod(self.extents[label] for label in result)

    @property
    def work(self) -> int:
        """Multiply-adds of the equation, all operands at once."""
        return math.prod(self.extents[label] for label in {*self.equation} - {*",->"})

    @property
    def bytes(self) -> int:
        """Bytes of all tensors and of the result."""
        return self.elements * self.dtype.itemsize

    def shrunk(self, work: int) -> ProgramCase:
        """The case with about so many multiply-adds at most: all large extents by one factor."""
        case, factor = self, 1.0
        while case.work > work and factor > 1e-6:
            factor *= 0.9
            case = replace(self, extents={label: self._scaled(label, factor) for label in self.extents})
        return case

    def _scaled(self, label: str, factor: float) -> int:
        extent, step = self.extents[label], self.multiple if label == "n" else 1
        return max(min(extent, max(KEPT, step)), int(extent * factor) // step * step)
