"""A matrix product whose operands lie on several ranks, as a rank of `weft bench scaling` sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from weft.api.contract import contract
from weft.distributed.public import plan
from weft.distributed.rank_plan import DistributedPlan
from weft.distributed.ranks import Ranks
from weft.oracle.rounding import epsilon
from weft_bench.cases.scaling import PlacedCase
from weft_bench.checking import WrongResult

_COLUMNS = 1 << 12  # that are checked at once
_ROWS = 4  # of each rank that are looked at


class ProductTask:
    """Half-precision operands, sums and results in float32. On one rank it is `weft.contract` of whole operands."""

    def __init__(self, case: PlacedCase, device: torch.device, ranks: Ranks) -> None:
        extents = case.extents(ranks.size)
        for label, extent in extents.items():
            if extent % ranks.size:
                raise WrongResult(0.0, f"mode {label} of {extent} has no equal parts on {ranks.size} ranks")
        self._case, self._ranks, self._extents = case, ranks, extents
        generator = torch.Generator(device=device).manual_seed(ranks.rank + 1)
        shapes = [self._part(term, label) for term, label in zip(("mk", "kn"), case.placements, strict=False)]
        self._a, self._b = (
            torch.randn(shape, generator=generator, device=device, dtype=torch.float16).div_(extents["k"] ** 0.25)
            for shape in shapes
        )
        self._call: Callable[..., Any] = self._alone
        if ranks.size > 1:
            placements = dict(zip("abd", case.placements, strict=True))
            self._call = plan(
                case.equation, self._a, self._b, placements=placements, group=ranks.group, out_dtype=torch.float32
            )

    def run(self) -> torch.Tensor:
        found: torch.Tensor = self._call(self._a, self._b)
        return found

    def checked(self, found: torch.Tensor) -> float:
        """Some rows of each rank's part of D, in float64, from the parts of all: the error over its bound.

        A float16 product is exact in float32, and a sum of K of them is off by K eps of their magnitudes at most.
        """
        rows = self._sampled()
        k = self._extents["k"] // self._ranks.size
        mine = slice(self._ranks.rank * k, (self._ranks.rank + 1) * k)
        left = rows[:, mine].double()
        expected = torch.empty(len(rows), self._extents["n"], dtype=torch.float64, device=found.device)
        magnitudes = torch.empty_like(expected)
        for first in range(0, self._extents["n"], _COLUMNS):  # all of B in float64 might not fit
            right = self._b[:, first : first + _COLUMNS].double()
            torch.mm(left, right, out=expected[:, first : first + _COLUMNS])
            torch.mm(left.abs(), right.abs(), out=magnitudes[:, first : first + _COLUMNS])
        for total in (expected, magnitudes):
            dist.all_reduce(total, group=self._ranks.group)
        m = self._extents["m"] // self._ranks.size
        places = torch.arange(_ROWS, device=found.device) * (m // _ROWS)
        ours = slice(self._ranks.rank * _ROWS, (self._ranks.rank + 1) * _ROWS)
        bound = (self._extents["k"] + 2) * epsilon(torch.float32) * magnitudes[ours]
        worst = float(((found[places].double() - expected[ours]).abs() / bound).max())
        if not worst <= 1:
            raise WrongResult(worst, self._case.name)
        return worst

    def about(self) -> dict[str, Any]:
        count = self._extents["m"] * self._extents["k"] * self._extents["n"]
        said: dict[str, Any] = {"flops": 2 * count, "placements": list(self._case.placements)}
        if isinstance(self._call, DistributedPlan):
            chosen, taken = self._call.prediction, self._call.timeline(self._a, self._b)
            said |= {
                "link": str(self._call.link), "loop": chosen.strategy.loop, "parts": chosen.strategy.parts,
                "predicted_seconds": chosen.seconds, "compute_seconds": taken.compute,
                "transfer_seconds": taken.transfer, "hidden": taken.hidden, "timeline": str(taken).splitlines(),
            }  # fmt: skip
        return said

    def _alone(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return contract(self._case.equation, a, b, out_dtype=torch.float32)

    def _part(self, term: str, label: str) -> list[int]:
        return [self._extents[each] // (self._ranks.size if each == label else 1) for each in term]

    def _sampled(self) -> torch.Tensor:
        """Rows of A in all their columns, the same on every rank: `_ROWS` of each rank's part of D, in order."""
        size, m = self._ranks.size, self._extents["m"]
        step = m // size // _ROWS
        places = [rank * (m // size) + at * step for rank in range(size) for at in range(_ROWS)]
        whole = torch.zeros(len(places), self._extents["k"], dtype=torch.float32, device=self._a.device)
        if self._case.placements[0] == "k":
            k = self._extents["k"] // size
            whole[:, self._ranks.rank * k : (self._ranks.rank + 1) * k] = self._a[places].float()
        else:
            first = self._ranks.rank * (m // size)
            for at, place in enumerate(places):
                if 0 <= place - first < m // size:
                    whole[at] = self._a[place - first].float()
        dist.all_reduce(whole, group=self._ranks.group)
        return whole
