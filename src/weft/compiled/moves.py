"""Permutations as texts describe them, and the way from a call of `weft.permute`, or of its plan, to its text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.api.entry import contraction
from weft.api.keywords import Equation
from weft.api.lookup import Terms
from weft.api.permute import moved as rearranged
from weft.api.permute import requested
from weft.base.arguments import describe_call
from weft.base.arrays import outside_tracing
from weft.base.caches import cached_property
from weft.compiled.captured import constant_of_graph, function_of
from weft.compiled.contraction import Tensors, check_places, types_in
from weft.compiled.text import Stored, check_backend_of, has_text, options_of_plan, stand_in, text_of
from weft.errors import call_context
from weft.planner.options import Options
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.plans.keywords import read_options
from weft.plans.permutation import PermutePlan
from weft.spec import Label, Notation, parse
from weft.spec.notation import from_sequences, letters, spelled_equation
from weft.spec.permutation import permutation_extents


@has_text
@dataclass(frozen=True, eq=False)
class PermuteCall:
    """A permutation: all but the tensors, alpha, beta, and extents that are given."""

    equation: str
    labels: tuple[str, ...]  # whose extents are given
    options: Options  # `out_dtype` is the type of the result

    @cached_property
    def notation(self) -> Notation:
        return parse(self.equation, new_labels=True)

    @cached_property
    def said(self) -> Any:
        """The options as calls are known by them."""
        return self.options.said()

    def given(self, extents: list[int]) -> dict[Label, int]:
        return dict(zip(self.labels, extents, strict=True))

    def shape(self, tensors: Tensors, extents: list[int]) -> tuple[int, ...]:
        found = permutation_extents(self.notation, tensors[0].shape, self.given(extents))
        return tuple(found[label] for label in self.notation.output)

    def results(self, tensors: Tensors, alpha: Scalar, beta: Scalar, extents: list[int]) -> torch.Tensor:
        """An empty tensor as the result will be."""
        (dtype,) = types_in(self.options)
        return torch.empty(self.shape(tensors, extents), dtype=dtype, device=tensors[0].device)

    def check_out(self, tensors: Tensors, alpha: Scalar, beta: Scalar, extents: list[int], out: torch.Tensor) -> None:
        check_places(self.shape(tensors, extents), types_in(self.options), [out])

    def run(
        self, tensors: Tensors, alpha: Scalar, beta: Scalar, extents: list[int], out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`tensors`: X, and C where there is one."""
        x, c = (*tensors, None)[:2]
        assert x is not None
        return rearranged(
            self.equation, x, self.options, c, alpha, 1.0 if c is None else beta, out, self.given(extents) or None,
            said=self.said,
        )  # fmt: skip

    def derived(self, tensors: Tensors, alpha: Scalar, beta: Scalar, extents: list[int]) -> torch.Tensor:
        """The result by a contraction, whose derivatives are known: with a one that is repeated along new modes."""
        x, (term,), output, given = tensors[0], self.notation.inputs, self.notation.output, self.given(extents)
        if given:  # else torch would make a view of it, which forward mode does not take of its stand-ins
            x = x.expand([given.get(label, extent) for label, extent in zip(term, x.shape, strict=True)])
        new = [label for label in output if label not in term]
        one = x.new_ones(()).expand([given[label] for label in new])
        asked = Notation((term, tuple(new)), output)
        text = spelled_equation(asked, letters((*asked.inputs, output)))
        found: torch.Tensor = contraction(text, x, one, self.options, (*tensors, None)[1], alpha, beta)
        return found


@constant_of_graph
def spelled_move(
    equation: Equation, stored: Stored, kind: str, labels: tuple[Label, ...], options: tuple[tuple[str, Any], ...],
    place: Stored | None, fn: Callable[..., Any] | None,
) -> tuple[str, tuple[int, ...]]:  # fmt: skip
    """The text of a call of `weft.permute`, and which dimensions of the place for the result say extents.

    `labels`: whose extents are given. `place`: type and rank of the place for the result.
    """
    with outside_tracing(), call_context(lambda: describe_call("permute", equation)):
        read = read_options("permute", dict(options))
        if read.out_dtype is None and place is not None:
            read = replace(read, out_dtype=place[0])
        read = replace(read, functions=(function_of(fn), None, None, None))
        return move_of_options(equation, stored, kind, labels, read, place)


def move_of_options(
    equation: Terms, stored: Stored, kind: str, labels: tuple[Label, ...], options: Options, place: Stored | None
) -> tuple[str, tuple[int, ...]]:
    """The text and dimensions of `spelled_move` for a call whose options are read."""
    check_backend_of(options, kind)
    shape = (1,) * place[1] if place is not None else None
    asked = replace(options, backend="reference", schedule=None)
    notation = equation if isinstance(equation, (str, Notation)) else from_sequences(*equation, new_labels=True)
    request = requested(notation, stand_in(*stored), shape, dict.fromkeys(labels, 1), asked)
    (term,), output = request.moved.inputs, request.moved.output
    by_place = [at for at, label in enumerate(output) if label not in labels and label not in term]
    return _text(request, options, (*labels, *(output[at] for at in by_place))), tuple(by_place)


def spelled_move_plan(plan: PermutePlan, fn: Any) -> tuple[str, tuple[int, ...], Any]:
    """The text of a call of a plan, the extents that its operation is given, and how X was planned.

    `fn`: the caller's function as dynamo has read it; None elsewhere.
    """
    request = plan.request
    if fn is not None:
        request = request.given((function_of(fn), None, None, None), None).again()
    (term,), output = request.moved.inputs, request.moved.output
    extents = request.extents
    labels = tuple(label for label in output if label not in term or request.a.shape[term.index(label)] == 1)
    options = replace(options_of_plan(request), precision=None, accumulate=None)
    return _text(request, options, labels), tuple(extents[label] for label in labels), request.a[:3]


def _text(request: Request, options: Options, labels: tuple[Label, ...]) -> str:
    """The text of a checked permutation; `labels`: whose extents the operation is given."""
    names = letters((*request.moved.inputs, request.notation.output))
    said = replace(options, out_dtype=request.d_dtype, functions=(request.functions.a, None, None, None))
    equation = spelled_equation(request.moved, names)
    return text_of(PermuteCall(equation, tuple(names[label] for label in labels), said))
