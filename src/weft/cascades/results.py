"""Results of a cascade as they are computed, by the roles of labels, and as the caller has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.spec import Label

Labels = tuple[Label, ...]


class Results:
    """The labels of a plan's results in both orders: D with those that were asked for, others with theirs in S's.

    `described` are the labels and types that the caller has.
    """

    def __init__(self, plan: Any) -> None:
        frame, between = plan.frame, plan.between
        self._frame, self._meets = frame, plan.meets
        self._own: list[Labels] = [frame.second.result] if plan.meets else []
        self.described: list[tuple[Labels, torch.dtype]] = [(plan.notation.d, plan.result_type)] if plan.meets else []
        for node in between.outputs[plan.meets :]:
            dtype, modes = node.meta["dtype"], between.modes[node]
            self._own.append(_kept(frame.order, modes))
            stored = frame.stored_as(dtype) if node in between.elementwise else dtype
            self.described.append((_kept(plan.notation.s, modes), stored))

    def laid_out(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Results as the caller has them."""
        results = []
        for value, own, (asked, _) in zip(found, self._own, self.described, strict=True):
            value = value.reshape([self._frame.extents[label] for label in own])
            results.append(value.permute([own.index(label) for label in asked]))
        return results

    def along_s(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of results, or the first results, as `laid_out` was given them."""
        found: list[Tensor | None] = []
        for at, (grad, own, (asked, _)) in enumerate(zip(grads, self._own, self.described, strict=False)):
            if grad is not None:
                grad = grad.permute([asked.index(label) for label in own])
                grad = grad if self._meets and at == 0 else grad.reshape(self._frame.shape(frozenset(own)))
            found.append(grad)
        return found


def _kept(order: Labels, modes: frozenset[Label]) -> Labels:
    return tuple(label for label in order if label in modes)
