"""The request of one rank, read and checked before anything moves; and its part that must be equal on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.algebra import Algebra
from weft.api.keywords import Equation
from weft.api.lookup import read_notation
from weft.api.selection import INDEX, check_selected
from weft.base.arrays import as_tensor, grad_mode, is_transforming
from weft.base.figures import shortened
from weft.distributed.placement import (
    LocalBlock,
    Placed,
    Places,
    RankProblem,
    dtensor_places,
    read_named,
    read_places,
    whole_shape,
)
from weft.distributed.prediction import KernelModel
from weft.distributed.work import RankWork
from weft.engine.ways import asks
from weft.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from weft.planner.options import Options
from weft.planner.request import HOOKS, Request
from weft.planner.schedule import Scalar
from weft.planner.target import resolve_backend, target_of
from weft.plans.checks import check_unscaled, checked_scalar
from weft.plans.keywords import read_options
from weft.plans.resolving import resolved
from weft.spec import Notation
from weft.spec.arguments import read_flag
from weft.spec.contraction import mode_extents
from weft.spec.dtypes import dtype_name
from weft.spec.notation import Label, expand, label_text, term_text

REFUSED = {
    "validate": "it is of a call, plan(a, b, validate=True)",
    "schedule": "parts of several shapes have schedules of their own",
    "promote": "convert the operands to one type",
    "out": "the part of D is new in every call",
    "invariant": "weft.contract(..., invariant=) of this rank's rows has the bits that all rows would have",
}


@dataclass(frozen=True)
class RankRequest:
    """A call on one rank: its tensors are this rank's parts."""

    equation: Equation
    notation: Notation  # without ellipsis
    mesh: tuple[int, ...]
    a: torch.Tensor
    b: torch.Tensor
    options: Options
    places: Mapping[str, Places]  # of a, b, d, and of operands by name
    asking: tuple[str, ...] = ()  # "a", "b" and operands that require gradients
    return_arg: bool = False

    def same(self) -> dict[str, Any]:
        """The part of the request that must be equal on every rank."""
        options, algebra = self.options, self.options.algebra
        found: dict[str, Any] = {
            "the equation": self.notation,
            "the mesh": self.mesh,
            "the type of a": dtype_name(self.a.dtype),
            "the type of b": dtype_name(self.b.dtype),
            "the kind of device": self.a.device.type,
            "functions": [hook for hook, one in zip(HOOKS, options.functions, strict=True) if one is not None],
            "the names of operands": sorted(options.operands),
            "indices": sorted((name, label_text(label)) for name, label in options.indices.items()),
            "the algebra": algebra.name if algebra is not None else "plus_times",
            "options": (options.out_dtype, options.precision, options.accumulate, options.backend),
            "return_arg": self.return_arg,
        }
        for name, places in self.places.items():
            found[f"the placement of {name}"] = [None if one is None else label_text(one) for one in places]
        return found

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """This rank's parts: a, b, and operands of functions by what they are called here."""
        beside = {key_of(name): tensor for name, tensor in self.options.tensors.items()}
        return {"a": self.a, "b": self.b, **beside}

    @property
    def placed(self) -> dict[str, Placed]:
        """Their labels, and where they are."""
        terms = dict(zip("ab", self.notation.inputs, strict=True))
        terms |= {key_of(name): tuple(modes) for name, (modes, _) in self.options.operands.items()}  # type: ignore[arg-type]
        return {key: Placed(key, tuple(term), self.places[key]) for key, term in terms.items()}

    def shapes(self) -> dict[str, list[int]]:
        """Shapes of this rank's parts."""
        return {key: list(tensor.shape) for key, tensor in self.tensors.items()}

    def whole_shapes(self, shapes: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, tuple[int, ...]]:
        """Shapes of the whole tensors, from the shapes of every rank's parts; every rank raises the same errors."""
        every = self.placed.items()
        return {key: whole_shape(each, [one[key] for one in shapes], self.mesh) for key, each in every}

    def problem_of(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[RankProblem, Request]:
        """The problem of all ranks together; and the request of the whole tensors, which exist nowhere."""
        whole, placed = dict(shapes), self.placed
        extents = mode_extents(self.notation, (whole["a"], whole["b"]))
        d = Placed("d", self.notation.output, self.places["d"])
        whole["d"] = tuple(extents[label] for label in d.term)
        request = self._request(whole)
        items = {
            "a": self.a.itemsize, "b": self.b.itemsize, "d": request.d_dtype.itemsize,
            "sum": request.arithmetic.accumulate.itemsize,
        }  # fmt: skip
        if self.return_arg:
            check_selected(request, added=False)
            items |= {name: items[name] + INDEX.itemsize for name in ("d", "sum")}
        problem = RankProblem(placed["a"], placed["b"], d, whole, extents, self.mesh, items, self.return_arg)
        return problem, request

    def _request(self, whole: Mapping[str, tuple[int, ...]]) -> Request:
        """The request that `weft.contract` would make of the whole tensors; its errors are those of that call."""
        meta = {key: torch.empty(whole[key], dtype=tensor.dtype, device="meta") for key, tensor in self.tensors.items()}
        operands = {name: (modes, meta[key_of(name)]) for name, (modes, _) in self.options.operands.items()}
        options = replace(self.options, operands=operands, backend="reference")
        return resolved(self.notation, str(self.equation), meta["a"], meta["b"], options)

    def work_of(self, problem: RankProblem, request: Request) -> RankWork:
        """The functions of a call, their operands still to come."""
        options = self.options
        names = dict(zip(HOOKS, request.functions.names, strict=True))
        aux: dict[str, LocalBlock] = {}
        for name, label in options.indices.items():
            extent = problem.extents.get(label, 1)
            kind = torch.int64 if extent > 2**31 else torch.int32
            aux[name] = LocalBlock(torch.arange(extent, dtype=kind, device=self.a.device), (label,))
        types = (request.d_dtype, *(request.outputs or ()), *((INDEX,) if self.return_arg else ()))
        largest = check_selected(request, added=False) if self.return_arg else False
        each = replace(options, accumulate=request.arithmetic.accumulate, operands={}, indices={}, kept_dtype=None)
        return RankWork(names, aux, each, request.arithmetic.accumulate, types, problem.d.term, largest)

    def check_factors(self, request: Request, c: Any, alpha: Scalar, beta: Scalar) -> None:
        """The factors of a call, which may have a C."""
        if self.options.algebra is not None:
            check_unscaled(self.options.algebra.name, alpha, beta)
        for name, value in (("alpha", alpha), ("beta", beta)):
            checked_scalar(name, value, request.arithmetic.accumulate)
        if c is None and beta not in (0, 1):
            raise ShapeError(f"beta={beta!r} has no c to multiply: pass c")

    def kernel_of(self, problem: RankProblem, request: Request, device: torch.device) -> KernelModel:
        """The model of what contracts parts on this device."""
        options = self.options
        backend = options.backend if options.backend != "reference" else "auto"
        terms = problem.a.term, problem.b.term, problem.d.term
        types = self.a.dtype, self.b.dtype, request.arithmetic.accumulate
        target = target_of(resolve_backend(backend, device), device)
        return KernelModel(terms, types, target, options.algebra, options.precision)


def read_asked(
    call: str, equation: Equation, a: Any, b: Any, mesh: tuple[int, ...], placements: Any, keywords: Mapping[str, Any]
) -> RankRequest:
    """The request of a "contract" or a "plan" on this rank; raises whatever is wrong with it."""
    for name, why in REFUSED.items():
        if keywords.get(name):
            raise UnsupportedError(f"{name}= is not for several ranks: {why}")
    return_arg = read_flag("return_arg", keywords.get("return_arg", False))
    given = {name: value for name, value in keywords.items() if name not in (*REFUSED, "return_arg")}
    return asked_of(equation, a, b, mesh, placements, read_options(call, given), return_arg)


def asked_of(
    equation: Equation, a: Any, b: Any, mesh: tuple[int, ...], placements: Any, options: Options,
    return_arg: bool = False,
) -> RankRequest:  # fmt: skip
    """The request of this rank, from options that are read."""
    local_a, local_b = local("a", a), local("b", b)
    found = asking({"a": local_a, "b": local_b})
    local_a, local_b = local_a.detach(), local_b.detach()
    notation = expand(read_notation(equation), (local_a.dim(), local_b.dim()))
    parts = {name: (modes, local(key_of(name), tensor)) for name, (modes, tensor) in options.operands.items()}
    options = replace(options, operands=parts)
    if local_a.device != local_b.device:
        raise ArgumentError(f"a is on {local_a.device}, b is on {local_b.device}")
    terms = {"a": notation.inputs[0], "b": notation.inputs[1], "d": notation.output}
    named = read_named(placements, (*terms, *options.operands))
    # Placements of these names are A's, B's and D's, whatever operands are called.
    given = {name if name in terms else key_of(name): place for name, place in named.items()}
    for name, value in (("a", a), ("b", b)):
        if name not in given and is_dtensor(value):
            given[name] = dtensor_places(name, value, terms[name])
    every: dict[str, Any] = {key_of(name): tuple(modes) for name, (modes, _) in options.operands.items()}  # type: ignore[arg-type]
    places = {key: read_places(key, given.get(key), term, mesh) for key, term in {**every, **terms}.items()}
    found += tuple([key_of(name) for name, tensor in options.tensors.items() if asks(tensor)])
    return RankRequest(equation, notation, mesh, local_a, local_b, options, places, found, return_arg)


def key_of(operand: str) -> str:
    """The key of an operand of functions, which may have any name."""
    return f"operand '{operand}'"


def is_dtensor(value: Any) -> bool:
    return any(kind.__name__ == "DTensor" for kind in type(value).__mro__)


def local(name: str, value: Any) -> torch.Tensor:
    """This rank's part, as a kernel sees it."""
    tensor = value.to_local() if is_dtensor(value) else as_tensor(name, value)
    return tensor.resolve_conj().resolve_neg()


def asking(tensors: Mapping[str, torch.Tensor | None], algebra: Algebra | None = None) -> tuple[str, ...]:
    """The names of tensors that require a gradient; `UnsupportedError` where there is none."""
    for name, tensor in tensors.items():
        with grad_mode(False):  # what requests derivatives nevertheless does so otherwise
            otherwise = tensor is not None and (is_transforming() or asks(tensor))
        if otherwise:
            raise UnsupportedError(
                f"{name} is inside a transform of torch.func, or has a tangent: contractions over ranks have "
                "gradients in reverse mode alone, by requires_grad and backward"
            )
    found = tuple([name for name, tensor in tensors.items() if tensor is not None and asks(tensor)])
    if found and algebra is not None:
        raise UnsupportedError(
            f"{found[0]} requires a gradient: over ranks the algebra {algebra.name} has none, plus_times has; detach "
            f"{found[0]}, or call weft.contract on whole tensors"
        )
    return found


def computed(request: Request) -> dict[str, str]:
    """The computations of functions as text, equal on all ranks: a constant in them is part of it."""
    functions, algebra = request.functions, request.algebra
    graphs = dict(zip(HOOKS, (functions.a, functions.b, functions.c, functions.epilogue), strict=True))
    if algebra is not None:
        graphs |= {"the algebra's combine": algebra.combine, "its reduce": algebra.reduce}
    lines = {name: graph.identity.replace("\n", "; ") for name, graph in graphs.items() if graph is not None}
    return {f"what {name} computes": shortened(line, 200, 120) for name, line in lines.items()}


def check_part(name: str, tensor: torch.Tensor, like: torch.Tensor, term: Sequence[Label]) -> None:
    """A tensor of a call is as the plan's was."""
    if tensor.shape != like.shape:
        raise ArgumentError(
            f"{name} '{term_text(tuple(term))}' has shape {tuple(tensor.shape)} here, the plan was made for "
            f"{tuple(like.shape)}"
        )
    if tensor.dtype != like.dtype:
        raise DTypeError(f"{name} is {dtype_name(tensor.dtype)}, the plan was made for {dtype_name(like.dtype)}")
    if tensor.device != like.device:
        raise ArgumentError(f"{name} is on {tensor.device}, the plan was made for {like.device}")
