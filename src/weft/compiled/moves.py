"""What an operation of a permutation is told besides its tensors, as `weft.compiled.text` has it for contractions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from weft.api.contract import contract
from weft.api.keywords import Equation
from weft.api.permute import permute, requested
from weft.base.arrays import outside_tracing
from weft.base.describe import describe_call
from weft.compiled.captured import function_of
from weft.compiled.letters import letters, spelled_equation
from weft.compiled.text import lies
from weft.errors import DTypeError, ShapeError, call_context
from weft.fn import portable
from weft.planner.request import PermuteRequest
from weft.planner.schedule import Scalar
from weft.planner.target import resolve_backend
from weft.plans.keywords import refuse_unknown
from weft.plans.permutation import PermutePlan
from weft.spec import Label, Notation, parse
from weft.spec.dtypes import dtype_name
from weft.spec.notation import from_sequences
from weft.spec.permutation import permutation_extents
from weft.spec.type_names import read_dtype

_PLAIN = ("workspace_limit", "tune", "specialize", "schedule", "backend")


@dataclass(frozen=True, eq=False)
class Move:
    """A permutation as its operation is told it: all but the tensors, alpha, beta, and extents that are given."""

    notation: Notation
    labels: tuple[str, ...]  # whose extents are given
    dtype: torch.dtype  # of the result
    keywords: Mapping[str, Any]

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
        found: torch.Tensor = permute(
            tensors[0], str(self.notation), c=tensors[1] if len(tensors) > 1 else None, alpha=alpha,
            beta=beta if len(tensors) > 1 else None, out=out, extents=given, **self.keywords,
        )  # fmt: skip
        return found

    def as_contraction(
        self, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int]
    ) -> torch.Tensor:
        """The same as a contraction, whose derivatives are known: with a one that is repeated along new modes."""
        x, (term,), output = tensors[0], self.notation.inputs, self.notation.output
        given: dict[Label, int] = dict(zip(self.labels, extents, strict=True))
        x = x.expand([given.get(label, extent) for label, extent in zip(term, x.shape, strict=True)])
        new = [label for label in output if label not in term]
        one = x.new_ones(()).expand([given[label] for label in new])
        keywords = {name: value for name, value in self.keywords.items() if name != "fn"}
        asked = Notation((term, tuple(new)), output)
        found: torch.Tensor = contract(
            spelled_equation(asked, letters((*asked.inputs, output))), x, one, a_fn=self.keywords.get("fn"),
            c=tensors[1] if len(tensors) > 1 else None, alpha=alpha, beta=beta, **keywords,
        )  # fmt: skip
        return found


def move_text(request: PermuteRequest, labels: tuple[Label, ...], backend: str) -> str:
    """The text of a checked permutation; `labels`: whose extents the operation is given."""
    names = letters((*request.notation.inputs, request.notation.output))
    said: dict[str, Any] = {
        "equation": spelled_equation(request.notation, names),
        "extents": [names[label] for label in labels],
        "result": dtype_name(request.d_dtype),
        "workspace_limit": request.workspace_limit,
        "tune": request.tune,
        "specialize": request.specialize if request.specialize != "auto" else None,
        "schedule": str(request.schedule) if request.schedule is not None else None,
        "backend": backend if backend != "auto" else None,
    }
    if request.fn is not None:
        said["fn"] = portable.written(request.fn)
    return json.dumps({name: value for name, value in said.items() if value is not None}, sort_keys=True)


@lru_cache(maxsize=4096)
def read_move(text: str) -> Move:
    """The permutation that a text describes."""
    said = json.loads(text)
    dtype = getattr(torch, said["result"])
    keywords = {name: said[name] for name in _PLAIN if name in said} | {"out_dtype": dtype}
    if "fn" in said:
        keywords["fn"] = portable.read(said["fn"])
    return Move(parse(said["equation"], new_labels=True), tuple(said["extents"]), dtype, keywords)


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
        keywords = dict(options)
        refuse_unknown("permute", keywords)
        backend = keywords.get("backend", "auto")
        if kind != "meta":
            resolve_backend(backend, torch.device(kind))
        x = torch.empty((1,) * stored[1], dtype=stored[0], device="cpu")
        notation = _read(equation)
        out_dtype, fn = keywords.get("out_dtype"), function_of(fn)
        if out_dtype is None and place is not None:
            out_dtype = place[0]
        request = requested(
            notation, x, (1,) * place[1] if place is not None else None, fn,
            read_dtype("out_dtype", out_dtype) if out_dtype is not None else None, dict.fromkeys(labels, 1),
            keywords.get("workspace_limit"), "reference",
        )  # fmt: skip
        plain = {name: keywords[name] for name in ("tune", "specialize", "schedule") if name in keywords}
        request = replace(request, **{"specialize": "auto", **plain})
        (term,), output = request.notation.inputs, request.notation.output
        by_place = [at for at, label in enumerate(output) if label not in labels and label not in term]
        asked = (*labels, *(output[at] for at in by_place))
        return move_text(request, asked, backend), tuple(by_place)


def spelled_move_plan(plan: PermutePlan, fn: Any) -> tuple[str, tuple[int, ...], Any]:
    """The text of a call of a plan, the extents that its operation is given, and how X was planned.

    `fn`: the caller's function as dynamo has read it; None elsewhere.
    """
    request = plan.request
    if fn is not None:
        request = replace(request, raw=function_of(fn)).again()
    (term,), output = request.notation.inputs, request.notation.output
    extents = dict(request.extents)
    labels = tuple(label for label in output if label not in term or request.x.shape[term.index(label)] == 1)
    usual = request.device.type in ("cpu", "cuda") and resolve_backend("auto", request.device) == request.backend
    text = move_text(request, labels, "auto" if usual else request.backend)
    return text, tuple(extents[label] for label in labels), lies(request.x)


spelled_move._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _read(equation: Equation) -> str | Notation:
    if isinstance(equation, str):
        return equation
    return from_sequences(*equation, new_labels=True)
