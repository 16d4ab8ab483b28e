"""The run of a contraction's operation: the call that its text describes.

A call whose tensors have the layouts of an earlier one's goes straight to its launch, as in `weft.contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from weft.api.entry import contraction, words_of
from weft.compiled.text import DescribedCall, read
from weft.engine.calls import CALLS, present
from weft.planner.schedule import Scalar


class Running:
    """A call that is run again and again."""

    def __init__(self, call: DescribedCall) -> None:
        self._call = call
        unplaced = replace(call.options, operands={name: (modes, None) for name, modes in call.aux})
        full = call.places is not None or call.validate  # to be made in full each time
        self._words = None if full else words_of(call.equation, unplaced)

    def __call__(
        self, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, out: tuple[torch.Tensor, ...] | None
    ) -> list[torch.Tensor]:
        """All results, D first; they are `out` where that is given."""
        a, b, c, beside = self._call.split(tensors)
        place = out[0] if out is not None and len(out) == 1 else None
        if self._words is not None and (out is None or place is not None):
            known, _ = CALLS.find(*present(self._words, a, b, c, place, beside))
            if known is not None and (found := known.run(a, b, c, alpha, beta, place, beside)) is not None:
                return _listed(found)
        return self.made(tensors, alpha, beta, out)

    def made(
        self, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, out: tuple[torch.Tensor, ...] | None
    ) -> list[torch.Tensor]:
        """All results of the call in full: differentiable, and for tensors that torch wants to see."""
        call = self._call
        a, b, c, _ = call.split(tensors)
        target: Any = out if out is None or len(call.types) > 1 else out[0]
        found = contraction(
            call.equation, a, b, call.asked(tensors), c, alpha, beta if c is not None else 1.0, target,
            return_arg=call.places is not None, validate=call.validate,
        )  # fmt: skip
        if call.places is None:
            return _listed(found)
        value, places = found
        return [value, *_listed(places)]


@lru_cache(maxsize=4096)
def running(text: str) -> Running:
    """The call that a text describes, with what is known of its earlier runs."""
    return Running(read(text))


def _listed(found: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)
