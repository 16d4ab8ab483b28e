"""Contractions of numbers without derivatives, to which `torch.func.vmap` adds modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weft.api.entry import contraction
from weft.autograd.backward import Needs, arithmetic
from weft.autograd.spec import Spec, batched
from weft.autograd.steps import with_modes
from weft.planner.schedule import Scalar

Tensors = Sequence[Tensor | None]


class Whole:
    """The rule of a contraction of any algebra, of whole numbers or truth values."""

    ahead = False
    yields: int | None = None

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._used = {name for names in spec.names for name in names}

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Tensors) -> tuple[Tensor, ...]:
        spec, (a, b, c, *_) = self.spec, tensors
        types = {} if spec.accumulate is torch.bool else arithmetic(spec)
        options = replace(
            spec.how, out_dtype=spec.results if spec.several else spec.results[0], functions=spec.functions,
            algebra=spec.algebra, **types, **spec.aux(tensors, self._used),
        )  # fmt: skip
        added = None if c is None else with_modes(c, spec.term_c or "", spec.term_d)
        assert a is not None
        assert b is not None
        found = contraction(spec.text, a, b, options, added, alpha, beta)
        return found if isinstance(found, tuple) else (found,)

    def saved(self, tensors: Tensors, results: Sequence[Tensor]) -> Tensors:
        return ()

    def backward(
        self, alpha: Scalar, beta: Scalar, saved: Tensors, grads: Tensors, needs: Needs
    ) -> tuple[Tensor | None, ...]:
        return (None,) * len(needs)

    def forward_mode(
        self, alpha: Scalar, beta: Scalar, saved: Tensors, tangents: Tensors
    ) -> tuple[Tensor | None, ...]:
        return (None,) * len(self.spec.results)

    def batched(self, tensors: Tensors, batches: Sequence[bool], size: int) -> tuple[Whole, Tensors]:
        spec, arguments = batched(self.spec, tensors, batches, size)
        return Whole(spec), arguments
