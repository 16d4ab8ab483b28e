"""Where slices are added up.

A result has a *part* for each index of its own sliced labels; `summed` slices in a row add to one part. A part whose
slices all run here one after the other is added up in the memory of the result and finished by its last slice. A part
that is shared with other ranks, or that a checkpoint may have to hold, is a *partial* sum: its function waits for the
others. Half precision is added up in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch

from weft.networks.plan import NetworkPlan
from weft.networks.slicing import part
from weft.plans.intermediates import WIDER


class SumPlace(NamedTuple):
    """Where the last step of a slice writes."""

    into: torch.Tensor
    added: torch.Tensor | None  # what is added to its result: the sum so far
    last: bool  # the step's function is applied: the sum is complete


class SliceSums:
    """The sums of one call. `partial` are the numbers of parts that are not finished here."""

    def __init__(
        self, plan: NetworkPlan, slices: Sequence[Mapping[int, int]], out: torch.Tensor, partial: Collection[int] = ()
    ) -> None:
        """`slices` have the index of each sliced label; those of one part stand together."""
        tree = plan.tree
        self._out, self._output = tree.graph.result.view(out), tree.graph.output
        self._slices, self._summed, self._shape = slices, tree.summed, plan.shape(tree.root)
        self._partial = frozenset(partial)
        self._in_place = out.dtype not in WIDER and tree.root not in plan.functions
        self._wide: torch.Tensor | None = None
        if self._summed > 1 and out.dtype in WIDER and len(self._partial) < len(self._slices) // self._summed:
            self._wide = self._new()
        self.held: dict[int, torch.Tensor] = {}  # partial sums that have begun

    def part(self, number: int) -> torch.Tensor:
        """A part of the result."""
        return part(self._out, self._output, self._slices[number * self._summed])

    def place(self, number: int) -> SumPlace:
        """Where slice `number` goes."""
        at, turn = divmod(number, self._summed)
        if at in self._partial:
            held = self.held.get(at)
            if held is None:
                held = self.held[at] = self._room(at)
                return SumPlace(held, None, False)
            return SumPlace(held, held, False)
        place = self.part(at)
        first, last = turn == 0, turn == self._summed - 1
        sum_of = self._wide if self._wide is not None else place
        return SumPlace(place if last else sum_of, None if first else sum_of, last)

    def begin(self, number: int, value: torch.Tensor) -> None:
        """Let the partial sum of part `number` go on from `value`."""
        held = self.held[number] = self._room(number)
        held.copy_(value.reshape(held.shape))

    def _room(self, number: int) -> torch.Tensor:
        return self.part(number) if self._in_place else self._new()

    def _new(self) -> torch.Tensor:
        return torch.empty(self._shape, dtype=WIDER.get(self._out.dtype, self._out.dtype), device=self._out.device)
