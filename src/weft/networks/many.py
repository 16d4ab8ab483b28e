"""`einsum` of three operands and more: planned once, found again by one look-up, replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, NamedTuple

import torch

from weft.api.autocast import with_autocast
from weft.api.einsum import check_functions, describe_einsum, einsum, einsum_words, read_einsum, read_order
from weft.api.entry import contraction, words_of
from weft.base.arrays import (
    any_autocast,
    as_results,
    as_tensor,
    as_tensors,
    is_subclass,
    returned,
    without_memory,
    without_neg,
    written,
)
from weft.base.dispatch import as_operation, is_traced
from weft.base.factors import addition
from weft.engine.calls import CALLS
from weft.engine.memo import Memo
from weft.errors import ShapeError, call_context
from weft.networks.cost import model, precision_word
from weft.networks.graph import graph_of
from weft.networks.network import Network
from weft.networks.path import find_path
from weft.networks.program import NetworkProgram
from weft.networks.settings import check_signs, early_of, is_ordered, settings_of
from weft.planner.options import LAST, Options
from weft.planner.request import HOOKS
from weft.plans.derivatives import asked
from weft.plans.intermediates import intermediate_type, step_options
from weft.plans.keywords import read_options, refuse_unknown
from weft.spec import Notation
from weft.spec.arguments import read_flag
from weft.spec.memory import overlaps_itself, share_memory

_NETWORKS = Memo("einsum: networks", 1024)  # plans, by notation, shapes, types and keywords
# Further options of the last step: a call with any of them has no replay of its own.
_LAST = tuple(name for name in LAST if name not in ("out", "out_dtype", "return_arg"))
EPILOGUE = HOOKS.index("epilogue")


class Known(NamedTuple):
    """The network and the program that were found for a call."""

    network: Network
    program: NetworkProgram
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        place = torch.empty(self.shape, dtype=self.dtype, device=self.program.device)
        self.program.run(tensors, place)
        return place


def einsum_of_many(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`weft.einsum` of any number of operands."""
    words, given = einsum_words(arguments, keywords)
    known, place = (None, None) if words is None else CALLS.find(words, given)
    if known is not None and (found := known(*given)) is not None:
        return found
    order: Any = "auto"
    if "optimize" in keywords:
        with call_context(lambda: describe_einsum(arguments)):
            order = read_order(keywords["optimize"])
        keywords = {name: value for name, value in keywords.items() if name != "optimize"}
    with call_context(lambda: describe_einsum(arguments)):
        refuse_unknown("einsum", keywords)
        notation, operands = read_einsum(arguments)
        if len(operands) < 3:
            return einsum(*arguments, **keywords)
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


def _run(
    notation: Notation, tensors: list[torch.Tensor], keywords: dict[str, Any], order: Any
) -> tuple[Any, Any]:
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
    _check(network, tensors, out)
    check_signs(network.graph, dict(enumerate(tensors)))
    unsigned = network.graph.early.unsigned  # signs are looked at in every call
    if plain and not (is_traced(tensors) or asked(*tensors)):
        program = network.program(tensors, keep=False)
        place = out if isinstance(out, torch.Tensor) else network.place()
        program.run(tensors, place)
        written((place,))
        known = Known(network, program, tuple(place.shape), place.dtype)
        return place, None if unsigned or any(map(torch.is_conj, tensors)) else known
    if plain and out is None and not is_traced(tensors):
        steps = KnownSteps(network, tensors, options)
        return steps(*tensors), None if unsigned else steps
    c, beta = addition(said("c"), said("beta"), out)
    c = None if c is None else as_tensor("c", c, options.promote)
    factors = c, said("alpha", 1.0), beta
    return _one_by_one(network, tensors, options, factors, out, (places, checked)), None


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
    """The plan for operands of these shapes; `options` are those of each step, and the result's type."""
    ordered, said = is_ordered(options.algebra), options.said()

    def make() -> Network:
        settings = settings_of(device, options)
        graph = graph_of(notation, shapes, ordered=ordered, early=early_of(types, options))
        found = find_path(graph, order, model(settings.target, types[0], precision_word(options.precision)))
        return Network(graph, types, settings, found)

    kept = said is not None and not ordered and isinstance(order, (str, tuple))
    key = (notation, tuple(shapes), tuple(types), device, said, order)
    known: Network = _NETWORKS.made(key, make) if kept else make()
    return known


def _check(network: Network, tensors: list[torch.Tensor], out: Any) -> None:
    places = out if isinstance(out, tuple) else () if out is None else (out,)
    for at, tensor in enumerate(tensors):
        # The last step sees but one of them; what has no memory overlaps nothing.
        if any(not without_memory(tensor) and share_memory(place, tensor) for place in places):
            raise ShapeError(f"out overlaps operand {at} in memory: the result would overwrite what is to be read")
    for place in places:
        if tuple(place.shape) != network.graph.shape:
            raise ShapeError(f"out has shape {tuple(place.shape)}, the result has {network.graph.shape}")
        if overlaps_itself(place):
            raise ShapeError("out overlaps itself in memory: two elements of the result would share a place")


class KnownSteps:
    """The steps of a call whose operands may require gradients: contractions that are known, one after the other."""

    def __init__(self, network: Network, tensors: Sequence[torch.Tensor], options: Options) -> None:
        scheme, each = network.scheme, options.of_steps()
        self._odd = [(at, one) for at, one in enumerate(scheme.tree.graph.operands) if not one.plain]
        self._steps, types = [], {at: tensor.dtype for at, tensor in enumerate(tensors)}
        for step in scheme.tree.steps:
            pair, halves = (types[step.left], types[step.right]), scheme.asked.halves
            if step.node == scheme.tree.root:
                asked, kind = replace(options, out_dtype=None), network.dtype
            else:
                asked, kind = each, intermediate_type(scheme.dtypes[step.node], options.out_dtype, options.accumulate)
            terms = (scheme.orders[step.left], scheme.orders[step.right], scheme.orders[step.node])
            how = replace(step_options(asked, *pair, halves), out_dtype=kind)
            self._steps.append((step, terms, how, words_of(terms, how)))
            types[step.node] = kind

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        values: dict[int, Any] = dict(enumerate(tensors))
        for at, operand in self._odd:
            values[at] = operand.view(tensors[at])
        for step, terms, how, words in self._steps:
            a, b, found = values[step.left], values[step.right], None
            if words is not None and (known := CALLS.find(words, (a, b))[0]) is not None:
                found = known.run(a, b, None, 1.0, 1.0, None, ())
            values[step.node] = contraction(terms, a, b, how) if found is None else found
        result: torch.Tensor = values[step.node]
        return result


def _one_by_one(
    network: Network, tensors: list[torch.Tensor], options: Options, factors: tuple[Any, Any, Any], out: Any,
    flags: tuple[bool, bool],
) -> Any:  # fmt: skip
    """Steps as contractions of their own, where the last one has further options: C, alpha, beta; indices, a check."""
    scheme, (return_arg, validate) = network.scheme, flags
    values: list[Any] = list(tensors) + [None] * len(scheme.tree.steps)
    for leaf, operand in enumerate(scheme.tree.graph.operands):
        values[leaf] = operand.view(tensors[leaf])
    each, halves = options.of_steps(), scheme.asked.halves
    for step in scheme.tree.steps:
        terms = (scheme.orders[step.left], scheme.orders[step.right], scheme.orders[step.node])
        left, right = values[step.left], values[step.right]
        if step.node == scheme.tree.root:
            names = network.graph.names  # operands of functions are named by the caller's labels
            called = tuple(tuple(names[label] for label in term) for term in terms)
            free = out is None and options.out_dtype is None
            if free and options.functions[EPILOGUE] is None:
                options, free = replace(options, out_dtype=network.dtype), False
            asked_of_last = step_options(options, left.dtype, right.dtype, halves)
            found = contraction(
                called, left, right, asked_of_last, *factors, out, return_arg=return_arg, validate=validate
            )
            return first_in(network.dtype, found) if free else found
        kept = intermediate_type(scheme.dtypes[step.node], options.out_dtype, options.accumulate)
        inner = replace(step_options(each, left.dtype, right.dtype, halves), out_dtype=kept)
        values[step.node] = contraction(terms, left, right, inner, validate=validate)
    raise AssertionError("a network of three operands has a last step")


def first_in(dtype: torch.dtype, found: Any) -> Any:
    """D of an epilogue in its type, as if intermediates were of the operands' type, where that is float16."""
    d = found[0] if isinstance(found, tuple) else found
    if dtype != torch.float16 or d.dtype != torch.float32:
        return found
    return (d.to(dtype), *found[1:]) if isinstance(found, tuple) else d.to(dtype)
