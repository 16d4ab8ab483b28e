"""`weft.cascade` as an operation: the texts that describe cascades, and the calls that they describe.

Gradients are an operation of their own, which makes the cascade again: nothing but its operands is kept for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.algebra import NAMED, find
from weft.base.arrays import grad_mode, outside_tracing
from weft.base.describe import describe_call
from weft.cascades.notation import CascadeNotation, extents_of
from weft.cascades.public import autocast_type, described, planned
from weft.compiled.captured import function_of
from weft.compiled.flops import FORMULAS, announce_flops
from weft.compiled.text import plain_of, read_plain, types_text
from weft.errors import UnsupportedError, call_context
from weft.fn import portable
from weft.fn.pointwise import RecordedFunction
from weft.planner.options import Options
from weft.planner.target import resolve_backend
from weft.plans.keywords import read_options
from weft.spec import Label
from weft.spec.arguments import read_real
from weft.spec.dtypes import dtype_name, resolve

if TYPE_CHECKING:
    from weft.cascades.plan import CascadePlan
    from weft.cascades.transforms import Terms

Stored = tuple[torch.dtype, int]  # a tensor's type and rank


@dataclass(frozen=True, eq=False)
class DescribedCascade:
    """A cascade that a text describes: all but the tensors."""

    text: str
    notation: CascadeNotation
    aux: tuple[tuple[str, tuple[str, ...]], ...]  # operands of the function, in the order of the tensors: name, modes
    between: Any
    options: Options  # but for the tensors of operands
    alpha: float
    outputs: tuple[tuple[tuple[str, ...], torch.dtype], ...]  # modes and types of the results

    @property
    def count(self) -> int:
        """How many of the tensors are A, B and C."""
        return 2 if self.notation.c is None else 3

    def results(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Empty tensors as the results will be: contiguous, in their types."""
        extents, device = extents_of(self.notation, [each.shape for each in tensors[: self.count]]), tensors[0].device
        shapes = [[extents[label] for label in modes] for modes, _ in self.outputs]
        types = [dtype for _, dtype in self.outputs]
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in zip(shapes, types, strict=True)]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results, differentiable."""
        given, operands = tensors[: self.count], tensors[self.count :]
        plan = self.plan(self.notation, self.aux, tensors)
        found = plan.run(given, dict(zip([name for name, _ in self.aux], operands, strict=True)))
        return [each.contiguous() for each in (found if isinstance(found, tuple) else (found,))]

    def plan(self, notation: CascadeNotation, terms: Terms, tensors: Sequence[Tensor]) -> CascadePlan:
        """The plan of this cascade with other labels."""
        labels = (notation.a, notation.b, notation.s, notation.c, notation.d)
        pairs = {name: (modes, each) for (name, modes), each in zip(terms, tensors[self.count :], strict=True)}
        return planned(
            tuple(each for each in labels if each is not None), tensors[: self.count],
            replace(self.options, operands=pairs), self.between, self.alpha,
        )  # fmt: skip

    def transformed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results within transforms of `torch.func`."""
        from weft.cascades.transforms import Transformed, TransformedCall

        return list(Transformed.apply(TransformedCall(self.notation, self.aux, self.plan), *tensors))

    def gradients(
        self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None], wanted: Sequence[int]
    ) -> list[Tensor]:
        """The gradients of the tensors at the places `wanted`, from those of the results."""
        with autograd_within(), grad_mode(True):
            leaves = [each.detach().requires_grad_(at in wanted) for at, each in enumerate(tensors)]
            found = self.run(leaves)
            each = zip(found, grads, strict=True)
            pairs = [(value, grad) for value, grad in each if grad is not None and value.requires_grad]
            places = [leaves[at] for at in wanted]
            if not pairs:
                return [torch.zeros_like(each) for each in places]
            values, given = zip(*pairs, strict=True)
            made = torch.autograd.grad(values, places, given, allow_unused=True, materialize_grads=True)
        return [grad.contiguous() for grad in made]


@contextmanager
def autograd_within() -> Iterator[None]:
    """Let autograd see operations that run within one: dispatch modes are told of that one below autograd."""
    keys = torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.AutogradOther
    with torch._C._PreserveDispatchKeyGuard():
        for key in keys:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield


def flops(call: str, tensors: Sequence[Tensor], *others: Any, **named: Any) -> int:
    """Flops of `torch.ops.weft.cascade` on these arguments: those of its two contractions."""
    described = read_cascade(call)
    notation = described.notation
    extents = extents_of(notation, [tuple(map(int, each.shape)) for each in tensors[: described.count]])
    first, second = {*notation.a, *notation.b}, {*notation.s, *notation.c} if notation.c is not None else set()
    return 2 * sum(math.prod(extents[label] for label in labels) for labels in (first, second) if labels)


def backward_flops(*arguments: Any, **named: Any) -> int:
    """Flops of `torch.ops.weft.cascade_backward`: the cascade made again, and two contractions for each of its two."""
    return 3 * flops(*arguments, **named)


FORMULAS |= {"cascade": flops, "cascade_backward": backward_flops}


def sums_of_cascade(stored: tuple[Stored, ...], kind: str, options: tuple[tuple[str, Any], ...]) -> torch.dtype:
    """The type of the sums that the function of a cascade sees. Dynamo takes it for a constant."""
    keywords = {name: value for name, value in options if name != "alpha"}
    read = read_options("cascade", keywords)
    dtype = autocast_type(kind, stored[0][0]) or stored[0][0]
    return resolve(dtype, dtype, read.precision, read.accumulate).accumulate


def spelled_cascade(
    equation: Any,
    stored: tuple[Stored, ...],
    kind: str,
    operands: tuple[tuple[str, Any, Stored], ...],
    options: tuple[tuple[str, Any], ...],
    between: Any,
) -> tuple[str, bool, torch.dtype | None]:
    """The text of a call of `weft.cascade`, whether it has several results, and the type that autocast asks for.

    Raises what the call would raise. `stored`: types and ranks of A, B and C, which are on a `kind` of device. Dynamo
    runs it once, while it reads the code, and takes what it returns for constants.
    """
    from weft.cascades.plan import CascadePlan  # with all that runs it: with the first call, not with weft

    announce_flops()
    with outside_tracing(), call_context(lambda: describe_call("cascade", equation)):
        keywords = dict(options)
        alpha = read_real("alpha", keywords.pop("alpha", 1.0))
        keywords["operands"] = {name: (modes, _stand_in(*each)) for name, modes, each in operands}
        read = read_options("cascade", keywords)
        if kind != "meta":
            resolve_backend(read.backend, torch.device(kind))
        cast = autocast_type(kind, stored[0][0])
        tensors = [_stand_in(cast or dtype, rank) for dtype, rank in stored]
        function = function_of(between)
        asked = replace(read, backend="auto", specialize="never")
        plan = CascadePlan(described(equation, tensors, asked, function), function, asked, alpha, planned)
        return text_of(plan, read, alpha), plan.several, cast


for _constant in (sums_of_cascade, spelled_cascade):  # as torch.compiler.assume_constant_result does
    setattr(_constant, "_dynamo_marked_constant", True)  # noqa: B010


def text_of(plan: CascadePlan, options: Options, alpha: float) -> str:
    """The text of a checked cascade; `options`: those of the call that are plain."""
    said, written = plan.said, plan.written
    names = _names(plan.notation)
    if options.algebra is not None and NAMED.get(options.algebra.name) is not options.algebra:
        raise UnsupportedError("within compiled code the algebra of a cascade is one of weft's own")
    labels = (plan.notation.a, plan.notation.b, plan.notation.s, plan.notation.c, plan.notation.d)
    return json.dumps({
        "terms": [[names[label] for label in term] for term in labels if term is not None],
        "operands": [[name, [names[label] for label in modes]] for name, (modes, _, _) in said.operands.items()],
        "indices": {name: names[label] for name, label in said.indices.items()},
        "between": portable.written(RecordedFunction(written.graph, ("value", *written.names))),
        "alpha": alpha.hex(),
        "results": [[[names[label] for label in modes], dtype_name(dtype)] for modes, dtype in plan.described_results],
        "out_dtype": dtype_name(plan.result_type),
        "algebra": None if options.algebra is None else options.algebra.name,
        **types_text(plan.types, said.dtype),
        **plain_of(options),
    }, sort_keys=True)  # fmt: skip


def planned_cascade(plan: CascadePlan, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results of a plan on tensors that torch sees operations on."""
    return tuple(torch.ops.weft.cascade.default(text_of(plan, plan.options, plan.alpha), list(tensors)))


@lru_cache(maxsize=1024)
def read_cascade(text: str) -> DescribedCascade:
    """The cascade that a text describes."""
    said = json.loads(text)
    terms = [tuple(term) for term in said["terms"]]
    options = read_plain(
        said, out_dtype=getattr(torch, said["out_dtype"]), indices=said["indices"],
        algebra=None if said["algebra"] is None else find(said["algebra"]),
        **{name: getattr(torch, said[name], said[name]) for name in ("accumulate", "precision") if name in said},
    )  # fmt: skip
    return DescribedCascade(
        text, CascadeNotation(*terms), tuple((name, tuple(modes)) for name, modes in said["operands"]),
        portable.read(said["between"]), options, float.fromhex(said["alpha"]),
        tuple((tuple(modes), getattr(torch, dtype)) for modes, dtype in said["results"]),
    )  # fmt: skip


def _names(notation: CascadeNotation) -> dict[Label, str]:
    """Labels as text: those of S as a function names them."""
    names = {label: str(label) for label in notation.s}
    others = dict.fromkeys(
        label for term in (notation.a, notation.b, notation.c, notation.d) if term is not None for label in term
    )
    for at, label in enumerate(others):
        names.setdefault(label, f"not of S {at}")
    return names


def _stand_in(dtype: torch.dtype, rank: int) -> Tensor:
    return torch.empty((1,) * rank, dtype=dtype, device="cpu")
