"""From a call to the text of its operation, by way of the request that the call would make.

The request is made of stand-ins: tensors of one element with the operands' types and ranks. All else that it
settles holds for any extents.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from weft.algebra import NAMED, Algebra, find
from weft.api.autocast import autocast_keywords
from weft.api.einsum import lone
from weft.api.keywords import Equation
from weft.api.lookup import Terms, read_notation
from weft.api.selection import check_selected, reduced_labels
from weft.base.arrays import outside_tracing
from weft.base.describe import describe_call
from weft.compiled.captured import function_of
from weft.compiled.flops import announce_flops
from weft.compiled.letters import letters, spelled_equation
from weft.compiled.text import backend_of, lies, text_of
from weft.errors import WeftError, call_context
from weft.networks.ahead import Pair, path_of
from weft.planner.options import Options, options_of
from weft.planner.request import HOOKS, Request, hook_types
from weft.planner.target import resolve_backend
from weft.plans.contraction import Plan
from weft.plans.keywords import read_options
from weft.plans.resolving import resolved
from weft.spec import Notation, parse
from weft.spec.arguments import read_flag
from weft.spec.dtypes import read_types, resolve
from weft.spec.notation import expand, from_sequences, implicit_from_sequences

Stored = tuple[torch.dtype, int]  # a tensor's type and rank
Shape = tuple[int | None, ...]  # None: open
OPEN = 128  # what an open extent counts as where a path is chosen
Function = Callable[..., Any] | None


# A call of an einsum: "permute", "contract", or "alone" with a one; its equation; the places of what it reads, operands
# first, then results of steps. Plain, as torch 2.11's dynamo does not unpack named tuples that are constants.
Step = tuple[str, str, int, int]


def spelled(
    equation: Equation,
    stored: tuple[Stored, Stored],
    kind: str,
    operands: tuple[tuple[str, Any, Stored], ...],
    options: tuple[tuple[str, Any], ...],
    out_types: Any,
    added: bool,
    return_arg: bool,
    a_fn: Function,
    b_fn: Function,
    c_fn: Function,
    epilogue: Function,
    algebra: Any,
) -> tuple[str, str]:
    """The text of a call of `weft.contract`, and how its results come: "one", "several", with a "place" or "places".

    Raises what the call would raise.

    `stored`: types and ranks of A and B, which are on a `kind` of device. `operands`: name, modes, type and rank of
    each. `out_types`: those of the places for the results, if any. `added`: whether there is a C.

    Dynamo runs it once, while it reads the code, and takes the text for a constant.
    """
    announce_flops()
    write = _undisturbed(_written)
    functions = dict(zip(HOOKS, map(function_of, (a_fn, b_fn, c_fn, epilogue)), strict=True))
    if isinstance(algebra, tuple):
        algebra = tuple(map(function_of, algebra))
    keywords = {**dict(options), **functions, "algebra": algebra}
    found: tuple[str, str] = write(equation, stored, kind, operands, keywords, out_types, added, return_arg)
    return found


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


for _constant in (spelled, types_seen):  # as torch.compiler.assume_constant_result does
    setattr(_constant, "_dynamo_marked_constant", True)  # noqa: B010


@lru_cache(maxsize=4)
def _unread(write: Callable[..., tuple[str, str]]) -> Callable[..., tuple[str, str]]:
    found: Callable[..., tuple[str, str]] = torch._dynamo.disable(write)
    return found


def _undisturbed(write: Callable[..., tuple[str, str]]) -> Callable[..., tuple[str, str]]:
    """`write` as dynamo does not read it: where it could not read the arguments of a call it runs this."""
    return _unread(write) if "torch._dynamo" in sys.modules else write


def _written(
    equation: Equation,
    stored: tuple[Stored, Stored],
    kind: str,
    operands: tuple[tuple[str, Any, Stored], ...],
    keywords: dict[str, Any],
    out_types: Any,
    added: bool,
    return_arg: bool,
) -> tuple[str, str]:
    with outside_tracing(), call_context(lambda: describe_call("contract", equation)):
        keywords["algebra"] = algebra_of(keywords["algebra"])
        if keywords.pop("alone", False):
            algebra = find(keywords["algebra"])
            keywords["algebra"] = "plus_times" if algebra is None else lone(algebra)
        validate = read_flag("validate", keywords.pop("validate", False))
        keywords = autocast_keywords(keywords, kind, (stored[0][0], stored[1][0]), out_types is not None)
        keywords["operands"] = {name: (modes, _stand_in(*each)) for name, modes, each in operands}
        if keywords.get("out_dtype") is None:
            keywords["out_dtype"] = out_types
        options = read_options("contract", keywords)
        return text_of_options(equation, stored, kind, options, added, return_arg, validate)


def spelled_options(
    equation: Terms, stored: tuple[Stored, Stored], kind: str, options: Options, added: bool, return_arg: bool,
    validate: bool,
) -> tuple[str, str]:  # fmt: skip
    """The text and structure of `spelled` for a call whose options are read."""
    announce_flops()
    with outside_tracing():
        found: tuple[str, str] = _undisturbed(text_of_options)(
            equation, stored, kind, options, added, return_arg, validate
        )
        return found


def text_of_options(
    equation: Terms, stored: tuple[Stored, Stored], kind: str, options: Options, added: bool, return_arg: bool,
    validate: bool,
) -> tuple[str, str]:  # fmt: skip
    """The text of a call, and how its results come."""
    if kind != "meta":
        resolve_backend(options.backend, torch.device(kind))
    a, b = (_stand_in(*each) for each in stored)
    operands = {name: (modes, _stand_in(x.dtype, x.dim())) for name, (modes, x) in options.operands.items()}
    asked = replace(options, operands=operands, backend="reference", schedule=None)
    notation = read_notation(equation)
    request = resolved(notation, str(notation), a, b, asked)
    places = None
    if return_arg:
        check_selected(request, added=False)
        places = len(reduced_labels(request))
    text = text_of(request, options, tuple(operands), added, places=places, validate=validate)
    return text, structure_of(request, places)


def _stand_in(dtype: torch.dtype, rank: int) -> torch.Tensor:
    return torch.empty((1,) * rank, dtype=dtype, device="cpu")


def spelled_plan(
    plan: Plan, added: bool, validate: bool, functions: Any, algebra: Any
) -> tuple[str, str, tuple[str, ...], tuple[Any, Any]]:
    """The text of a call of a plan, how its results come, the names of its operands, and how A and B were planned.

    `functions` and `algebra`: the caller's as dynamo has read them; None elsewhere.
    """
    request = plan.request
    if functions is not None:
        made = Algebra(*map(function_of, algebra)) if algebra is not None else request.raw_algebra
        request = request.given(tuple(map(function_of, functions)), made).again()
    options = replace(options_of(request, {}), backend=backend_of(request), schedule=request.schedule)
    order = tuple(named.name for named in request.named if named.layout is not None)
    text = text_of(request, options, order, added, places=plan.places, validate=validate)
    return text, structure_of(request, plan.places), order, (lies(request.a), lies(request.b))


def structure_of(request: Request, places: int | None) -> str:
    """The form of a call's results; `places`: how many indices it returns, None where none were requested."""
    if places is not None:
        return "place" if places == 1 else "places"
    return "one" if request.outputs is None else "several"


def algebra_of(said: Any) -> Any:
    """The algebra of its parts; a name, or an algebra, as it is."""
    if not isinstance(said, tuple):
        return said
    made = Algebra(*said)
    return NAMED[made.name] if NAMED.get(made.name) == made else made


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
        steps = left_to_right(notation) if len(shapes) == 2 else along(notation, shapes, first, asked)
    return tuple(
        ("contract", spelled_equation(step, names), left, right) for left, right, step in steps
    )


steps_of_einsum._dynamo_marked_constant = True  # type: ignore[attr-defined]


def along(
    notation: Notation, shapes: tuple[Shape, ...], first: tuple[torch.dtype, str, int | None],
    asked: tuple[tuple[str, Any], ...],
) -> list[Pair]:  # fmt: skip
    """The steps of the path that `weft.einsum` takes elsewhere; extents that do not fit are reported by the calls."""
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
    try:
        each = {name: algebra_of(value) if name == "algebra" else value for name, value in asked}
        return path_of(notation, filled, [dtype] * len(shapes), device, read_options("einsum", each))
    except WeftError:
        return left_to_right(notation)


def left_to_right(notation: Notation) -> list[Pair]:
    """Contractions of two operands: each of what came before with the next one."""
    terms, steps = list(notation.inputs), []
    left = 0
    for right in range(1, len(terms)):
        rest = (*terms[right + 1 : len(notation.inputs)], notation.output)
        kept = {label for term in rest for label in term}
        both = dict.fromkeys((*terms[left], *terms[right]))
        last = right + 1 == len(notation.inputs)
        middle = notation.output if last else tuple(label for label in both if label in kept)
        steps.append((left, right, Notation((terms[left], terms[right]), middle)))
        left = len(terms)
        terms.append(middle)
    return steps
