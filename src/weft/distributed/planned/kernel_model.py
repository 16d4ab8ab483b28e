"""The predicted time of contracting a part: the planner's prediction for this rank's share, spread over its parts.

    seconds = launch + max((the share's time - launch) * the part's share of products, its bytes / bandwidth)

A part that is thin reads an operand again, so its bytes may take longer than its products. A part along a summed mode
reads the sums of those before it, and its products wait meanwhile: 2.2 ms for 8.6 GB on an H200, where 1.0 to 3.3 were
measured (`results/h200x2/ways.json`).

A kernel whose blocks stay for all of their tiles, one on each multiprocessor, leaves none to a collective's kernel
before it ends. Where the collective came first, the blocks that waited for its multiprocessors have their tiles still
to do. GPUs take no block off a multiprocessor before it is done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from weft.algebra import Algebra
from weft.api.describe import choice_for
from weft.machine.datasheets import datasheet
from weft.planner.options import Options
from weft.planner.schedule import Target
from weft.planner.validity import generation
from weft.plans.resolving import resolved
from weft.spec import Notation
from weft.spec.notation import Label

LAUNCH = {"cuda": 6e-6, "cpu": 3e-5}  # seconds before a contraction of a part begins, host included, once it is known
_STAYS = "warp_specialized"  # the family whose grid is as large as the GPU, each block with a range of tiles
_RATE, _BANDWIDTH = {"cuda": 100e12, "cpu": 20e9}, {"cuda": 2e12, "cpu": 10e9}  # where the planner predicts nothing


@dataclass(frozen=True)
class KernelModel:
    """Times of contractions of one equation on one device; `types` are those of a, b and of sums."""

    terms: tuple[tuple[Label, ...], tuple[Label, ...], tuple[Label, ...]]
    types: tuple[torch.dtype, torch.dtype, torch.dtype]
    target: Target
    algebra: Algebra | None = None
    precision: str | torch.dtype | None = None

    @property
    def kind(self) -> str:
        return "cuda" if self.target.kind in ("cuda", "hip") else "cpu"

    def part(self, whole: Mapping[Label, int], part: Mapping[Label, int]) -> float:
        """Seconds for a part of what a rank computes; both by the extents of labels."""
        launch = LAUNCH[self.kind]
        work = max(0.0, self.whole(whole) - launch)
        products = work * (self._products(part) / (self._products(whole) or 1.0))
        return launch + max(products, min(work, self.traffic(part) / self.bandwidth))

    def whole(self, extents: Mapping[Label, int]) -> float:
        """Seconds for all that a rank computes."""
        return self._predicted(extents)[0]

    def stays(self, extents: Mapping[Label, int]) -> bool:
        """Whether the kernel occupies all multiprocessors until it ends, so that no transfer can overlap it."""
        return self._predicted(extents)[1] == _STAYS

    def _predicted(self, extents: Mapping[Label, int]) -> tuple[float, str]:
        a, b = (tuple(extents[label] for label in term) for term in self.terms[:2])
        return _predicted(self, a, b, generation())

    def traffic(self, extents: Mapping[Label, int]) -> float:
        """Bytes of A, B and sums."""
        return sum(
            math.prod(extents[label] for label in term) * dtype.itemsize
            for term, dtype in zip(self.terms, self.types, strict=True)
        )

    def read_sums(self, extents: Mapping[Label, int]) -> float:
        """Seconds to read all sums."""
        return math.prod(extents[label] for label in self.terms[2]) * self.types[2].itemsize / self.bandwidth

    def pass_over(self, size: float) -> float:
        """Seconds to read and write `size` bytes in all, as what follows a sum does."""
        return LAUNCH[self.kind] + size / self.bandwidth

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the device's memory: of a GPU four fifths of its datasheet's, where it has one."""
        sheet = datasheet(self.target.name) if self.kind == "cuda" else None
        return 0.8 * sheet.bandwidth if sheet is not None else _BANDWIDTH[self.kind]

    def _products(self, extents: Mapping[Label, int]) -> float:
        return float(math.prod(extents[label] for label in dict.fromkeys(sum(self.terms, ()))))


@lru_cache(maxsize=1024)
def _predicted(
    kernel: KernelModel, a: tuple[int, ...], b: tuple[int, ...], _generation: tuple[int, int]
) -> tuple[float, str]:
    """Seconds for contiguous operands, and by what family; a roofline where the planner predicts nothing.

    They are predicted anew when what plans depend on has changed.
    """
    extents = dict(zip(sum(kernel.terms[:2], ()), (*a, *b), strict=True))
    for label, extent in zip(kernel.terms[0], a, strict=True):
        extents[label] = max(extent, extents[label])
    if not all(extents.values()):
        return LAUNCH[kernel.kind], ""
    x, y = (
        torch.empty(shape, dtype=dtype, device="meta")
        for shape, dtype in zip((a, b), kernel.types[:2], strict=True)
    )
    # Modes may be of any kind: numbers stand for them, as an equation in text cannot hold them.
    number = {label: at for at, label in enumerate(extents)}
    terms = [tuple(number[label] for label in term) for term in kernel.terms]
    options = Options(
        kernel.types[2], kernel.precision, None, algebra=kernel.algebra, backend="reference", promote=True
    )  # fmt: skip
    request = resolved(Notation((terms[0], terms[1]), terms[2]), "a part", x, y, options)
    kind = kernel.kind
    device = torch.device(kind)
    backend = "cpu" if kind == "cpu" else "triton"
    _, choice = choice_for(replace(request, backend=backend, device=device, target=kernel.target))
    if choice is not None:
        return float(choice.best.seconds), choice.best.schedule.family
    flops = 2 * math.prod(extents.values())
    return LAUNCH[kind] + max(flops / _RATE[kind], kernel.traffic(extents) / kernel.bandwidth), ""
