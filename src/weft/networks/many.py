"""`einsum` of three operands and more: a network that is planned once for operands of these shapes and types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import is_
from typing import Any

import torch

from weft.api.autocast import with_autocast
from weft.api.einsum import (
    check_functions,
    check_places,
    describe_einsum,
    einsum_of_few,
    read_einsum,
    read_order,
)
from weft.api.entry import contraction
from weft.base.arrays import (
    any_autocast,
    as_results,
    as_tensor,
    as_tensors,
    is_subclass,
    returned,
    without_neg,
    written,
)
from weft.base.dispatch import as_operation, is_traced
from weft.base.factors import addition
from weft.engine.calls import CALLS
from weft.engine.memo import Memo
from weft.errors import ShapeError, call_context
from weft.networks.checks import check_signs
from weft.networks.derivatives import Contractions
from weft.networks.network import Network
from weft.networks.plan import NetworkPlan, plan_network
from weft.networks.settings import is_ordered, settings_of
from weft.planner.options import LAST, Options
from weft.planner.request import HOOKS
from weft.plans.derivatives import asked
from weft.plans.intermediates import step_options
from weft.plans.keywords import read_options, refuse_unknown
from weft.spec import Notation
from weft.spec.arguments import read_flag
from weft.spec.memory import overlaps_itself

_NETWORKS = Memo("einsum: networks", 1024)  # plans, by notation, shapes, types and keywords
# Further options of the last step: a call with any of them has no replay of its own.
_LAST = tuple(name for name in LAST if name not in ("out", "out_dtype", "return_arg"))
EPILOGUE = HOOKS.index("epilogue")
Pair = tuple[int, int, Notation]  # which two meet, operands first and then results, and what is made of them


def einsum_of_many(arguments: tuple[Any, ...], keywords: dict[str, Any], given: Sequence[Any], place: Any) -> Any:
    """`weft.einsum` of any number of operands, read in full; `place`: where a call of these tensors is kept."""
    with call_context(lambda: describe_einsum(arguments)):
        refuse_unknown("einsum", keywords)
        order: Any = "auto"
        if "optimize" in keywords:
            order = read_order(keywords["optimize"])
            keywords = {name: value for name, value in keywords.items() if name != "optimize"}
        notation, operands = read_einsum(arguments)
        if len(operands) < 3:
            return einsum_of_few(arguments, keywords, given, place)
        if any_autocast():
            keywords = with_autocast(keywords, operands[0], operands[1], keywords.get("out"))
        found, source = as_tensors(operands, read_flag("promote", keywords.get("promote", False)))
        tensors = [without_neg(tensor) for tensor in found]
        check_functions(keywords, len(tensors))
        known = _met_by_kernel(notation, tensors, keywords, order)
        result = None if known is None else known(*tensors)
        if known is None:
            result, known = _run(notation, tensors, keywords, order)
    if place is not None and not is_subclass(source) and all(map(is_, tensors, given)):
        CALLS.keep(place, given, known)
    return returned(source, keywords.get("out"), result, False)


def _met_by_kernel(
    notation: Notation, tensors: list[torch.Tensor], keywords: dict[str, Any], order: Any
) -> Callable[..., torch.Tensor] | None:
    """The sum of three tensors in one kernel, where that serves, as a function of them."""
    plain = keywords.keys() <= {"precision"} and order == "auto"
    if not plain or len(tensors) != 3 or is_traced(tensors) or asked(*tensors) or any(map(torch.is_conj, tensors)):
        return None
    found: Callable[..., torch.Tensor] | None = as_operation("sum of three")(
        notation, tensors, keywords.get("precision")
    )
    return found


def _run(notation: Notation, tensors: list[torch.Tensor], keywords: dict[str, Any], order: Any) -> tuple[Any, Any]:
    """The result, and what makes that of later calls, where they need not be read."""
    out, said = as_results(keywords.get("out")), keywords.get
    options = read_options("einsum", keywords, out)
    checked, places = (read_flag(name, said(name, False)) for name in ("validate", "return_arg"))
    several = isinstance(out, tuple) or isinstance(options.out_dtype, tuple)
    last = places or any(said(name) is not None for name in _LAST)
    plain = not (last or several or checked) and options.workspace_limit is None
    each = replace(options.of_steps(), workspace_limit=None, schedule=None)
    if plain:
        each = replace(each, out_dtype=options.out_dtype)
    network = _network(notation, tensors, each, order)
    plan = network.plan
    _check(plan.graph.shape, tensors, out)
    check_signs(plan.graph, dict(enumerate(tensors)))
    unsigned = plan.graph.early.unsigned  # signs are looked at in every call
    traced = is_traced(tensors)
    if plain and not (traced or asked(*tensors)):
        program = network.program(tensors, keep=False)
        into = out if isinstance(out, torch.Tensor) else network.place()
        program.run(tensors, into)
        written((into,))
        return into, None if unsigned else program
    steps = Contractions(plan, options=options)
    if plain and out is None and not traced:
        return steps(*tensors), None if unsigned else steps
    c, beta = addition(said("c"), said("beta"), out)
    c = None if c is None else as_tensor("c", c, options.promote)
    left, right = steps.last_two(steps.views(tensors), checked)
    free = out is None and options.out_dtype is None
    if free and options.functions[EPILOGUE] is None:
        options, free = replace(options, out_dtype=plan.dtype), False
    result = contraction(
        _last_terms(plan), left, right, step_options(options, left.dtype, right.dtype, plan.asked.halves),
        c, said("alpha", 1.0), beta, out, return_arg=places, validate=checked,
    )  # fmt: skip
    return (first_in(plan.dtype, result) if free else result), None


def _last_terms(plan: NetworkPlan) -> Any:
    """The last step by the caller's labels, by which operands of functions are named."""
    step, names = plan.tree.steps[-1], plan.graph.names
    return tuple([tuple([names[label] for label in plan.orders[node]]) for node in (step.left, step.right, step.node)])


def _network(notation: Notation, tensors: list[torch.Tensor], options: Options, order: Any) -> Network:
    """The plan for these operands."""
    device = tensors[0].device
    for at, tensor in enumerate(tensors):
        if tensor.device != device:
            raise ShapeError(f"operand 0 is on {device}, operand {at} is on {tensor.device}")
    return network_of(notation, [tuple(x.shape) for x in tensors], [x.dtype for x in tensors], device, options, order)


def network_of(
    notation: Notation, shapes: Sequence[tuple[int, ...]], types: Sequence[torch.dtype], device: torch.device,
    options: Options, order: Any = "auto",
) -> Network:  # fmt: skip
    """The network for operands of these shapes; `options` are those of each step, and the result's type."""
    said = options.said()

    def make() -> Network:
        return Network(plan_network(notation, shapes, types, settings_of(device, options), order))

    kept = said is not None and not is_ordered(options.algebra) and isinstance(order, (str, tuple))
    key = (notation, tuple(shapes), tuple(types), device, said, order)
    known: Network = _NETWORKS.made(key, make) if kept else make()
    return known


def path_of(
    notation: Notation, shapes: Sequence[tuple[int, ...]], types: Sequence[torch.dtype], device: torch.device,
    options: Options,
) -> list[Pair]:  # fmt: skip
    """The steps that `weft.einsum` takes for operands of these shapes, types and device; `options` are theirs."""
    plan = network_of(notation, shapes, types, device, options).plan
    names = plan.graph.names
    terms = list(notation.inputs)
    places = {node: node for node in range(len(terms))}  # of nodes, among operands and results as steps run
    found: list[Pair] = []
    for step in plan.tree.steps:
        last = step.node == plan.tree.root
        made = notation.output if last else tuple(names[label] for label in plan.orders[step.node])
        left, right = places[step.left], places[step.right]
        found.append((left, right, Notation((terms[left], terms[right]), made)))
        places[step.node] = len(terms)
        terms.append(made)
    return found


def _check(shape: tuple[int, ...], tensors: list[torch.Tensor], out: Any) -> None:
    """The places of the result fit, and overlap nothing."""
    places = out if isinstance(out, tuple) else () if out is None else (out,)
    check_places(places, tensors)
    for place in places:
        if tuple(place.shape) != shape:
            raise ShapeError(f"out has shape {tuple(place.shape)}, the result has {shape}")
        if overlaps_itself(place):
            raise ShapeError("out overlaps itself in memory: two elements of the result would share a place")


def first_in(dtype: torch.dtype, found: Any) -> Any:
    """D of an epilogue in its type, as if intermediates were of the operands' type, where that is float16."""
    d = found[0] if isinstance(found, tuple) else found
    if dtype != torch.float16 or d.dtype != torch.float32:
        return found
    return (d.to(dtype), *found[1:]) if isinstance(found, tuple) else d.to(dtype)
