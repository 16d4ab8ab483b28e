"""Plus-times: the backward pass of D = epilogue(alpha * sum a_fn(A) b_fn(B) + beta * c_fn(C)) as contractions.

With G the gradient of the sums, which the epilogue's derivative makes of that of D,

    dA = a_fn'(A) * sum_n conj(alpha) G conj(b_fn(B))      dC = c_fn'(C) * conj(beta) G      d bias = sum of its part

in torch's convention of complex gradients. G is never stored where the cost model finds it cheaper to make it as the
contractions read dD: then it is their prologue. a_fn' is fused into the epilogue. What G needs of the sums is read off
D where that says it all (`relu`), else the sums are kept as one more result, or computed again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from weft.api.entry import Words, contraction, words_of
from weft.api.permute import moved
from weft.autograd import hooks
from weft.autograd.backward import (
    SUMS,
    Backward,
    Needs,
    Steps,
    arithmetic,
    grad_source,
    operand_source,
    over_elements,
    result_source,
    sums_again,
    with_sums,
)
from weft.autograd.forward import pushed
from weft.autograd.spec import A_FN, EPILOGUE, FIRST_OPERAND, Spec, batched, is_smooth
from weft.autograd.steps import GradientStep, Spread, with_modes
from weft.base.arrays import outside_transforms
from weft.base.cached import cached_property
from weft.engine.calls import CALLS, Calls, present
from weft.errors import WeftError
from weft.planner.options import Options
from weft.planner.schedule import Scalar


class Product:
    """The rule of one contraction of plus-times, for tensors of these shapes.

    `needs` says which gradients may be requested. `forward` returns D, further results, and last what is `kept`.
    """

    permutes = False
    yields: int | None = None
    fuses = True  # derivatives of the functions of A and B are part of contractions
    knows = True  # steps are calls that may be known

    def __init__(
        self, spec: Spec, needs: Needs, shapes: tuple[tuple[int, ...] | None, ...], device: torch.device, ahead: bool
    ) -> None:
        self.spec, self.needs, self.shapes, self.device = spec, needs, shapes, device
        self.ahead = ahead  # whether tangents may be requested, too
        self._steps: dict[Any, Steps] = {}
        self._calls = Calls(16)  # passes over sources that lay alike
        self._dropping: dict[Any, Sequence[tuple[GradientStep | Spread, frozenset[str]]]] = {}
        every = tuple(is_smooth(dtype) for dtype in spec.results)
        self.again = False
        self._known = frozenset(at for at, smooth in enumerate(every) if smooth)
        self._reads = {source for step in self._made(every, needs, stored=False) for source in step.reads}
        self._known = frozenset(at for at in self._known if result_source(at) in self._reads)
        self.again = SUMS in self._reads and not self._is_kept()
        if ahead and spec.functions[EPILOGUE] is not None:
            self.again, self._reads = False, self._reads | {SUMS}
        self.kept = SUMS in self._reads and not self.again
        if self.again:
            self._reads |= sums_again(spec).reads

    # -- forward ---------------------------------------------------------------------------------------------------

    @cached_property
    def options(self) -> Options:
        """Options of the forward call, but for operands and coordinates."""
        spec = with_sums(self.spec) if self.kept else self.spec
        how = replace(spec.how, schedule=None) if self.kept else spec.how
        types = spec.results if len(spec.results) > 1 else spec.results[0]
        return replace(how, out_dtype=types, functions=spec.functions, **arithmetic(spec))

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        a, b, c, *operands = tensors
        assert a is not None
        assert b is not None
        addend, words, found = self._addend(c), self._words, None
        if words is not None:
            beside = [each for (name, _), each in zip(self.spec.operands, operands, strict=True) if name in self._used]
            known, _ = CALLS.find(*present(words, a, b, addend, None, beside))
            found = None if known is None else known.run(a, b, addend, alpha, beta, None, beside)
        if found is None:
            found = contraction(self.spec.text, a, b, self._requested(tensors), addend, alpha, beta)
        return found if isinstance(found, tuple) else (found,)

    @cached_property
    def _used(self) -> frozenset[str]:
        """Names of the operands and coordinates that functions take."""
        return frozenset(name for names in self.spec.names for name in names)

    @cached_property
    def _words(self) -> Words | None:
        """The forward call, but for its tensors and factors."""
        nothing = (None,) * (FIRST_OPERAND + len(self.spec.operands))
        return words_of(self.spec.text, self._requested(nothing))

    def _requested(self, tensors: Sequence[torch.Tensor | None]) -> Options:
        """The options of a forward call of these tensors."""
        return replace(self.options, **self.spec.aux(tensors, self._used))

    def _addend(self, c: torch.Tensor | None) -> torch.Tensor | None:
        """C with a dimension for each of D's."""
        return None if c is None else with_modes(c, self.spec.term_c or "", self.spec.term_d)

    # -- what is kept ------------------------------------------------------------------------------------------------

    def saved(
        self, tensors: Sequence[torch.Tensor | None], results: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        """The tensors that the backward pass reads, in the order of A, B, C, operands, results; None for the others."""
        return tuple([each if kept else None for kept, each in zip(self._keeps, (*tensors, *results), strict=True)])

    @cached_property
    def _keeps(self) -> tuple[bool, ...]:
        """Which of `_names` the backward pass reads."""
        return tuple([self.ahead or name in self._reads for name in self._names])

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The sources that tensors and results are."""
        operands = tuple(operand_source(name) for name, _ in self.spec.operands)
        results = tuple(result_source(at) for at in range(len(self.spec.results)))
        return ("A", "B", "C", *operands, *results, *((SUMS,) if self.kept else ()))

    @property
    def kept_bytes(self) -> int:
        """Bytes kept that are no operands and no results."""
        return self._sums_bytes if self.kept else 0

    @property
    def _sums_bytes(self) -> int:
        return math.prod(self._shape(self.spec.term_d)) * hooks.kept_type(self.spec).itemsize

    def _is_kept(self) -> bool:
        """Whether the sums are kept, or made again: what the cost model finds cheaper, within the workspace limit."""
        limit = self.spec.how.workspace_limit
        if limit is not None and self._sums_bytes > limit:
            return False
        try:
            _, again = sums_again(self.spec).chosen(self.metas(), self.device)
        except WeftError:
            return True
        if again is None:
            return True
        # Kept sums are written once and read once, as a copy of them is.
        kept = hooks.kept_type(self.spec)
        copied = over_elements(self.spec, "copy", kept, "D", self.spec.term_d)
        held = torch.empty(self._shape(self.spec.term_d), dtype=kept, device="meta")
        _, copy = copied.chosen({"D": held}, self.device)
        return copy is None or copy.best.seconds <= again.best.seconds

    # -- backward ----------------------------------------------------------------------------------------------------

    def backward(
        self,
        alpha: Scalar,
        beta: Scalar,
        saved: Sequence[torch.Tensor | None],
        grads: Sequence[torch.Tensor | None],
        needs: Needs,
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of A, B, C and the operands; `grads` are those of the results, the kept sums' last."""
        sources = {name: each for name, each in zip(self._names, saved, strict=True) if each is not None}
        pattern = []
        for at, each in enumerate(grads):
            pattern.append(each is not None)
            if each is not None:
                sources[grad_source(at)] = each
        asked = tuple([mine and asked for mine, asked in zip(self.needs, needs, strict=True)])
        words, given = (tuple(pattern), asked), tuple(sources.values())
        calls: list[Any] | None = None
        place = None
        if self.knows and beta != 0:
            known, place = self._calls.find(words, given)
            if known is not None:
                return self._again(known, words, sources, alpha, beta)
            calls = []
        nothing: set[str] = set()  # what a beta of 0 leaves out, and what is made of it alone
        for step, done in self._passes(*words):
            if nothing and isinstance(step, GradientStep) and step.addend in nothing:
                step = replace(step, addend=None)
            if (step.scale == "beta" and beta == 0) or (nothing and step.reads & nothing):
                nothing |= {step.target} - sources.keys()
                continue
            if calls is None:
                sources[step.target] = self._run(step, sources, alpha, beta)
            elif isinstance(step, GradientStep):
                sources[step.target] = step.run(sources, alpha, beta, calls)
            else:
                sources[step.target] = step.run(sources, alpha, beta)
                calls.append(None)
            for name in done:
                sources.pop(name, None)
        if calls and any(calls):
            self._calls.keep(place, given, calls)
        return self._gradients(sources, asked)

    def _again(
        self, calls: Sequence[Any], words: tuple[hooks.Pattern, Needs], sources: dict[str, torch.Tensor],
        alpha: Scalar, beta: Scalar,
    ) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
        """A pass of sources that lie as those of an earlier one, each step by the known call that it took."""
        for (step, done), known in zip(self._passes(*words), calls, strict=True):
            if isinstance(step, GradientStep):
                sources[step.target] = step.again(known, sources, alpha, beta)
            else:
                sources[step.target] = step.run(sources, alpha, beta)
            for name in done:
                sources.pop(name, None)
        return self._gradients(sources, words[1])

    def _gradients(self, sources: Mapping[str, torch.Tensor], asked: Needs) -> tuple[torch.Tensor | None, ...]:
        """The gradient of each tensor, as the steps have made it; zeros where none of them did."""
        found: list[torch.Tensor | None] = []
        for at, (target, need) in enumerate(zip(self._targets, asked, strict=True)):
            made = sources.get(target) if need else None
            found.append(self._zeros(at) if need and made is None else made)
        return tuple(found)

    def _run(
        self, step: GradientStep | Spread, sources: dict[str, torch.Tensor], alpha: Scalar, beta: Scalar
    ) -> torch.Tensor:
        """One step; over ranks it is run otherwise."""
        return step.run(sources, alpha, beta)

    @cached_property
    def _targets(self) -> tuple[str, ...]:
        """Gradients, in the order of A, B, C and operands."""
        return ("dA", "dB", "dC", *(f"d {operand_source(name)}" for name, _ in self.spec.operands))

    def _passes(self, pattern: hooks.Pattern, needs: Needs) -> Sequence[tuple[GradientStep | Spread, frozenset[str]]]:
        """The steps, each with the sources that none after it reads: sums made again go before products are made."""
        key = (pattern, needs)
        found = self._dropping.get(key)
        if found is None:
            steps, later, passes = self.steps(pattern, needs), set(self._targets), []
            for step in reversed(steps):
                passes.append((step, frozenset(step.reads - later)))
                later |= step.reads
            found = self._dropping[key] = tuple(reversed(passes))
        return found

    def _zeros(self, at: int) -> torch.Tensor:
        shape = self.shapes[at]
        assert shape is not None
        return torch.zeros(shape, dtype=self.spec.storage[at], device=self.device)

    def steps(self, pattern: hooks.Pattern, needs: Needs) -> Steps:
        """The contractions of a backward pass; the way the cost model expects to take less time."""
        key = (pattern, needs)
        found = self._steps.get(key)
        if found is None:
            with outside_transforms():
                found = self._steps[key] = self._cheaper(pattern, needs)
        return found

    def _cheaper(self, pattern: hooks.Pattern, needs: Needs) -> Steps:
        found = self._made(pattern, needs, stored=False)
        if any(isinstance(step, GradientStep) and step.prologue for step in found):
            stored = self._made(pattern, needs, stored=True)
            if self._seconds(stored) < self._seconds(found):
                return stored
        return found

    def _seconds(self, steps: Steps) -> float:
        """Seconds that the cost model expects of these steps; infinite where one cannot be done."""
        metas, total = self.metas(), 0.0
        try:
            for step in steps:
                if isinstance(step, GradientStep):
                    metas[step.target], choice = step.chosen(metas, self.device)
                    total += choice.best.seconds if choice is not None else 0.0
        except WeftError:
            return math.inf
        return total

    def _made(self, pattern: hooks.Pattern, needs: Needs, *, stored: bool) -> Steps:
        """The steps, with G as a tensor of its own (`stored`) or as a prologue of those that read it."""
        spec, count, known = self.spec, len(self.spec.results), self._known
        if len(pattern) > count and pattern[-1]:  # a gradient of the kept sums comes from a second derivative
            spec, known = with_sums(spec), known | {count}
        else:
            pattern = pattern[:count]
        if not any(pattern):
            return ()
        found = Backward(spec, pattern, known, stored, count, self.fuses).steps(needs)
        if self.again and any(SUMS in step.reads for step in found):
            found = (sums_again(self.spec), *found)
        return found

    # -- transforms ---------------------------------------------------------------------------------------------------

    def batched(
        self, tensors: Sequence[torch.Tensor | None], batches: Sequence[bool], size: int
    ) -> tuple[Product, tuple[torch.Tensor | None, ...]]:
        """The rule with one more mode, first in all these tensors and in D."""
        spec, arguments = batched(self.spec, tensors, batches, size)
        shapes = tuple(None if each is None else tuple(each.shape) for each in arguments)
        with outside_transforms():
            return product(spec, self.needs, shapes, self.device, self.ahead, self.permutes), arguments

    def forward_mode(
        self,
        alpha: Scalar,
        beta: Scalar,
        saved: Sequence[torch.Tensor | None],
        tangents: Sequence[torch.Tensor | None],
    ) -> tuple[torch.Tensor | None, ...]:
        """The tangent of each result."""
        sources = {name: each for name, each in zip(self._names, saved, strict=True) if each is not None}
        return pushed(self.spec, sources, tangents, alpha, beta, self.kept)

    def _shape(self, term: str) -> list[int]:
        extents: dict[str, int] = {}
        for each, shape in zip(self.spec.terms(), self.shapes, strict=True):
            if each is not None and shape is not None:
                extents.update(zip(each, shape, strict=True))
        return [extents[label] for label in term]

    def metas(self) -> dict[str, torch.Tensor]:
        """Every source as a meta tensor, contiguous."""
        spec = self.spec
        found = {
            name: torch.empty(shape, dtype=dtype, device="meta")
            for name, shape, dtype in zip(self._inputs(), self.shapes, spec.storage, strict=True)
            if shape is not None
        }
        shape = self._shape(spec.term_d)
        for at, dtype in enumerate((*spec.results, hooks.kept_type(spec))):
            found[grad_source(at)] = found[result_source(at)] = torch.empty(shape, dtype=dtype, device="meta")
        found[SUMS] = torch.empty(shape, dtype=hooks.kept_type(spec), device="meta")
        return found

    def _inputs(self) -> tuple[str, ...]:
        return ("A", "B", "C", *(operand_source(name) for name, _ in self.spec.operands))


class Permuted(Product):
    """A permutation: what `weft.permute` makes of A, with the derivatives of its sum over nothing.

    B is a one, repeated along the modes that A lacks; `fn` is A's function.
    """

    permutes = True

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        spec, (a, b, c, *_) = self.spec, tensors
        assert a is not None
        assert b is not None
        text, options, said = self._call
        extents: dict[Any, int] | None = dict(zip(spec.term_b, b.shape, strict=True)) or None
        return (moved(text, a, options, self._addend(c), alpha, beta, extents=extents, said=said),)

    @cached_property
    def _call(self) -> tuple[str, Options, Any]:
        """The equation and the options of the forward call, and these as a key."""
        spec = self.spec
        options = replace(spec.how, out_dtype=spec.results[0], functions=(spec.functions[A_FN], None, None, None))
        return f"{spec.term_a}->{spec.term_d}", options, options.said()


@lru_cache(maxsize=1024)
def product(
    spec: Spec, needs: Needs, shapes: tuple[tuple[int, ...] | None, ...], device: torch.device, ahead: bool,
    permutes: bool = False,
) -> Product:  # fmt: skip
    """The rule of these, kept."""
    return (Permuted if permutes else Product)(spec, needs, shapes, device, ahead)
