"""The rule of one contraction over ranks: the steps of `weft.autograd` on parts, contractions among them over ranks.

What one rank holds of a gradient is its part of the gradient of the whole tensor, placed as the tensor is; of one that
is whole on every rank each has all of it. So the loss is a function of the elements of D, each counted once, however
many ranks hold it. Elementwise steps act on parts that are placed alike, and sums over a mode go over the ranks that
share it.

The gradient of a tensor that is placed otherwise goes the same way back: whole tensors stand for one tensor that every
rank has. What a rank has alongside its own part of a larger tensor takes part in elements that other ranks do not have:
there its gradients are summed over ranks, and the gradient of such a sum is alongside each part again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from weft.api.lookup import one_of
from weft.autograd import hooks
from weft.autograd.backward import Needs, Steps, operand_source
from weft.autograd.calls import kept, named
from weft.autograd.product import Product
from weft.autograd.spec import Plain, is_smooth
from weft.autograd.steps import ONE, GradientStep, Spread, with_modes
from weft.base.figures import counted, duration
from weft.distributed.link import all_reduce, own_operation
from weft.distributed.moves import TensorRoute
from weft.distributed.placement import LocalBlock, Places, Span, held
from weft.distributed.ranks import Ranks
from weft.distributed.report import way
from weft.engine.ways import asks
from weft.planner.options import Options
from weft.planner.schedule import Scalar
from weft.spec.dtypes import dtype_name

Move = Callable[[torch.Tensor], torch.Tensor]


class RankProduct(Product):
    """The rule of a plan's calls, for these needs. Its plans are made when they are first used, on every rank alike.

    A gradient is placed as its tensor, sums and whatever has their shape as D.
    """

    knows = False
    fuses = False  # what a function reads in addition to its value is on this rank, what a contraction gives may not be

    def __init__(
        self, plan: Any, form: Plain, extents: Mapping[str, int], places: Mapping[str, Places],
        needs: Needs,
    ) -> None:  # fmt: skip
        """`plan` is a `DistributedPlan`, which knows of gradients, `extents` are by the labels of the plain form;
        `places` of A, B, D, and of each operand of functions."""
        self.plan, self.form, self.extents, self.places = plan, form, extents, places
        self.mesh, self.at = plan.problem.mesh, plan.problem.at(plan.ranks.rank)
        self._plans: dict[Any, Any] = {}
        spec = form.spec
        names = ("A", "B", "C", *(operand_source(name) for name, _ in spec.operands))
        terms = zip(names, spec.terms(), strict=True)
        parts = tuple(None if term is None else self.part(name, term) for name, term in terms)
        super().__init__(spec, needs, False, parts, plan.device)

    # -- placement -----------------------------------------------------------------------------------------------------

    def places_of(self, source: str, term: str) -> Places:
        """The placement of a source that has these labels."""
        return within(self.places[_origin(source)], term)

    def span(self, label: str, places: Places) -> Span:
        """The indices of a label that this rank has."""
        return held(label, self.extents[label], places, self.mesh, self.at)

    def part(self, source: str, term: str) -> tuple[int, ...]:
        """The shape of this rank's part."""
        places = self.places_of(source, term)
        return tuple(self.span(label, places).extent for label in term)

    def _is_kept(self) -> bool:
        return True  # every rank must choose alike, and sums that are made again would travel again

    # -- forward -------------------------------------------------------------------------------------------------------

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        detached: list[Any] = [None if each is None else each.detach() for each in tensors]
        a, b, c, *given = detached
        if self.kept or any(self.form.views):
            plan, names = self._forward(a, b, given), tuple(name for name, _ in self.spec.operands)
        else:
            plan, names = self.plan, self.form.given
        found = plan.execute(a, b, self._block(plan, c, beta), dict(zip(names, given, strict=True)), alpha, beta)
        return tuple(found)

    def _forward(
        self, a: torch.Tensor, b: torch.Tensor, operands: Sequence[torch.Tensor], sketched: bool = False
    ) -> Any:
        """The contraction in plain form, with the sums as one more result where they are kept."""
        spec = self.spec
        options = self.requested((None, None, None, *operands))
        aux = {name: operand_source(name) for name, _ in spec.operands}
        return self._planned("forward", spec.text, a, b, ("A", "B", "D"), options, aux, sketched)

    def _block(self, plan: Any, c: torch.Tensor | None, beta: Scalar) -> LocalBlock | None:
        """C with a dimension for each of D's."""
        if c is None or beta == 0:
            return None
        term = plan.problem.d.term
        has = self.spec.term_c or ""
        repeated = frozenset(label for label, letter in zip(term, self.spec.term_d, strict=True) if letter not in has)
        return LocalBlock(with_modes(c, has, self.spec.term_d), term, {}, repeated)

    # -- backward ------------------------------------------------------------------------------------------------------

    def backward(
        self,
        alpha: Scalar,
        beta: Scalar,
        saved: Sequence[torch.Tensor | None],
        grads: Sequence[torch.Tensor | None],
        needs: Needs,
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of this rank's parts; ranks agree first on which there are, and whether theirs are requested."""
        if self.plan.agree_backward:
            results = grads[: len(self.spec.results)]
            said = {
                "which results have a gradient": [each is not None for each in results],
                "whether the sums have a gradient": any(each is not None for each in grads[len(results) :]),
                "which tensors a gradient is asked of": list(needs),
                "the types of gradients": [None if each is None else dtype_name(each.dtype) for each in grads],
                "create_graph": torch.is_grad_enabled(),
                "which gradients require a gradient": [each is not None and asks(each) for each in grads],
            }
            self.plan.ranks.agreed(f"the backward pass of {self.plan.what}", lambda: said, dict)
        with self.plan.ranks.failing():
            return super().backward(alpha, beta, saved, grads, needs)

    def _cheaper(self, pattern: hooks.Pattern, needs: Needs) -> Steps:
        return self._made(pattern, needs, stored=True)

    def _shape(self, term: str) -> list[int]:
        return list(self.part("D", term))

    def _run(
        self, step: GradientStep | Spread, sources: dict[str, torch.Tensor], alpha: Scalar, beta: Scalar
    ) -> torch.Tensor:
        """A sum over a mode has what it needs travel as in a forward pass; elements that are placed alike stay here."""
        if isinstance(step, Spread):
            have = self.places_of(step.like, step.want)
            part = self._alongside(sources[step.source], step.source, step.have, have)
            return step.run({**sources, step.source: part}, alpha, beta)
        left, right, _, factor, *_ = step.arguments(sources, alpha, beta)
        found: torch.Tensor
        if step.right != ONE:
            right, options = right.to(left.dtype), step.asked(sources)
            return self._plan_of(step, left, right, options)(
                left, right, alpha=factor, operands=options.operands or None
            )
        own, term = step.text.split(",->")
        have = self.places_of(step.left, own)
        if not _sums(step) or _is_function(step):
            left, factor = self._on_parts(step, sources, have, alpha, beta), 1.0
        if _sums(step):
            found = self._plan_of(step, left)(left, one_of(left.dtype, left.device), alpha=factor)
        else:
            found = self._relaid(left, step.target, term, have, self.places_of(step.target, term))
        return found if step.addend is None else found + sources[step.addend]

    def _plan_of(
        self, step: GradientStep, left: torch.Tensor, right: torch.Tensor | None = None,
        options: Options | None = None, sketched: bool = False,
    ) -> Any:  # fmt: skip
        """The plan of a step's contraction; without `right` of the sum of values over modes that its result lacks."""
        if right is None or options is None:
            kind, aux = self._summed_in(left.dtype), {}
            right = one_of(left.dtype, left.device)
            options = replace(step.options, precision=kind, accumulate=kind, out_dtype=step.out_dtype)
        else:
            options = replace(options, promote=False)
            aux = {name: source for name, source, _ in step.aux if source is not None}
        names = step.left, step.right, step.target
        return self._planned(step, step.text, left, right, names, options, aux, sketched)

    def _summed_in(self, dtype: torch.dtype) -> torch.dtype:
        return self.spec.accumulate if dtype.is_complex else self.spec.accumulate.to_real()

    def _on_parts(
        self, step: GradientStep, sources: dict[str, torch.Tensor], have: Places, alpha: Scalar, beta: Scalar
    ) -> torch.Tensor:
        """A step over elements without its sum, of this rank's parts."""
        own, term = step.text.split(",->")
        parts = {step.left: sources[step.left]}
        for name, source, modes in step.aux:
            if source is not None:
                parts[name] = self._alongside(sources[source], source, modes, have)
            else:
                span = self.span(modes, have)
                parts[name] = torch.arange(span.start, span.stop, dtype=self.spec.dtype_of(name), device=self.device)
        aux = tuple([(name, name, modes) for name, _, modes in step.aux])
        kind = step.out_dtype
        if _sums(step):
            term, kind = own, self._summed_in(kind)
        each = replace(step, text=f"{own},->{term}", out_dtype=kind, aux=aux, addend=None)
        return each.run(parts, alpha, beta)

    def _alongside(self, tensor: torch.Tensor, source: str, modes: str, places: Places) -> torch.Tensor:
        """The part of a source that belongs to this rank's part of a tensor placed by `places`."""
        want = within(places, modes)
        part = self._relaid(tensor, source, modes, self.places_of(source, modes), want)
        shared = [line for line, at, mine in zip(self.plan.lines, places, want, strict=True) if at != mine]
        return alongside_parts(part, self._among(shared))

    def _relaid(self, tensor: torch.Tensor, name: str, term: str, have: Places, want: Places) -> torch.Tensor:
        shape = tuple(self.extents[label] for label in term)
        route = TensorRoute(name, tuple(term), shape, have, want, self.mesh)
        return relaid(tensor, route, self._among(self.plan.lines))

    def _among(self, lines: Sequence[Ranks]) -> RankLines:
        return RankLines(lines, self.at, self.plan.ranks if self.plan.agree_backward else None)

    def _planned(
        self, key: Any, text: str, a: torch.Tensor, b: torch.Tensor, names: tuple[str, str, str],
        options: Options, aux: Mapping[str, str], sketched: bool = False,
    ) -> Any:  # fmt: skip
        """The plan of one contraction of sources; `aux` says which source each operand of functions is.

        Every rank makes it, but for one that is `sketched`, which is not kept.
        """
        key = key, a.dtype, b.dtype
        if key not in self._plans:
            inputs, output = text.split("->")
            terms = zip("abd", (*inputs.split(","), output), names, strict=True)
            placements = {at: self.places_of(name, term) for at, term, name in terms}
            modes = {name: str(modes) for name, (modes, _) in options.operands.items()}
            placements |= {name: self.places_of(source, modes[name]) for name, source in aux.items()}
            found = self.plan.beside(text, a, b, placements, self.extents, options, sketched)
            if sketched:
                return found
            self._plans[key] = found
        return self._plans[key]

    # -- described -----------------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """The forward pass where it keeps its sums, each step of a full backward pass, and what is kept."""
        sources = {name: self._nothing(meta.shape, meta.dtype) for name, meta in self.metas().items()}
        if self.kept:
            beside = [sources[name] for name in self._inputs[3:]]
            plan = self._forward(sources["A"], sources["B"], beside, sketched=True)
            yield from self._said("D, and the sums that are kept", ("A", "B", "D"), plan)
        for step in self.steps(tuple(is_smooth(dtype) for dtype in self.spec.results), self.needs):
            left, right = (step.source, ONE) if isinstance(step, Spread) else (step.left, step.right)
            yield from self._said(step.line(), (left, right, step.target), self._sketch(step, sources))
        yield kept(self, " of this rank's")

    def _said(self, text: str, names: tuple[str, str, str], plan: Any) -> Iterator[str]:
        """A step in a line, and under it what its ranks share out, what moves, and when it will be done."""
        lines = [text, "  of each rank's own elements, and what of others belongs to them"]
        if plan is not None:
            found = plan.prediction
            lines[1] = f"  predicted {duration(found.seconds)}, {found.timeline.bounds} bounds it"
            lines += [f"  {line}" for line in way(found.strategy, names)]
        for line in lines:
            yield named(line, self.form)

    def _sketch(self, step: GradientStep | Spread, sources: dict[str, torch.Tensor]) -> Any:
        """The plan of a step, as this rank alone makes it where it was not used yet; None where it is of a rank's own
        elements. Its result is one more of `sources`."""
        if isinstance(step, Spread):
            sources[step.target] = self._empty(step.target, step.want, step.dtype)
            return None
        left, right, options = sources[step.left], None, None
        sources[step.target] = self._empty(step.target, step.text.split("->")[1], step.out_dtype)
        if step.right != ONE:
            right, options = sources[step.right].to(left.dtype), step.asked(sources)
        elif not _sums(step):
            return None
        elif _is_function(step):
            left = self._empty(step.left, step.text.split(",->")[0], self._summed_in(step.out_dtype))
        return self._plan_of(step, left, right, options, sketched=True)

    def _empty(self, name: str, term: str, dtype: torch.dtype) -> torch.Tensor:
        return self._nothing(self.part(name, term), dtype)

    def _nothing(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """This rank's part of a source, with nothing in it."""
        return torch.empty((), dtype=dtype, device=self.device).expand(shape)


def _sums(step: GradientStep) -> bool:
    """Whether a step over elements sums some of them."""
    own, term = step.text.split(",->")
    return set(own) != set(term)


def _is_function(step: GradientStep) -> bool:
    return step.a_fn is not None or step.epilogue is not None


def within(places: Places, term: str) -> Places:
    """The places of a tensor of labels `term`, so that each rank has what belongs to its part of one under `places`."""
    return tuple(label if label is not None and str(label) in term else None for label in places)


def _origin(source: str) -> str:
    """The tensor of the forward pass that a source is placed as: "dA along mk" as A, "dD1", "G" and "sums" as D."""
    if "operand " in source:
        return source.removeprefix("d ")
    first = source.split()[0].removeprefix("d")
    return first if first in ("A", "B") else "D"


class RankLines(NamedTuple):
    """The lines of a mesh that a tensor goes along, and this rank's place in it.

    `comparing` are all ranks, where they compare that each of them is on the same way back; None where they do not.
    """

    lines: Sequence[Ranks]
    at: Sequence[int]
    comparing: Ranks | None

    def compare(self, what: str) -> None:
        if self.comparing is not None:
            self.comparing.exchanged(f"the backward pass of {what}", None)


def relaid(tensor: torch.Tensor, route: TensorRoute, among: RankLines) -> torch.Tensor:
    """This rank's part under the route's target, from that under its source. Every rank calls it."""
    if route.source == route.target:
        return tensor

    def back(grad: torch.Tensor) -> torch.Tensor:
        among.compare(f"{route.name} on its way from {route.source} to {route.target}")
        return relaid(grad, replace(route, source=route.target, target=route.source), among)

    return _Linear.apply(tensor, lambda part: route.run(part, among.at, among.lines), back)


def alongside_parts(tensor: torch.Tensor, among: RankLines) -> torch.Tensor:
    """A tensor that the ranks of each of these lines have alike, alongside parts that they do not."""
    if not among.lines:
        return tensor

    def back(grad: torch.Tensor) -> Any:
        among.compare("a tensor beside parts")
        return _Linear.apply(grad, lambda part: _summed(part, among), lambda other: alongside_parts(other, among))

    return _Linear.apply(tensor, lambda part: part.view_as(part), back)


def _summed(tensor: torch.Tensor, among: RankLines) -> torch.Tensor:
    found = tensor.clone(memory_format=torch.contiguous_format)
    for line in among.lines:
        if found.numel():
            operation = own_operation(None, found.dtype)
            line.wait(all_reduce(line, found, operation), f"all-reduce of a gradient ({counted(line.size, 'rank')})")
    return found


class _Linear(torch.autograd.Function):
    """A linear function of a tensor, and that of its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, function: Move, back: Move) -> Any:
        ctx.back = back
        return function(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.back(grad), None, None
