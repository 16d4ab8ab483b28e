"""Texts that describe contractions to their operations, and the calls that they describe.

The text is JSON. It is made of a checked request, so that what cannot be computed is refused where the program is
traced, with the message that the call itself would give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from weft.algebra import NAMED, Algebra, find
from weft.base.figures import counted
from weft.compiled.letters import letters, spelled_equation
from weft.errors import DTypeError, ShapeError
from weft.fn import portable
from weft.fn.algebra import TracedAlgebra
from weft.planner.options import Options
from weft.planner.request import HOOKS, Request
from weft.planner.target import resolve_backend
from weft.spec import Layout, Notation, parse
from weft.spec.contraction import Arithmetic, mode_extents, output_shape
from weft.spec.dtypes import FP8, dtype_name, storage_type

#: Options that go into the text as they are, and what they are where it says nothing.
PLAIN = ("workspace_limit", "tune", "specialize", "promote", "kept_dtype", "backend", "schedule")
USUAL = Options(specialize="auto")


@dataclass(frozen=True, eq=False)
class DescribedCall:
    """A contraction that a text describes: all but the tensors, alpha and beta."""

    text: str
    notation: Notation  # two inputs, no ellipsis
    added: bool  # whether there is a C
    aux: tuple[tuple[str, str], ...]  # operands of functions, in the order of the tensors: name, modes
    options: Options  # but for the tensors of operands
    types: tuple[torch.dtype, ...]  # of the results
    places: int | None = None  # how many indices `return_arg` finds; None without it
    validate: bool = False

    @property
    def equation(self) -> str:
        return str(self.notation)

    def extents(self, tensors: list[torch.Tensor]) -> dict[Any, int]:
        return mode_extents(self.notation, (tensors[0].shape, tensors[1].shape))

    def results(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Empty tensors as the results will be: contiguous, in their types."""
        shape, device = output_shape(self.notation, self.extents(tensors)), tensors[0].device
        types = (*self.types, *(torch.int64 for _ in range(self.places or 0)))
        return [torch.empty(shape, dtype=dtype, device=device) for dtype in types]

    def check_out(self, tensors: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        """Raise `ShapeError` or `DTypeError` where a place does not fit its result."""
        shape = output_shape(self.notation, self.extents(tensors))
        if len(out) != len(self.types):
            raise ShapeError(f"out has {counted(len(out), 'tensor')}, the call {counted(len(self.types), 'result')}")
        for place, dtype in zip(out, self.types, strict=True):
            if place.dim() != len(shape) or any(have != want for have, want in zip(place.shape, shape, strict=True)):
                raise ShapeError(f"out has shape {tuple(place.shape)}, the result has {shape}")
            if place.dtype != dtype:
                raise DTypeError(f"out is {dtype_name(place.dtype)}, the result is {dtype_name(dtype)}")

    def split(
        self, tensors: list[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, list[torch.Tensor]]:
        """A, B, C and the operands of functions."""
        first = 3 if self.added else 2
        return tensors[0], tensors[1], tensors[2] if self.added else None, tensors[first:]

    def asked(self, tensors: list[torch.Tensor]) -> Options:
        """The options of a call of these tensors."""
        given = zip(self.aux, self.split(tensors)[3], strict=True)
        return replace(self.options, operands={name: (modes, tensor) for (name, modes), tensor in given})


def text_of(
    request: Request, options: Options, order: tuple[str, ...], added: bool, *, places: int | None = None,
    validate: bool = False,
) -> str:  # fmt: skip
    """The text of a checked call. `order`: the operands' names; `options`: those of `PLAIN` are read."""
    named = {found.name: found for found in request.named}
    terms = [(*request.notation.inputs, request.notation.output), [found.term for found in request.named]]
    names = letters(term for group in terms for term in group)
    functions = request.functions
    graphs = zip(HOOKS, (functions.a, functions.b, functions.c, functions.epilogue), strict=True)
    types = (request.d_dtype, *(request.outputs or ()))
    said: dict[str, Any] = {
        "equation": spelled_equation(request.notation, names),
        "c": added,
        "operands": [[name, "".join(names[label] for label in named[name].term)] for name in order],
        "indices": {name: names[found.term[0]] for name, found in named.items() if found.layout is None},
        "functions": {hook: portable.written(graph) for hook, graph in graphs if graph is not None},
        "invariant": [names[label] for label in request.invariant],
        "results": [dtype_name(dtype) for dtype in types],
        "several": request.outputs is not None,
        "places": places,
        **types_text(request.arithmetic, storage_of(request)),
        **plain_of(options),
        "validate": validate,
    }
    if request.raw_algebra is not None:
        said["algebra"] = _algebra(request.raw_algebra, request.algebra)
    return json.dumps(_short(said), sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=4096)
def read(text: str) -> DescribedCall:
    """The call that a text describes; `FunctionError` where a function of it is not to be had here."""
    said = json.loads(text)
    functions = {hook: portable.read(data) for hook, data in said.get("functions", {}).items()}
    types = tuple(getattr(torch, name) for name in said["results"])
    options = read_plain(
        said, out_dtype=types if said.get("several") else types[0],
        functions=tuple(map(functions.get, HOOKS)), indices=said.get("indices", {}),
        invariant=tuple(said.get("invariant", ())),
        algebra=_read_algebra(said["algebra"]) if "algebra" in said else None,
        **{name: getattr(torch, said[name], said[name]) for name in ("accumulate", "precision") if name in said},
    )  # fmt: skip
    operands = tuple((name, modes) for name, modes in said.get("operands", ()))
    notation, validate = parse(said["equation"]), said.get("validate", False)
    return DescribedCall(text, notation, said.get("c", False), operands, options, types, said.get("places"), validate)


def plain_of(options: Options) -> dict[str, Any]:
    """The options of `PLAIN` that say something, as JSON has them."""
    found = {}
    for name in PLAIN:
        value = getattr(options, name)
        if value != getattr(USUAL, name):
            plain = isinstance(value, (int, str))
            found[name] = value if plain else dtype_name(value) if isinstance(value, torch.dtype) else str(value)
    return found


def read_plain(said: Mapping[str, Any], **others: Any) -> Options:
    """The options of `PLAIN` that a text says, and others."""
    plain = {name: said[name] for name in PLAIN if name in said}
    if "kept_dtype" in plain:
        plain["kept_dtype"] = getattr(torch, plain["kept_dtype"])
    return replace(USUAL, **plain, **others)


def storage_of(request: Request) -> torch.dtype:
    return storage_type(request.a.dtype, request.b.dtype, request.algebra is not None, request.promote)


def lies(layout: Layout) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    """The planned type, shape and strides of a tensor."""
    return layout.dtype, tuple(layout.shape), tuple(layout.strides)


def backend_of(request: Request) -> str:
    """The backend as a call names it: by name only where it is not what the device gets anyway."""
    usual = request.device.type in ("cpu", "cuda") and resolve_backend("auto", request.device) == request.backend
    return "auto" if usual else request.backend


def types_text(arithmetic: Arithmetic, storage: torch.dtype) -> dict[str, str]:
    """The types of products and sums as `precision` and `accumulate`."""
    found = {"accumulate": dtype_name(arithmetic.accumulate)}
    if arithmetic.three:
        found["precision"] = "3m"
    elif arithmetic.split:
        found["precision"] = "ieee_bound"
    elif arithmetic.precision != "ieee":
        found["precision"] = arithmetic.precision
    elif arithmetic.product != (torch.float16 if storage in FP8 else storage):
        found["precision"] = dtype_name(arithmetic.product)
    return found


def _algebra(given: Algebra, traced: TracedAlgebra | None) -> Any:
    """A ready algebra by its name, another one by what it computes in this type."""
    if NAMED.get(given.name) is given:
        return given.name
    assert traced is not None
    parts = [portable.written(traced.combine), portable.written(traced.reduce)]
    return {"name": given.name, "parts": parts, "identity": portable.constant(traced.identity)}


def _read_algebra(said: Any) -> Algebra | None:
    if isinstance(said, str):
        return find(said)
    combine, reduce = map(portable.read, said["parts"])
    return Algebra(combine, reduce, portable.read_constant(said["identity"]), said["name"])


def _short(said: dict[str, Any]) -> dict[str, Any]:
    """The entries that say something: none that is empty or false, but zeros."""
    return {name: value for name, value in said.items() if value or type(value) is int}
