"""Programs as the runner sees them: their tensors, and whether a result is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.machine.ceilings import Ceilings
from weft_bench.cases.programs import ProgramCase
from weft_bench.checking import WrongResult
from weft_bench.gradient_check import UNITS
from weft_bench.records import CaseRecord

if TYPE_CHECKING:
    from weft_bench.entry import Entry

WORSE = 4  # times the error of torch's plain way that a result may have


@dataclass(frozen=True)
class ProgramProblem:
    """One program. Ways are called as run(*tensors)."""

    case: ProgramCase

    @property
    def memory(self) -> int:
        return 6 * self.case.bytes

    def inputs(self, device: torch.device, seed: int = 0) -> tuple[Tensor, ...]:
        case, random = self.case, torch.Generator(device).manual_seed(seed)
        bound = case.extents["k"] ** -0.5 if "k" in case.extents else 1.0
        found = []
        for name, shape in zip(case.tensors, case.shapes, strict=True):
            how = case.drawn.get(name, "rand")
            draw = torch.randn if how == "randn" else torch.rand
            made = draw(shape, generator=random, device=device, dtype=case.dtype)
            made = made.mul_(2).sub_(1).mul_(bound) if how == "layer" else made
            found.append(case.made(made).contiguous() if case.made is not None else made)
        return tuple(found)

    def check(self, tensors: tuple[Tensor, ...]) -> ProgramCheck:
        return ProgramCheck(self.case, tensors)

    def record(self, entry: Entry, tensors: tuple[Tensor, ...], ceilings: Ceilings | None) -> CaseRecord:
        case, dtype = self.case, str(self.case.dtype).removeprefix("torch.")
        return CaseRecord(
            name=case.name, group=entry.group, base=entry.base, equation=case.equation,
            extents=list(case.extents.items()), dtypes=(dtype,) * len(tensors), precision="", functions={},
            layouts=("contiguous",) * len(tensors), scaled=entry.scaled, modes={},
            work={"flops": 2 * case.work, "function_flops": 0, "bytes": case.bytes}, floor={},
        )  # fmt: skip


class ProgramCheck:
    """Results against torch's plain way in float64.

    An error is right up to some units of the last place of the largest element (of sums of products: of the largest sum
    of their absolute values), or `WORSE` times that of torch's plain way in the type of the case.
    """

    def __init__(self, case: ProgramCase, tensors: tuple[Tensor, ...]) -> None:
        self._case, self._tensors = case, tensors
        self._exact = case.plain(*(each.double() for each in tensors))
        size = case.plain(*(each.double().abs() for each in tensors)) if case.sums else self._exact.abs()
        plain = float((case.plain(*tensors) - self._exact).abs().max())
        self._bound = max(UNITS * torch.finfo(case.dtype).eps * float(size.max()), WORSE * plain)

    def error(self, run: Callable[..., Any], stored: torch.dtype | None = None) -> float:
        """The largest error over its bound; `WrongResult` where that is over 1."""
        found = run(*self._tensors)
        if found.shape != self._exact.shape:
            raise WrongResult(math.inf, f"the shape is {tuple(found.shape)}, not {tuple(self._exact.shape)}")
        off = float((found - self._exact).abs().max().nan_to_num(math.inf))
        worst = off / self._bound if self._bound else math.inf if off else 0.0
        if not worst <= 1:
            raise WrongResult(worst, f"of {self._case.name}")
        return worst
