"""Texts that describe permutations to their operations, as those of `weft.compiled.text` describe contractions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from weft.api.entry import contraction
from weft.api.keywords import Equation
from weft.api.lookup import Terms
from weft.api.permute import moved as rearranged
from weft.api.permute import requested
from weft.base.arrays import outside_tracing
from weft.base.describe import describe_call
from weft.compiled.captured import function_of
from weft.compiled.letters import letters, spelled_equation
from weft.compiled.text import backend_of, lies, plain_of, read_plain
from weft.errors import DTypeError, ShapeError, call_context
from weft.fn import portable
from weft.planner.options import Options
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.planner.target import resolve_backend
from weft.plans.keywords import read_options
from weft.plans.permutation import PermutePlan
from weft.spec import Label, Notation, parse
from weft.spec.dtypes import dtype_name
from weft.spec.notation import from_sequences
from weft.spec.permutation import permutation_extents


@dataclass(frozen=True, eq=False)
class DescribedMove:
    """A permutation that a text describes: all but the tensors, alpha, beta, and extents that are given."""

    notation: Notation
    labels: tuple[str, ...]  # whose extents are given
    dtype: torch.dtype  # of the result
    options: Options

    def shape(self, x: torch.Tensor, extents: list[int]) -> tuple[int, ...]:
        given: dict[Label, int] = dict(zip(self.labels, extents, strict=True))
        found = permutation_extents(self.notation, x.shape, given)
        return tuple(found[label] for label in self.notation.output)

    def result(self, tensors: list[torch.Tensor], extents: list[int]) -> torch.Tensor:
        """An empty tensor as the result will be."""
        return torch.empty(self.shape(tensors[0], extents), dtype=self.dtype, device=tensors[0].device)

    def check_out(self, tensors: list[torch.Tensor], extents: list[int], out: torch.Tensor) -> None:
        shape = self.shape(tensors[0], extents)
        if out.dim() != len(shape) or any(have != want for have, want in zip(out.shape, shape, strict=True)):
            raise ShapeError(f"out has shape {tuple(out.shape)}, the result has {shape}")
        if out.dtype != self.dtype:
            raise DTypeError(f"out is {dtype_name(out.dtype)}, the result is {dtype_name(self.dtype)}")

    def run(
        self, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int], out: torch.Tensor | None
    ) -> torch.Tensor:
        """`tensors`: X, and C where there is one."""
        given: dict[Label, int] = dict(zip(self.labels, extents, strict=True))
        x, c = (*tensors, None)[:2]
        assert x is not None
        return rearranged(str(self.notation), x, self.options, c, alpha, 1.0 if c is None else beta, out, given)

    def as_contraction(
        self, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int]
    ) -> torch.Tensor:
        """The result by a contraction, whose derivatives are known: with a one that is repeated along new modes."""
        x, (term,), output = tensors[0], self.notation.inputs, self.notation.output
        given: dict[Label, int] = dict(zip(self.labels, extents, strict=True))
        if given:  # else torch would make a view of it, which forward mode does not take of its stand-ins
            x = x.expand([given.get(label, extent) for label, extent in zip(term, x.shape, strict=True)])
        new = [label for label in output if label not in term]
        one = x.new_ones(()).expand([given[label] for label in new])
        asked = Notation((term, tuple(new)), output)
        text = spelled_equation(asked, letters((*asked.inputs, output)))
        found: torch.Tensor = contraction(text, x, one, self.options, (*tensors, None)[1], alpha, beta)
        return found


def move_text(request: Request, options: Options, labels: tuple[Label, ...]) -> str:
    """The text of a checked permutation; `labels`: whose extents the operation is given."""
    names = letters((*request.moved.inputs, request.notation.output))
    said: dict[str, Any] = {
        "equation": spelled_equation(request.moved, names),
        "extents": [names[label] for label in labels],
        "result": dtype_name(request.d_dtype),
        **plain_of(options),
    }
    if request.functions.a is not None:
        said["fn"] = portable.written(request.functions.a)
    return json.dumps(said, sort_keys=True)


@lru_cache(maxsize=4096)
def read_move(text: str) -> DescribedMove:
    """The permutation that a text describes."""
    said = json.loads(text)
    dtype = getattr(torch, said["result"])
    fn = portable.read(said["fn"]) if "fn" in said else None
    options = read_plain(said, out_dtype=dtype, functions=(fn, None, None, None))
    return DescribedMove(parse(said["equation"], new_labels=True), tuple(said["extents"]), dtype, options)


def spelled_move(
    equation: Equation,
    stored: tuple[torch.dtype, int],
    kind: str,
    labels: tuple[Label, ...],
    options: tuple[tuple[str, Any], ...],
    place: tuple[torch.dtype, int] | None,
    fn: Callable[..., Any] | None,
) -> tuple[str, tuple[int, ...]]:
    """The text of a call of `weft.permute`, and which dimensions of the place for the result say extents.

    `labels`: whose extents are given. `place`: type and rank of the place for the result. Dynamo takes it for a
    constant.
    """
    with outside_tracing(), call_context(lambda: describe_call("permute", equation)):
        read = read_options("permute", dict(options))
        if read.out_dtype is None and place is not None:
            read = replace(read, out_dtype=place[0])
        read = replace(read, functions=(function_of(fn), None, None, None))
        return move_of_options(equation, stored, kind, labels, read, place)


def move_of_options(
    equation: Terms, stored: tuple[torch.dtype, int], kind: str, labels: tuple[Label, ...], options: Options,
    place: tuple[torch.dtype, int] | None,
) -> tuple[str, tuple[int, ...]]:  # fmt: skip
    """The text and dimensions of `spelled_move` for a call whose options are read."""
    if kind != "meta":
        resolve_backend(options.backend, torch.device(kind))
    x = torch.empty((1,) * stored[1], dtype=stored[0], device="cpu")
    shape = (1,) * place[1] if place is not None else None
    asked = replace(options, backend="reference", schedule=None)
    request = requested(_read(equation), x, shape, dict.fromkeys(labels, 1), asked)
    (term,), output = request.moved.inputs, request.moved.output
    by_place = [at for at, label in enumerate(output) if label not in labels and label not in term]
    return move_text(request, options, (*labels, *(output[at] for at in by_place))), tuple(by_place)


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
    options = Options(
        workspace_limit=request.workspace_limit, backend=backend_of(request), tune=request.tune,
        specialize=request.specialize, schedule=request.schedule,
    )  # fmt: skip
    return move_text(request, options, labels), tuple(extents[label] for label in labels), lies(request.a)


spelled_move._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _read(equation: Terms) -> str | Notation:
    if isinstance(equation, (str, Notation)):
        return equation
    return from_sequences(*equation, new_labels=True)
