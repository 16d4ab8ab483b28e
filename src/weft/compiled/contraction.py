"""Contractions as texts describe them, and the way from a call of `weft.contract`, or of a plan, to its text.

The text is made of a checked request, so that what cannot be computed is refused where the program is traced, with the
message that the call itself would give. The request is one of stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.algebra import NAMED, Algebra, find
from weft.api.einsum import lone
from weft.api.entry import contraction, words_of
from weft.api.keywords import Equation, autocast_keywords
from weft.api.lookup import Terms, read_notation
from weft.api.selection import check_selected, reduced_labels
from weft.base.arguments import describe_call
from weft.base.arrays import outside_tracing
from weft.base.caches import cached_property
from weft.base.figures import counted
from weft.compiled.captured import constant_of_graph, function_of, undisturbed
from weft.compiled.text import Stored, check_backend_of, has_text, options_of_plan, settled_algebra, stand_in, text_of
from weft.engine.calls import CALLS, present
from weft.errors import DTypeError, ShapeError, call_context
from weft.machine.counts import contraction_work
from weft.networks.public import Pair, path_of
from weft.planner.options import Options
from weft.planner.request import HOOKS, Request, hook_types
from weft.planner.schedule import Scalar
from weft.plans.contraction import Plan
from weft.plans.keywords import read_options
from weft.plans.resolving import resolved
from weft.spec import Layout, Notation, parse
from weft.spec.arguments import read_flag
from weft.spec.contraction import mode_extents, output_shape
from weft.spec.dtypes import dtype_name, read_types, resolve
from weft.spec.notation import expand, from_sequences, implicit_from_sequences, letters, spelled_equation

Tensors = list[torch.Tensor]
Function = Callable[..., Any] | None


@has_text
@dataclass(frozen=True, eq=False)
class ContractCall:
    """A contraction: all but the tensors, alpha and beta."""

    equation: str  # of letters, two inputs, without ellipsis
    options: Options  # but for the tensors of operands, which are in their order; `out_dtype` has all types of results
    added: bool = False  # whether there is a C
    places: int | None = None  # how many indices `return_arg` finds; None without it
    validate: bool = False

    @cached_property
    def types(self) -> tuple[torch.dtype, ...]:
        """The types of the results."""
        return types_in(self.options)

    @cached_property
    def words(self) -> Any:
        """The words by which later runs are known; None for what is made in full each time."""
        full = self.places is not None or self.validate
        return None if full else words_of(self.equation, self.options)

    def split(self, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Options]:
        """A, B, C, and the options of a call of these tensors."""
        a, b, *rest = tensors
        c = rest.pop(0) if self.added else None
        given = zip(self.options.operands.items(), rest, strict=True)
        operands = {name: (modes, tensor) for (name, (modes, _)), tensor in given}
        return a, b, c, replace(self.options, operands=operands) if operands else self.options

    def run(self, tensors: Tensors, alpha: Scalar = 1.0, beta: Scalar = 1.0, out: Tensors | None = None) -> Tensors:
        """All results, D first, differentiable; they are `out` where that is given."""
        target: Any = None if out is None else out[0] if len(out) == 1 else tuple(out)
        if self.words is not None and (out is None or len(out) == 1):
            a, b, *rest = tensors
            c = rest.pop(0) if self.added else None
            known, _ = CALLS.find(*present(self.words, a, b, c, target, rest))
            if known is not None and (found := known.run(a, b, c, alpha, beta, target, rest)) is not None:
                return _listed(found)
        a, b, c, options = self.split(tensors)
        found = contraction(
            self.equation, a, b, options, c, alpha, beta if self.added else 1.0, target,
            return_arg=self.places is not None, validate=self.validate,
        )  # fmt: skip
        if self.places is None:
            return _listed(found)
        value, places = found
        return [value, *_listed(places)]

    def request(self, tensors: Tensors) -> Request:
        """The call resolved for tensors of these shapes, which need no memory; raises what is wrong with them."""
        a, b, _, options = self.split(tensors)
        return resolved(parse(self.equation), self.equation, a, b, replace(options, backend="reference", schedule=None))

    def flops(self, tensors: Tensors) -> int:
        request = self.request([_bare(tensor) for tensor in tensors])
        shape = [request.extents[label] for label in request.notation.output]
        return contraction_work(request.contraction(None, Layout.contiguous(shape, request.d_dtype))).flops

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        notation = parse(self.equation)
        return output_shape(notation, mode_extents(notation, (tensors[0].shape, tensors[1].shape)))

    def results(self, tensors: Tensors, *others: Any) -> Tensors:
        """Empty tensors as the results will be: contiguous, in their types."""
        types = (*self.types, *(torch.int64 for _ in range(self.places or 0)))
        shape, device = self.shape(tensors), tensors[0].device
        return [torch.empty(shape, dtype=dtype, device=device) for dtype in types]

    def check_out(self, tensors: Tensors, alpha: Scalar, beta: Scalar, out: Tensors) -> None:
        check_places(self.shape(tensors), self.types, out)


def types_in(options: Options) -> tuple[torch.dtype, ...]:
    """The types of results, which the options of a text say."""
    found: Any = options.out_dtype
    return found if isinstance(found, tuple) else (found,)


def check_places(shape: tuple[int, ...], types: tuple[torch.dtype, ...], out: Tensors) -> None:
    """Raise `ShapeError` or `DTypeError` where a place does not fit its result."""
    if len(out) != len(types):
        raise ShapeError(f"out has {counted(len(out), 'tensor')}, the call {counted(len(types), 'result')}")
    for place, dtype in zip(out, types, strict=True):
        if place.dim() != len(shape) or any(have != want for have, want in zip(place.shape, shape, strict=True)):
            raise ShapeError(f"out has shape {tuple(place.shape)}, the result has {shape}")
        if place.dtype != dtype:
            raise DTypeError(f"out is {dtype_name(place.dtype)}, the result is {dtype_name(dtype)}")


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that has this one's layout and no memory."""
    shape, strides = ([int(each) for each in of] for of in (tensor.shape, tensor.stride()))
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")


def _listed(found: Any) -> Tensors:
    return [found] if isinstance(found, torch.Tensor) else list(found)


# -- from calls to texts -----------------------------------------------------------------------------------------------


@constant_of_graph
def spelled(
    equation: Equation,
    stored: tuple[Stored, Stored],
    kind: str,
    operands: tuple[tuple[str, Any, Stored], ...],
    options: tuple[tuple[str, Any], ...],
    out_types: Any,
    added: bool,
    return_arg: bool,
    functions: tuple[Function, ...],
    algebra: Any,
) -> tuple[str, str]:
    """The text of a call of `weft.contract`, and how its results come: "one", "several", with a "place" or "places".

    Raises what the call would raise.

    `stored`: types and ranks of A and B, which are on a `kind` of device. `operands`: name, modes, type and rank of
    each. `out_types`: those of the places for the results, if any. `added`: whether there is a C. Dynamo runs it once,
    while it reads the code.
    """
    keywords = {**dict(options), **dict(zip(HOOKS, map(function_of, functions), strict=True))}
    keywords["algebra"] = algebra_of(algebra)
    return undisturbed(_written)(equation, stored, kind, operands, keywords, out_types, added, return_arg)


def _written(
    equation: Equation, stored: tuple[Stored, Stored], kind: str, operands: tuple[tuple[str, Any, Stored], ...],
    keywords: dict[str, Any], out_types: Any, added: bool, return_arg: bool,
) -> tuple[str, str]:  # fmt: skip
    with outside_tracing(), call_context(lambda: describe_call("contract", equation)):
        if keywords.pop("alone", False):
            algebra = find(keywords["algebra"])
            keywords["algebra"] = "plus_times" if algebra is None else lone(algebra)
        validate = read_flag("validate", keywords.pop("validate", False))
        keywords = autocast_keywords(keywords, kind, (stored[0][0], stored[1][0]), out_types is not None)
        keywords["operands"] = {name: (modes, stand_in(*each)) for name, modes, each in operands}
        if keywords.get("out_dtype") is None:
            keywords["out_dtype"] = out_types
        options = read_options("contract", keywords)
        return spelled_options(equation, stored, kind, options, added, return_arg, validate)


def spelled_options(
    equation: Terms, stored: tuple[Stored, Stored], kind: str, options: Options, added: bool, return_arg: bool,
    validate: bool,
) -> tuple[str, str]:  # fmt: skip
    """The text of `spelled` for a call whose options are read."""
    check_backend_of(options, kind)
    a, b = (stand_in(*each) for each in stored)
    operands = {name: (modes, stand_in(x.dtype, x.dim())) for name, (modes, x) in options.operands.items()}
    asked = replace(options, operands=operands, backend="reference", schedule=None)
    notation = read_notation(equation)
    request = resolved(notation, str(notation), a, b, asked)
    places = None
    if return_arg:
        check_selected(request, added=False)
        places = len(reduced_labels(request))
    return _text(request, options, operands, added, places, validate)


@constant_of_graph
def types_seen(
    stored: tuple[Stored, Stored], kind: str, options: tuple[tuple[str, Any], ...], algebra: str, placed: bool
) -> tuple[torch.dtype, ...]:
    """The types of the values that a call's functions see, in the order of the hooks; the last is that of sums.

    `placed`: whether there are places for the results.
    """
    a, b = stored[0][0], stored[1][0]
    keywords = autocast_keywords(dict(options), kind, (a, b), placed)
    _, precision, accumulate = read_types(None, keywords.get("precision"), keywords.get("accumulate"))
    name = None if algebra == "plus_times" else algebra
    return hook_types((a, b), resolve(a, b, precision, accumulate, name, bool(keywords.get("promote"))))


def spelled_plan(
    plan: Plan, added: bool, validate: bool, functions: Any, algebra: Any
) -> tuple[str, str, tuple[str, ...], tuple[Any, Any]]:
    """The text of a call of a plan, how its results come, the names of its operands, and how A and B were planned.

    `functions` and `algebra`: the caller's as dynamo has read them; None elsewhere.
    """
    request = plan.request
    if functions is not None:
        made = algebra_of(algebra) if algebra is not None else request.raw_algebra
        request = request.given(tuple(map(function_of, functions)), made).again()
    options = options_of_plan(request)
    order = tuple(named.name for named in request.named if named.layout is not None)
    text, structure = _text(request, options, order, added, plan.places, validate)
    return text, structure, order, (request.a[:3], request.b[:3])


def _text(
    request: Request, options: Options, order: Iterable[str], added: bool, places: int | None, validate: bool
) -> tuple[str, str]:
    """The text of a checked call, and how its results come. `order`: the operands' names."""
    named = {found.name: found for found in request.named}
    names = letters((*request.notation.inputs, request.notation.output, *(found.term for found in request.named)))
    functions = request.functions
    said = replace(
        options, out_dtype=request.d_dtype if request.outputs is None else (request.d_dtype, *request.outputs),
        functions=(functions.a, functions.b, functions.c, functions.epilogue),
        operands={name: ("".join(names[label] for label in named[name].term), None) for name in order},
        indices={name: names[found.term[0]] for name, found in named.items() if found.layout is None},
        algebra=settled_algebra(options.algebra, request.arithmetic.accumulate),
        invariant=tuple(names[label] for label in request.invariant),
    )  # fmt: skip
    text = text_of(ContractCall(spelled_equation(request.notation, names), said, added, places, validate))
    if places is not None:
        return text, "place" if places == 1 else "places"
    return text, "one" if request.outputs is None else "several"


def algebra_of(said: Any) -> Any:
    """The algebra of its parts, which may have been captured; a name, or an algebra, as it is."""
    if not isinstance(said, tuple):
        return said
    made = Algebra(*map(function_of, said))
    return NAMED[made.name] if NAMED.get(made.name) == made else made


# -- the calls that `weft.einsum` is made of, as dynamo needs them before there are tensors ---------------------------

Shape = tuple[int | None, ...]  # None: open
OPEN = 128  # what an open extent counts as where a path is chosen

# A call of an einsum: "permute", "contract", or "alone" with a one; its equation; the places of what it reads, operands
# first, then results of steps. Plain, as torch 2.11's dynamo does not unpack named tuples that are constants.
Step = tuple[str, str, int, int]


@constant_of_graph
def steps_of_einsum(
    equation: Any, shapes: tuple[Shape, ...], moved: bool, first: tuple[torch.dtype, str, int | None],
    asked: tuple[tuple[str, Any], ...],
) -> tuple[Step, ...]:  # fmt: skip
    """The calls that an einsum consists of.

    `equation`: text, or the sequences of labels, the result's last where it is given. `shapes`: extents, None for those
    that are open. `moved`: whether one operand is a mere rearrangement if its labels are. `first`: the type of the
    operands, and where they are. `asked`: keywords of every step.
    """
    if isinstance(equation, str):
        notation = parse(equation)
    elif len(equation) > len(shapes):
        notation = from_sequences(*equation)
    else:
        notation = implicit_from_sequences(*equation)
    notation = expand(notation, tuple(map(len, shapes)))
    names = letters((*notation.inputs, notation.output))
    if len(shapes) == 1:
        (term,), output = notation.inputs, notation.output
        if moved and set(term) == set(output):
            return (("permute", spelled_equation(notation, names), 0, 1),)
        return (("alone", spelled_equation(Notation((term, ()), output), names), 0, 1),)
    with outside_tracing():
        steps = [(0, 1, notation)] if len(shapes) == 2 else along(notation, shapes, first, asked)
    return tuple(("contract", spelled_equation(step, names), left, right) for left, right, step in steps)


def along(
    notation: Notation, shapes: tuple[Shape, ...], first: tuple[torch.dtype, str, int | None],
    asked: tuple[tuple[str, Any], ...],
) -> list[Pair]:  # fmt: skip
    """The steps of the path that `weft.einsum` takes elsewhere."""
    dtype, kind, index = first
    device = torch.device("cpu" if kind == "meta" else kind if index is None else f"{kind}:{index}")
    known = {
        label: extent
        for term, shape in zip(notation.inputs, shapes, strict=True)
        for label, extent in sorted(zip(term, shape, strict=True), key=lambda each: each[1] or 0)
        if extent is not None
    }
    filled = [
        tuple(known.get(label, OPEN) if extent is None else extent for label, extent in zip(term, shape, strict=True))
        for term, shape in zip(notation.inputs, shapes, strict=True)
    ]
    each = {name: algebra_of(value) if name == "algebra" else value for name, value in asked}
    return path_of(notation, filled, [dtype] * len(shapes), device, read_options("einsum", each))
