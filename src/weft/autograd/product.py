"""Plus-times: the backward pass of D = epilogue(alpha * sum a_fn(A) b_fn(B) + beta * c_fn(C)) as contractions.

With G the gradient of the sums, which the epilogue's derivative makes of that of D,

    dA = a_fn'(A) * sum_n conj(alpha) G conj(b_fn(B))      dC = c_fn'(C) * conj(beta) G      d bias = sum of its part

in torch's convention of complex gradients. G is made as the contractions read dD, by their prologue, or stored: on a
CPU where several read it, elsewhere where the cost model finds it cheaper. a_fn' is fused into the epilogue. What G
needs of the sums is read off D where that says it all (`relu`), else the sums are kept as one more result, or computed
again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import and_
from typing import Any, NamedTuple, Self, TypeVar

import torch

from weft.api.permute import moved
from weft.autograd import hooks
from weft.autograd.backward import (
    SUMS,
    Backward,
    Needs,
    Steps,
    grad_source,
    operand_source,
    over_elements,
    result_source,
    sums_again,
    with_sums,
)
from weft.autograd.forward import pushed
from weft.autograd.rule import Found, Rule, Tensors
from weft.autograd.spec import A_FN, EPILOGUE, Spec, is_smooth
from weft.autograd.steps import GradientStep, Spread, with_modes
from weft.base.arrays import outside_transforms
from weft.base.caches import cached_property
from weft.engine.calls import CALLS
from weft.engine.memo import Memo
from weft.errors import WeftError
from weft.planner.options import Options
from weft.planner.schedule import Scalar

Shapes = tuple[tuple[int, ...] | None, ...]


class KnownPass(NamedTuple):
    """A backward pass as it is made again: its steps with the known calls that they took, and what each leaves."""

    steps: tuple[tuple[Any, Any, frozenset[str]], ...]

    def run(self, sources: dict[str, torch.Tensor], alpha: Scalar, beta: Scalar) -> None:
        for step, known, done in self.steps:
            found = None if known is None else known.run(*step.arguments(sources, alpha, beta))
            sources[step.target] = step.run(sources, alpha, beta) if found is None else found
            for name in done:
                sources.pop(name, None)


class Product(Rule):
    """The rule of one contraction of plus-times, for tensors of these shapes.

    `forward` returns D, further results, and last what is `kept`.
    """

    fuses = True  # derivatives of the functions of A and B are part of contractions
    knows = True  # steps are calls that may be known

    def __init__(self, spec: Spec, needs: Needs, ahead: bool, shapes: Shapes, device: torch.device) -> None:
        super().__init__(spec, needs, ahead)
        self.shapes, self.device = shapes, device
        self._steps: dict[Any, Steps] = {}
        operands = [operand_source(name) for name, _ in spec.operands]
        self._inputs = ("A", "B", "C", *operands)
        self._targets = ("dA", "dB", "dC", *(f"d {each}" for each in operands))  # gradients, in the same order
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
        #: The sources that tensors and results are, and that gradients of results are, those of the kept sums last.
        self._names = (*self._inputs, *map(result_source, range(len(every))), *((SUMS,) if self.kept else ()))
        self._grads = tuple(map(grad_source, range(len(every) + 1)))
        self._keeps = [ahead or name in self._reads for name in self._names]

    @property
    def called(self) -> Spec:
        """With the sums as one more result, where they are kept."""
        return with_sums(self.spec) if self.kept else self.spec

    # -- what is kept ------------------------------------------------------------------------------------------------

    def saved(self, tensors: Tensors, results: Sequence[torch.Tensor]) -> Tensors:
        """The tensors that the backward pass reads, in the order of A, B, C, operands, results; None for the others."""
        return tuple([each if kept else None for kept, each in zip(self._keeps, (*tensors, *results), strict=True)])

    @property
    def sums_bytes(self) -> int:
        """Bytes of the sums as they are kept."""
        return math.prod(self._shape(self.spec.term_d)) * hooks.kept_type(self.spec).itemsize

    def _is_kept(self) -> bool:
        """Whether the sums are kept, or made again: what the cost model finds cheaper, within the workspace limit."""
        limit = self.spec.how.workspace_limit
        if limit is not None and self.sums_bytes > limit:
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

    def backward(self, alpha: Scalar, beta: Scalar, saved: Tensors, grads: Tensors, needs: Needs) -> Found:
        """Gradients of A, B, C and the operands; `grads` are those of the results, the kept sums' last."""
        sources, pattern = {}, tuple([each is not None for each in grads])
        for name, each in (*zip(self._names, saved, strict=True), *zip(self._grads, grads, strict=False)):
            if each is not None:
                sources[name] = each
        asked = tuple(map(and_, self.needs, needs))
        given, words = tuple(sources.values()), (self, pattern, asked)
        known, place = CALLS.find(words, given) if self.knows and beta != 0 else (None, None)
        if known is not None:
            known.run(sources, alpha, beta)
        else:
            calls = self._run_steps(self.steps(pattern, asked), sources, alpha, beta, place is not None)
            CALLS.keep(place, given, calls)
        return self._gradients(sources, asked)

    def _run_steps(
        self, steps: Steps, sources: dict[str, torch.Tensor], alpha: Scalar, beta: Scalar, noted: bool
    ) -> KnownPass:
        """Each step; sources that none after it reads go: sums made again are gone before products are made.

        `noted`: with the calls that are known after it.
        """
        left, later = [], set(self._targets)
        for step in reversed(steps):
            left.append(frozenset(step.reads - later))
            later |= step.reads
        passed = []
        nothing: set[str] = set()  # what a beta of 0 leaves out, and what is made of it alone
        for step, done in zip(steps, reversed(left), strict=True):
            if nothing and isinstance(step, GradientStep) and step.addend in nothing:
                step = replace(step, addend=None)
            if (step.scale == "beta" and beta == 0) or (nothing and step.reads & nothing):
                nothing |= {step.target} - sources.keys()
                continue
            found = self._run(step, sources, alpha, beta)
            known = step.known(sources, alpha, beta) if noted and isinstance(step, GradientStep) else None
            passed.append((step, known, done))
            sources[step.target] = found
            for name in done:
                sources.pop(name, None)
        return KnownPass(tuple(passed))

    def _gradients(self, sources: Mapping[str, torch.Tensor], asked: Needs) -> Found:
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

    def _zeros(self, at: int) -> torch.Tensor:
        shape = self.shapes[at]
        assert shape is not None
        return torch.zeros(shape, dtype=self.spec.storage[at], device=self.device)

    def steps(self, pattern: hooks.Pattern, needs: Needs) -> Steps:
        """The contractions of a backward pass."""
        key = (pattern, needs)
        found = self._steps.get(key)
        if found is None:
            with outside_transforms():
                found = self._steps[key] = self._cheaper(pattern, needs)
        return found

    def _cheaper(self, pattern: hooks.Pattern, needs: Needs) -> Steps:
        """The steps that are expected to take less time.

        On a CPU a derivative takes longer to make than to read: it is stored where several steps read it.
        """
        found = self._made(pattern, needs, stored=False)
        readers = sum(isinstance(step, GradientStep) and step.prologue for step in found)
        if readers > 1 or (readers and self.device.type != "cpu"):
            stored = self._made(pattern, needs, stored=True)
            if self.device.type == "cpu" or self._seconds(stored) < self._seconds(found):
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

    def of(self, spec: Spec, tensors: Tensors) -> Self:
        with outside_transforms():
            return product(type(self), spec, self.needs, self.ahead, tensors, self.device)

    def forward_mode(self, alpha: Scalar, beta: Scalar, saved: Tensors, tangents: Tensors) -> Found:
        """The tangent of each result."""
        return pushed(self.spec, saved, tangents, alpha, beta, self.kept)

    def _shape(self, term: str) -> list[int]:
        extents = self.spec.extents(self.shapes)
        return [extents[label] for label in term]

    def metas(self) -> dict[str, torch.Tensor]:
        """Every source as a meta tensor, contiguous."""
        spec = self.spec
        found = {
            name: torch.empty(shape, dtype=dtype, device="meta")
            for name, shape, dtype in zip(self._inputs, self.shapes, spec.storage, strict=True)
            if shape is not None
        }
        shape = self._shape(spec.term_d)
        for at, dtype in enumerate((*spec.results, hooks.kept_type(spec))):
            found[grad_source(at)] = found[result_source(at)] = torch.empty(shape, dtype=dtype, device="meta")
        found[SUMS] = torch.empty(shape, dtype=hooks.kept_type(spec), device="meta")
        return found


class Permuted(Product):
    """A permutation: what `weft.permute` makes of A, with the derivatives of its sum over nothing.

    B is a one, repeated along the modes that A lacks; `fn` is A's function.
    """

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        spec, (a, b, c, *_) = self.spec, tensors
        text, options, said = self._call
        addend = None if c is None else with_modes(c, spec.term_c or "", spec.term_d)
        extents: dict[Any, int] | None = dict(zip(spec.term_b, b.shape, strict=True)) or None
        return (moved(text, a, options, addend, alpha, beta, extents=extents, said=said),)

    @cached_property
    def _call(self) -> tuple[str, Options, Any]:
        """The equation and the options of the forward call, and these as a key."""
        spec = self.spec
        options = replace(spec.how, out_dtype=spec.results[0], functions=(spec.functions[A_FN], None, None, None))
        return f"{spec.term_a}->{spec.term_d}", options, options.said()


_RULES = Memo("rules of products", 1024)
_Kind = TypeVar("_Kind", bound=Product)


def product(kind: type[_Kind], spec: Spec, needs: Needs, ahead: bool, tensors: Tensors, device: torch.device) -> _Kind:
    """The rule of tensors like these, kept: what is cheaper is asked once."""
    shapes = tuple([None if each is None else tuple(each.shape) for each in tensors])
    made: _Kind = _RULES.made(
        (kind, spec, needs, ahead, shapes, device), lambda: kind(spec, needs, ahead, shapes, device)
    )
    return made
