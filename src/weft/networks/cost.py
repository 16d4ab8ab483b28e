"""The cost of a step by weft's count: a launch, and whichever takes longer of its products and its bytes.

Paths and slices are ranked with it long before a step is planned. Rates are those of the cost models
(`data/costs`): of cuBLAS and of memory on a GPU, of torch's library on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from weft.cpu.host import costs as cpu_costs
from weft.networks.tree import Labels, Tree, TreeStep
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.planner.split_schemes import BF16X6, RATES, refusal
from weft.spec.dtypes import PRECISIONS
from weft.spec.type_names import read_mode

_TILE = 64  # extent of a matrix product below which its rate falls in proportion
_GRAPH_LAUNCH = 2.0e-6  # seconds between two small kernels of a CUDA graph (H200, measured)
_CPU_TILE, _GPU_TILE = 16, 128
_MEMORY_SHARE = 0.85  # of the memory's rate, what a step that is bound by it gets


@dataclass(frozen=True, slots=True)
class Model:
    """The figures of one device and type; seconds, FLOP/s, bytes/s."""

    launch: float
    rate: float
    memory: float
    item: int  # bytes of an element
    factor: float  # flops of a multiply-add
    tile: int  # rows and columns of a product that the library computes at once

    def seconds(self, tree: Tree, step: TreeStep, size: Callable[[Labels], int] | None = None) -> float:
        """Seconds of one step of one slice; `size`: elements of a tensor of some labels, where it is not all of it."""
        size, nodes = size or tree.graph.size, tree.nodes
        left, right, out = nodes[step.left], nodes[step.right], nodes[step.node]
        union = left | right
        share = 1.0
        for own in (left - right, right - left):
            share *= min(1.0, size(own) / _TILE) ** 0.5
        flops = self.factor * size(union) / (self.rate * max(share, 1 / _TILE))
        moved = self.item * (size(left) + size(right) + size(out)) / self.memory
        return self.launch + max(flops, moved)

    def of_slice(self, tree: Tree) -> tuple[float, float]:
        """Seconds of the steps of one slice, and of those that all slices share."""
        found = [0.0, 0.0]
        for step in tree.steps:
            found[step.node in tree.once] += self.seconds(tree, step)
        return found[0], found[1]

    def total(self, tree: Tree) -> float:
        """Seconds of all slices; steps that are equal in every slice count once."""
        once, slices = tree.once, tree.slices
        return sum(self.seconds(tree, step) * (1 if step.node in once else slices) for step in tree.steps)


@lru_cache(maxsize=64)
def precision_word(precision: Any) -> str:
    """A call's `precision` as `model` takes it; what is none is refused where steps are planned."""
    return str(read_mode("precision", precision, PRECISIONS) or "ieee")


def model(target: Target, dtype: torch.dtype, precision: str = "ieee") -> Model:
    """The figures for products of that type."""
    name = str(dtype).removeprefix("torch.")
    factor = 8.0 if dtype.is_complex else 2.0
    if target.kind == "cpu":
        found = cpu_costs("blas")
        rates = found.table("rate")
        threads = max(target.processors, 1)
        rate = rates.get(name, rates["float32"]) * threads
        return Model(found("call"), rate, found("memory") * min(threads, 4), dtype.itemsize, factor, _CPU_TILE)
    library = fitted("blas")
    rates = library.table("rates")
    rate = rates.get(name, rates["float32"])
    if precision == "tf32":
        rate = library("tf32_rate")
    elif precision == "ieee_bound" and name in ("float32", "complex64") and refusal(target) is None:
        rate = RATES[BF16X6.name]
    return Model(_GRAPH_LAUNCH, rate, _MEMORY_SHARE * library("memory_rate"), dtype.itemsize, factor, _GPU_TILE)
