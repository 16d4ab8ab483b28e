"""The rule of one contraction: how it is called where derivatives are requested, and what all rules have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch

from weft.api.entry import Words, contraction, words_of
from weft.autograd.backward import Needs, arithmetic
from weft.autograd.spec import FIRST_OPERAND, Spec, batched
from weft.autograd.steps import with_modes
from weft.base.cached import cached_property
from weft.engine.calls import CALLS, present
from weft.planner.options import Options
from weft.planner.schedule import Scalar

Tensors = Sequence[torch.Tensor | None]
Found = tuple[torch.Tensor | None, ...]


class Rule(ABC):
    """How one contraction is differentiated. Tensors are A, B, C and the operands; C may be None.

    `needs` says which gradients may be requested, `ahead` whether tangents may be: then everything is saved.
    """

    def __init__(self, spec: Spec, needs: Needs, ahead: bool) -> None:
        self.spec, self.needs, self.ahead = spec, needs, ahead

    @property
    def called(self) -> Spec:
        """The contraction of the forward pass."""
        return self.spec

    @cached_property
    def options(self) -> Options:
        """Options of the forward call, but for operands and coordinates."""
        spec = self.called
        types = {} if spec.accumulate is torch.bool else arithmetic(spec)
        return replace(
            spec.how, out_dtype=spec.results if spec.several else spec.results[0], functions=spec.functions,
            algebra=spec.algebra, **types,
        )  # fmt: skip

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """The results, and behind them what is kept."""
        spec, (a, b, c, *operands) = self.spec, tensors
        assert a is not None
        assert b is not None
        addend, words, found = None, self._words, None
        if c is not None:  # a dimension for each of D's
            addend = with_modes(c, spec.term_c or "", spec.term_d)
        if words is not None:
            beside = [each for (name, _), each in zip(spec.operands, operands, strict=True) if name in self._used]
            known, _ = CALLS.find(*present(words, a, b, addend, None, beside))
            found = None if known is None else known.run(a, b, addend, alpha, beta, None, beside)
        if found is None:
            found = contraction(spec.text, a, b, self.requested(tensors), addend, alpha, beta)
        return found if isinstance(found, tuple) else (found,)

    def requested(self, tensors: Tensors) -> Options:
        """The options of a forward call of these tensors."""
        return replace(self.options, **self.spec.aux(tensors, self._used))

    @cached_property
    def _used(self) -> frozenset[str]:
        """Names of the operands and coordinates that functions take."""
        return frozenset(name for names in self.spec.names for name in names)

    @cached_property
    def _words(self) -> Words | None:
        """The forward call, but for its tensors and factors."""
        return words_of(self.spec.text, self.requested((None,) * (FIRST_OPERAND + len(self.spec.operands))))

    @abstractmethod
    def saved(self, tensors: Tensors, results: Sequence[torch.Tensor]) -> Tensors:
        """The tensors and results that backward needs, in the same places."""

    @abstractmethod
    def backward(self, alpha: Scalar, beta: Scalar, saved: Tensors, grads: Tensors, needs: Needs) -> Found:
        """A gradient for each tensor of which one is needed."""

    @abstractmethod
    def forward_mode(self, alpha: Scalar, beta: Scalar, saved: Tensors, tangents: Tensors) -> Found:
        """A tangent for each result, None for one that does not move."""

    def batched(self, tensors: Tensors, batches: Sequence[bool], size: int) -> tuple[Rule, Tensors]:
        """The rule with one more batch mode, the first of these tensors; every result has it first."""
        spec, arguments = batched(self.spec, tensors, batches, size)
        return self.of(spec, arguments), arguments

    def of(self, spec: Spec, tensors: Tensors) -> Self:
        """The rule of this kind of another contraction."""
        return type(self)(spec, self.needs, self.ahead)


class Whole(Rule):
    """The rule of a contraction of any algebra, of whole numbers or truth values: `vmap` adds modes to it."""

    def saved(self, tensors: Tensors, results: Sequence[torch.Tensor]) -> Tensors:
        return ()

    def backward(self, alpha: Scalar, beta: Scalar, saved: Tensors, grads: Tensors, needs: Needs) -> Found:
        return (None,) * len(needs)

    def forward_mode(self, alpha: Scalar, beta: Scalar, saved: Tensors, tangents: Tensors) -> Found:
        return (None,) * len(self.spec.results)


class Bare(Rule):
    """The rule of a contraction of an algebra without functions and C."""

    def saved(self, tensors: Tensors, results: Sequence[torch.Tensor]) -> Tensors:
        return (*tensors[:2], *results)

    def backward(self, alpha: Scalar, beta: Scalar, saved: Tensors, grads: Tensors, needs: Needs) -> Found:
        if grads[0] is None:
            return (None,) * len(needs)
        return (*self.pulled(grads[0], saved, needs), *(None,) * (len(needs) - 2))

    def forward_mode(self, alpha: Scalar, beta: Scalar, saved: Tensors, tangents: Tensors) -> Found:
        return (self.pushed(saved, tangents[:2]),)

    @abstractmethod
    def pulled(self, grad: torch.Tensor, saved: Sequence[Any], needs: Needs) -> Found:
        """The gradients of A and of B, of that of D."""

    @abstractmethod
    def pushed(self, saved: Sequence[Any], tangents: Tensors) -> torch.Tensor:
        """The tangent of D, of those of A and of B."""
