"""The rule of one contraction over ranks: the steps of `weft.autograd` on parts, contractions among them over ranks.

What one rank holds of a gradient is its part of the gradient of the whole tensor, placed as the tensor is; of one that
is whole on every rank each has all of it. So the loss is a function of the elements of D, each counted once, however
many ranks hold it. Elementwise steps act on parts that lie alike, and sums over a mode go over the ranks that share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from weft.api.lookup import one_of
from weft.autograd import hooks
from weft.autograd.backward import Needs, Steps
from weft.autograd.product import Product
from weft.autograd.spec import Spec
from weft.autograd.steps import ONE, Spread, Step
from weft.distributed.gradient.form import Form
from weft.distributed.gradient.layout import within
from weft.distributed.gradient.relaid import beside_parts, relaid
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.blocks import Block
from weft.distributed.planned.moves import Route
from weft.distributed.planned.placement import Places
from weft.distributed.planned.problem import Problem
from weft.planner.schedule import Scalar
from weft.spec.dtypes import dtype_name


class Contraction(Protocol):
    """What a rule needs of the plan that it is of, and of those that it has made."""

    problem: Problem
    ranks: Ranks
    lines: tuple[Ranks, ...]
    agree: bool

    def __call__(self, a: Any, b: Any, *, alpha: Scalar = 1.0, operands: Mapping[str, Any] | None = None) -> Any:
        """This rank's part of D."""

    def execute(
        self, a: torch.Tensor, b: torch.Tensor, c: Block | None, operands: Mapping[str, torch.Tensor], alpha: Scalar,
        beta: Scalar,
    ) -> list[torch.Tensor]:  # fmt: skip
        """This rank's part of each result, of tensors that are checked."""

    def beside(
        self, text: str, a: torch.Tensor, b: torch.Tensor, placements: Mapping[str, Places],
        extents: Mapping[str, int], keywords: Mapping[str, Any],
    ) -> Contraction:  # fmt: skip
        """Another contraction over the same ranks; every rank plans it."""


class OverRanks(Product):
    """The rule of a plan's calls, for these needs. Its plans are made when they are first used, on every rank alike."""

    fuses = False  # what a function reads beside its value lies on this rank, what a contraction gives may not

    def __init__(self, plan: Contraction, what: str, form: Form, needs: Needs, device: torch.device) -> None:
        self.plan, self.what, self.form, self.layout = plan, what, form, form.layout
        self._plans: dict[Any, Contraction] = {}
        super().__init__(form.plain.spec, needs, form.shapes(), device, False)

    def _is_kept(self) -> bool:
        return True  # every rank must choose alike, and sums that are made again would travel again

    # -- forward -------------------------------------------------------------------------------------------------------

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        a, b, c, *operands = (None if each is None else each.detach() for each in tensors)
        assert a is not None
        assert b is not None
        given = [each for each in operands if each is not None]
        if self.kept or any(self.form.plain.views):
            plan, names = self._forward(a, b, given), tuple(name for name, _ in self.spec.operands)
        else:
            plan, names = self.plan, self.form.operands
        found = plan.execute(a, b, self._block(plan, c, beta), dict(zip(names, given, strict=True)), alpha, beta)
        return tuple(found)

    def _forward(self, a: torch.Tensor, b: torch.Tensor, operands: Sequence[torch.Tensor]) -> Contraction:
        """The contraction in plain form, with the sums as one more result where they are kept."""
        spec = self.spec
        keywords: dict[str, Any] = {**self.keywords, **self._aux((None, None, None, *operands))}
        return self._planned("forward", spec.text, a, b, ("A", "B", "D"), keywords, _sources(spec))

    def _block(self, plan: Contraction, c: torch.Tensor | None, beta: Scalar) -> Block | None:
        """C with a dimension for each of D's."""
        if c is None or beta == 0:
            return None
        term = plan.problem.d.term
        has = self.spec.term_c or ""
        repeated = frozenset(label for label, letter in zip(term, self.spec.term_d, strict=True) if letter not in has)
        return Block(self._whole(c), term, {}, repeated)

    # -- backward ------------------------------------------------------------------------------------------------------

    def backward(
        self,
        alpha: Scalar,
        beta: Scalar,
        saved: Sequence[torch.Tensor | None],
        grads: Sequence[torch.Tensor | None],
        needs: Needs,
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of this rank's parts; ranks agree first on which of them there are."""
        if self.plan.agree:
            results = grads[: len(self.spec.results)]
            said = {
                "which results have a gradient": [each is not None for each in results],
                "whether the sums have a gradient": any(each is not None for each in grads[len(results) :]),
                "which tensors a gradient is asked of": list(needs),
                "the types of gradients": [None if each is None else dtype_name(each.dtype) for each in grads],
            }
            self.plan.ranks.agreed(f"the backward pass of {self.what}", lambda: said, dict)
        with self.plan.ranks.failing():
            return super().backward(alpha, beta, saved, grads, needs)

    def _cheaper(self, pattern: hooks.Pattern, needs: Needs) -> Steps:
        return self._made(pattern, needs, stored=True)

    def _zeros(self, at: int) -> torch.Tensor:
        spec = self.spec
        name = ("A", "B", "C", *_sources(spec).values())[at]
        term = spec.terms()[at]
        assert term is not None
        return torch.zeros(self.layout.part(name, term), dtype=spec.storage[at], device=self.device)

    def _run(
        self, step: Step | Spread, sources: dict[str, torch.Tensor], alpha: Scalar, beta: Scalar
    ) -> torch.Tensor:
        if isinstance(step, Spread):
            have = self.layout.places_of(step.like, step.want)
            part = self._beside(sources[step.source], step.source, step.have, have)
            return step.run({**sources, step.source: part}, alpha, beta)
        if step.right != ONE:
            return self._contraction(step, sources, alpha, beta)
        found = self._pass(step, sources, alpha, beta)
        return found if step.addend is None else found + sources[step.addend]

    def _contraction(
        self, step: Step, sources: dict[str, torch.Tensor], alpha: Scalar, beta: Scalar
    ) -> torch.Tensor:
        """A sum of products: what has to travel does so as in a forward pass."""
        left, right = step.pair(sources)
        right = right.to(left.dtype)
        keywords = {name: value for name, value in step.keywords(sources).items() if name != "promote"}
        names = step.left, step.right, step.target
        plan = self._planned(
            step, step.text, left, right, names, keywords, {name: source for name, source, _ in step.aux}
        )
        found: torch.Tensor = plan(left, right, alpha=step.factor(alpha, beta), operands=keywords.get("operands"))
        return found

    def _pass(self, step: Step, sources: dict[str, torch.Tensor], alpha: Scalar, beta: Scalar) -> torch.Tensor:
        """A function of elements that lie alike, on this rank; then the sum over modes that the result lacks."""
        own, term = step.text.split(",->")
        have, want = self.layout.places_of(step.left, own), self.layout.places_of(step.target, term)
        alike = set(own) == set(term)
        value, factor = sources[step.left], step.factor(alpha, beta)
        if alike or step.a_fn is not None or step.epilogue is not None:
            value, factor = self._on_parts(step, sources, have, alpha, beta), 1.0
        if alike:
            return self._relaid(value, step.target, term, have, want)
        one = one_of(value.dtype, value.device)
        kind = self.spec.accumulate if value.is_complex() else self.spec.accumulate.to_real()
        keywords = {**dict(step.options), "precision": kind, "accumulate": kind, "out_dtype": step.out_dtype}
        plan = self._planned(step, step.text, value, one, (step.left, ONE, step.target), keywords, {})
        found: torch.Tensor = plan(value, one, alpha=factor)
        return found

    def _on_parts(
        self, step: Step, sources: dict[str, torch.Tensor], have: Places, alpha: Scalar, beta: Scalar
    ) -> torch.Tensor:
        """A step over elements without its sum, of this rank's parts."""
        own, term = step.text.split(",->")
        parts = {step.left: sources[step.left]}
        for name, source, modes in step.aux:
            parts[name] = self._beside(sources[source], source, modes, have)
        for name, label in step.indices:
            span = self.layout.span(label, have)
            parts[name] = torch.arange(span.start, span.stop, dtype=self.spec.dtype_of(name), device=self.device)
        aux = (*((name, name, modes) for name, _, modes in step.aux),
               *((name, name, label) for name, label in step.indices))  # fmt: skip
        kind = step.out_dtype
        if set(own) != set(term):
            term, kind = own, self.spec.accumulate if kind.is_complex else self.spec.accumulate.to_real()
        each = replace(step, text=f"{own},->{term}", out_dtype=kind, aux=aux, indices=(), addend=None)
        return each.run(parts, alpha, beta)

    def _beside(self, tensor: torch.Tensor, source: str, modes: str, places: Places) -> torch.Tensor:
        """What of a source belongs to this rank's part of a tensor that lies by `places`."""
        want = within(places, modes)
        part = self._relaid(tensor, source, modes, self.layout.places_of(source, modes), want)
        shared = [line for line, at, mine in zip(self.plan.lines, places, want, strict=True) if at != mine]
        return beside_parts(part, shared)

    def _relaid(self, tensor: torch.Tensor, name: str, term: str, have: Places, want: Places) -> torch.Tensor:
        layout = self.layout
        route = Route(name, tuple(term), layout.whole(term), have, want, layout.mesh)
        return relaid(tensor, route, layout.at, self.plan.lines)

    def _planned(
        self, key: Any, text: str, a: torch.Tensor, b: torch.Tensor, names: tuple[str, str, str],
        keywords: Mapping[str, Any], aux: Mapping[str, str],
    ) -> Contraction:  # fmt: skip
        """The plan of one contraction of sources; `aux` says which source each operand of functions is."""
        key = key, a.dtype, b.dtype
        if key not in self._plans:
            inputs, output = text.split("->")
            terms = zip("abd", (*inputs.split(","), output), names, strict=True)
            placements = {at: self.layout.places_of(name, term) for at, term, name in terms}
            modes = {name: modes for name, (modes, _) in keywords.get("operands", {}).items()}
            placements |= {name: self.layout.places_of(source, modes[name]) for name, source in aux.items()}
            self._plans[key] = self.plan.beside(text, a, b, placements, self.layout.extents, keywords)
        return self._plans[key]


def _sources(spec: Spec) -> dict[str, str]:
    """Which source each operand of functions is."""
    return {name: f"operand {name}" for name, _ in spec.operands}
