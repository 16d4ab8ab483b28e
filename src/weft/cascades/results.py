"""Results of a cascade as they are computed, by the roles of labels, and as the caller has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from weft.spec import Label

Labels = tuple[Label, ...]


class Results:
    """The labels of a plan's results in both orders: D with those that were asked for, others with theirs in S's."""

    def __init__(self, plan: Any) -> None:
        self._frame, self._meets = plan.frame, plan.meets
        modes = [plan.between.modes[node] for node in plan.between.outputs[plan.meets :]]
        self._orders: list[tuple[Labels, Labels]] = [
            (_kept(plan.frame.order, each), _kept(plan.notation.s, each)) for each in modes
        ]
        if plan.meets:
            self._orders.insert(0, (plan.frame.second.result, plan.notation.d))

    def laid_out(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Results as the caller has them."""
        results = []
        for value, (own, asked) in zip(found, self._orders, strict=True):
            value = value.reshape([self._frame.extents[label] for label in own])
            results.append(value.permute([own.index(label) for label in asked]))
        return results

    def along_s(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of results, or the first results, as `laid_out` was given them."""
        found: list[Tensor | None] = []
        for at, (grad, (own, asked)) in enumerate(zip(grads, self._orders, strict=False)):
            if grad is not None:
                grad = grad.permute([asked.index(label) for label in own])
                grad = grad if self._meets and at == 0 else grad.reshape(self._frame.shape(frozenset(own)))
            found.append(grad)
        return found


def _kept(order: Labels, modes: frozenset[Label]) -> Labels:
    return tuple(label for label in order if label in modes)
