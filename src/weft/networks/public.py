"""`network`, and `einsum` of three operands and more: a network that is planned once for operands of these shapes and
types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

import torch

from weft.api.einsum import check_places
from weft.api.entry import contraction
from weft.api.keywords import NetworkKeywords
from weft.base.arguments import addition, describe_many, read_device
from weft.base.arrays import (
    Scaled,
    as_results,
    as_tensor,
    as_tensors,
    is_array,
    outside_inference,
    written,
)
from weft.base.dispatch import as_operation, is_traced, outside_graphs, taken_by
from weft.engine.memo import Memo
from weft.engine.ways import asked
from weft.errors import ArgumentError, ShapeError, call_context
from weft.networks.derivatives import Contractions
from weft.networks.graph import read_equation
from weft.networks.network import Network
from weft.networks.operands import check_signs
from weft.networks.plan import NetworkPlan, is_ordered, plan_network, read_settings, settings_of
from weft.planner.options import LAST, Options
from weft.planner.request import HOOKS
from weft.plans.intermediates import step_options
from weft.plans.keywords import read_options
from weft.spec import Notation
from weft.spec.arguments import read_flag, read_sequence
from weft.spec.dtypes import read_dtype
from weft.spec.memory import overlaps_itself


@overload
def network(
    equation: Any, *operands: Any, reduce: Mapping[str, Any], **keywords: Unpack[NetworkKeywords]
) -> Network[Any]: ...
@overload
def network(
    equation: Any, *operands: Any, strip_exponent: Literal[True], **keywords: Unpack[NetworkKeywords]
) -> Network[Scaled]: ...
@overload
def network(
    equation: Any, *operands: Any, strip_exponent: Literal[False] = False, **keywords: Unpack[NetworkKeywords]
) -> Network: ...
@overload
def network(
    equation: Any, *operands: Any, strip_exponent: bool, **keywords: Unpack[NetworkKeywords]
) -> Network[Any]: ...
@outside_graphs
def network(
    equation: Any,
    *operands: Any,
    output: Any = None,
    optimize: Any = "auto",
    slices: Any = (),
    functions: Mapping[Any, Any] | None = None,
    constants: Sequence[int] = (),
    reduce: Mapping[str, Any] | None = None,
    dtype: Any = None,
    device: Any = None,
    **keywords: Any,
) -> Network[Any]:
    """A network of any number of tensors, planned once: ``net = weft.network("ab,bc,cd->ad", A, B, C); net(A, B, C)``.

    `equation` is einsum text, any character being a label, or one sequence of hashable labels for each operand, with
    the result's labels in `output` (by default those that stand once). A label may stand in any number of operands, and
    twice in one. `operands` are tensors, or shapes with a `dtype` (default: torch's) and a `device` (default: the CPU).

    `optimize`: ``"auto"`` compares paths of opt_einsum and cotengra by weft's own count of bytes, flops and launches;
    ``"greedy"``, ``"optimal"``, ``"auto-hq"`` and the other words of both libraries; a path, as `opt_einsum` writes it;
    a tree or an optimizer of cotengra.
    `memory_limit`: most bytes, or text such as ``"8GB"``, that a call may hold beyond its operands; slices are found
    for it, as few as fit, or `WorkspaceError` says the least that would do. Kernels pack operands in what is left of
    it, or in 4 MiB where less is. `slices`: labels whose indices are taken one at a time; with a `memory_limit` only as
    many labels as it needs, and as many indices at a time as fit.

    `functions`: ``{node: fn}``, functions of intermediates, fused into the step that makes them. A node is its number
    (operands come first, then results in the order of the path), or the labels of one intermediate.
    `reduce`: further results that keep some of the result's modes, by name, as for `weft.contract`: ``{"peak": ("a",
    "max"), "norm": ("a", "sum", torch.square)}``; calls then return ``(result, found)``. They are of the last step's
    result, which is read once more; for one of an intermediate make the steps behind it a network of their own.
    `constants`: places of operands that stay. They are given here, left out of calls, and contracted once for as long
    as nobody writes them.
    `strip_exponent`: each intermediate is scaled by a power of two, and calls return ``(mantissa, exponent)``, two
    tensors, the value being ``mantissa * 10**exponent``.
    `reuse`: every intermediate is kept, and a call repeats only the steps above operands that changed.
    What fused optimizers, ``tensor.data``, NumPy or kernels of other libraries write into either is not seen:
    ``net.refresh()`` says it.
    `check_finite`: `AccuracyError` names the step that makes NaN or Inf; it waits for the device after each.
    `progress`: a bar while there are many slices. `cuda_graph`: whether calls on a GPU are replayed as a CUDA graph;
    by default where launches may take longer than their kernels: those of up to some 30 us a step.
    `out_dtype`, `precision`, `accumulate`, `algebra`, `backend`, `specialize`, `tune`, `promote`, `deterministic`: of
    every step, as for `weft.contract`; `out_dtype` of the last one.

    Raises `NotationError`, `ShapeError`, `DTypeError`, `ArgumentError`, `UnsupportedError` or `WorkspaceError`; nothing
    is allocated then.

    >>> import torch, weft
    >>> A, B, C = torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, 5)
    >>> net = weft.network("ab,bc,cd->ad", A, B, C)
    >>> net(A, B, C)[0, 0]
    tensor(12.)
    """
    with call_context(lambda: describe_many("network", equation, operands)):
        promote = read_flag("promote", keywords.get("promote", False))
        shapes, types, given = _read_operands(operands, dtype, device, promote)
        place = _device_of(given, device)
        settings = read_settings(place, keywords)
        fixed = _constants(constants, given)
        plan = plan_network(
            read_equation(equation, output), shapes, types, settings, optimize, slices, functions, fixed
        )
        check_signs(plan.graph, fixed)
        return Network(plan, fixed, reduce)


def _read_operands(
    operands: Sequence[Any], dtype: Any, device: Any, promote: bool
) -> tuple[list[tuple[int, ...]], list[torch.dtype], list[torch.Tensor | None]]:
    """Shapes, types, and the tensors among the operands."""
    if not operands:
        raise ArgumentError("network needs operands after the equation: tensors or shapes")
    plain = read_dtype("dtype", dtype) if dtype is not None else torch.get_default_dtype()
    is_shape = [isinstance(one, (tuple, list)) and not is_array(one) for one in operands]
    for at, one in enumerate(operands):
        if is_shape[at] and not all(isinstance(extent, int) and extent >= 0 for extent in one):
            raise ArgumentError(f"operand {at} is a tensor or a shape, not {one!r}")
    arrays = [one for one, shape in zip(operands, is_shape, strict=True) if not shape]
    with outside_inference():  # constants are kept
        tensors = iter(as_tensors(arrays, promote)[0] if arrays else ())
    given = [None if shape else next(tensors) for shape in is_shape]
    shapes = [tuple(one if tensor is None else tensor.shape) for one, tensor in zip(operands, given, strict=True)]
    types = [plain if tensor is None else tensor.dtype for tensor in given]
    return shapes, types, given


def _device_of(given: Sequence[torch.Tensor | None], device: Any) -> torch.device:
    found = {at: tensor.device for at, tensor in enumerate(given) if tensor is not None}
    asked = read_device(device) if device is not None else next(iter(found.values()), torch.device("cpu"))
    for at, place in found.items():
        if place != asked:
            raise ArgumentError(f"operand {at} is on {place}, the network is on {asked}")
    return asked


def _constants(constants: Sequence[int], given: Sequence[torch.Tensor | None]) -> dict[int, torch.Tensor]:
    found = {}
    for at in read_sequence("constants", constants):
        if not isinstance(at, int) or not 0 <= at < len(given):
            raise ArgumentError(f"constants are places of operands, 0 to {len(given) - 1}, not {at!r}")
        tensor = given[at]
        if tensor is None:
            raise ArgumentError(f"operand {at} is a constant: its tensor is needed, not only its shape")
        found[at] = tensor
    return found


_NETWORKS = Memo("einsum: networks", 1024)  # plans, by notation, shapes, types and keywords
# Further options of the last step: a call with any of them has no replay of its own.
_LAST = tuple(name for name in LAST if name not in ("out", "out_dtype", "return_arg"))
EPILOGUE = HOOKS.index("epilogue")
Pair = tuple[int, int, Notation]  # which two meet, operands first and then results, and what is made of them


def sum_of_many(
    notation: Notation, tensors: list[torch.Tensor], keywords: dict[str, Any], order: Any
) -> tuple[Any, Any]:
    """The sum of three operands and more, and what makes that of later calls, where they need not be read."""
    traced = is_traced(tensors)
    bare = not (traced or asked(*tensors))
    known = _met_by_kernel(notation, tensors, keywords, order) if bare else None
    return _run(notation, tensors, keywords, order, traced, bare) if known is None else (known(*tensors), known)


def _met_by_kernel(
    notation: Notation, tensors: list[torch.Tensor], keywords: dict[str, Any], order: Any
) -> Callable[..., torch.Tensor] | None:
    """The sum of three tensors in one kernel, where that serves, as a function of them."""
    plain = keywords.keys() <= {"precision"} and order == "auto"
    if not plain or len(tensors) != 3 or any(map(torch.is_conj, tensors)):
        return None
    return as_operation("sum of three")(notation, tensors, keywords.get("precision"))


def _run(
    notation: Notation, tensors: list[torch.Tensor], keywords: dict[str, Any], order: Any, traced: bool, bare: bool
) -> tuple[Any, Any]:
    """The result, and what makes that of later calls, where they need not be read.

    `traced`: torch sees the call as operations; `bare`: it does not, and no derivative is requested.
    """
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
    if plain and bare:
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
    return _NETWORKS.made(key, make) if kept else make()


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


taken_by("sum of many", sum_of_many)
