"""The derivative of a traced function, traced: torch's autograd runs on the recorded graph, under the recorder.

`pull` and `push` are called by the body of a function that `derived` records. What comes out is a `Pointwise` like
any other: it is fused where it is used, has an identity, and can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from weft.base.arrays import grad_mode, outside_transforms
from weft.errors import FunctionError
from weft.fn.decompositions import BACKWARD, IN_PLACE_OF, SELECTING
from weft.fn.graphs import behind, name_of, output_of, run
from weft.fn.pointwise import Pointwise, RecordedFunction
from weft.fn.record import record
from weft.fn.trace import fusible

_SHAPE = (5, 7)  # of the elements that a derivative is recorded on


def compute(function: Pointwise, arguments: Sequence[Tensor], *, selecting: bool = False) -> tuple[Tensor, ...]:
    """The results of a traced function on tensors that autograd may look at.

    `selecting`: of equal values `maximum` and `minimum` select the first, and not half of each as in torch.
    """
    if not isinstance(function, RecordedFunction):
        raise FunctionError("a function written in Triton has no known derivative: write it with torch operations")

    def call(node: fx.Node, args: Any, kwargs: Any) -> Any:
        name = name_of(node)
        instead = (selecting and SELECTING.get(name)) or IN_PLACE_OF.get(name) or node.target
        return instead(*args, **kwargs)  # type: ignore[operator]

    return run(function.graph, arguments, call)


def pull(
    function: Pointwise,
    arguments: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    *,
    selecting: bool = False,
) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
    """Gradients with respect to each argument, None where there is none, and the function's results.

    A cotangent is of any type; it is converted to its result's, real parts where that is real.
    """
    with grad_mode(True):
        inputs = [_leaf(argument) for argument in arguments]
        results = compute(function, inputs, selecting=selecting)
    pairs = [
        (result, converted(cotangent, result.dtype).expand(result.shape))
        for result, cotangent in zip(results, cotangents, strict=True)
        if cotangent is not None and result.requires_grad
    ]
    wanted = [each for each in inputs if each.requires_grad]
    if not pairs or not wanted:
        return (None,) * len(inputs), results
    found = iter(
        torch.autograd.grad([pair[0] for pair in pairs], wanted, [pair[1] for pair in pairs], allow_unused=True)
    )
    return tuple(next(found) if each.requires_grad else None for each in inputs), results


def push(
    function: Pointwise, arguments: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The tangent of each result, None where it is zero: `pull` is linear in its cotangents, and is pulled back."""
    with grad_mode(True):
        inputs = [_leaf(argument) for argument in arguments]
        results = compute(function, inputs)
        return tuple([_tangent(result, inputs, tangents) for result in results])


def _tangent(result: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor | None:
    if not result.requires_grad:
        return None
    dummy = torch.zeros_like(result).requires_grad_()
    pairs = [(each, to) for each, to in zip(inputs, tangents, strict=True) if to is not None]
    grads = torch.autograd.grad(result, [each for each, _ in pairs], dummy, allow_unused=True, create_graph=True)
    moving = zip(grads, pairs, strict=True)
    kept = [(grad, to) for grad, (_, to) in moving if grad is not None and grad.requires_grad]
    if not kept:
        return None
    (tangent,) = torch.autograd.grad(
        [grad for grad, _ in kept], [dummy], [converted(to, grad.dtype) for grad, to in kept],
        allow_unused=True, retain_graph=True,
    )  # fmt: skip
    return tangent


def derived(
    body: Callable[[Mapping[str, Tensor]], Sequence[Tensor | None]],
    inputs: Mapping[str, torch.dtype],
    hook: str,
    known: Mapping[str, int] | None = None,
) -> tuple[RecordedFunction | None, ...]:
    """Record what `body` makes of tensors by name: a function for each value that it returns, None for None.

    `inputs` are the names and types offered, the main one first; a function reads the main one and those it needs.
    `known` maps an input to the index of the body's result that already holds its value. That input is read instead
    where this spares another one, and the result has no function of its own. The last cast to another type of the
    same kind is left out, as what is summed or stored next is cast there.
    """
    names, known = list(inputs), known or {}
    given: list[Tensor | None] = []

    def call(*tensors: Tensor) -> Any:
        given[:] = body(dict(zip(names, tensors, strict=True)))
        return (*(value for value in given if value is not None), tensors[0])

    graph = _recorded(call, inputs, f"the derivative of {hook}")
    nodes = iter(output_of(graph))
    values = [next(nodes) if value is not None else None for value in given]
    cut = {node: name for name, place in known.items() if (node := values[place]) is not None}
    return tuple(
        None if node is None or at in known.values() else _alone(graph, _uncast(node), names, cut)
        for at, node in enumerate(values)
    )


def recorded(
    body: Callable[[Mapping[str, Tensor]], Sequence[Tensor]], inputs: Mapping[str, torch.dtype], hook: str
) -> RecordedFunction:
    """The values that `body` computes from tensors by name, as one function; a tuple where they are several."""
    names = list(inputs)

    def call(*tensors: Tensor) -> Any:
        found = tuple(body(dict(zip(names, tensors, strict=True))))
        return found if len(found) > 1 else found[0]

    return RecordedFunction(_recorded(call, inputs, hook), names)


def _recorded(call: Callable[..., Any], inputs: Mapping[str, torch.dtype], hook: str) -> fx.Graph:
    with outside_transforms():
        return record(call, list(inputs.values()), _SHAPE, hook=hook, fusible=fusible, decompositions=BACKWARD)


def _alone(graph: fx.Graph, wanted: fx.Node, names: Sequence[str], cut: Mapping[fx.Node, str]) -> RecordedFunction:
    """One value of a graph as a function of what it depends on; nodes of `cut` are inputs where that spares others."""
    offered = dict(zip((node for node in graph.nodes if node.op == "placeholder"), names, strict=True))
    depends, short = behind(wanted), behind(wanted, cut=cut)
    plain = {offered[node] for node in depends if node in offered}
    read = {cut.get(node) or offered[node] for node in short if node in cut or node in offered}
    if plain - set(cut.values()) > read - set(cut.values()):
        depends = short
    else:
        cut, read = {}, plain
    new = fx.Graph()
    places: dict[fx.Node, fx.Node] = {}
    by_name: dict[str, fx.Node] = {}
    for at, (node, name) in enumerate(offered.items()):
        if at == 0 or name in read:
            places[node] = by_name[name] = new.placeholder(f"x{len(by_name)}")
            by_name[name].meta.update(node.meta)
    for node, name in cut.items():
        if node in depends:
            places[node] = _cast(new, by_name[name], node.meta["dtype"])
    for node in graph.nodes:
        if node.op == "call_function" and node in depends and node not in places:
            places[node] = new.node_copy(node, places.__getitem__)
    new.output(places[wanted])
    return RecordedFunction(new, tuple(by_name))


def _cast(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    if node.meta["dtype"] == dtype:
        return node
    made = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
    made.meta.update(dtype=dtype, scalar=False)
    return made


def _uncast(node: fx.Node) -> fx.Node:
    """The value before its last casts, where both types are floating, or both complex."""
    while node.op == "call_function" and node.target is torch.ops.aten._to_copy.default:
        (source,) = node.all_input_nodes
        before, after = source.meta["dtype"], node.meta["dtype"]
        if before.is_complex != after.is_complex or before.is_floating_point != after.is_floating_point:
            break
        node = source
    return node


def _leaf(argument: Tensor) -> Tensor:
    argument = argument.detach()
    return argument.requires_grad_() if argument.is_floating_point() or argument.is_complex() else argument


def converted(cotangent: Tensor, dtype: torch.dtype) -> Tensor:
    """A gradient in the type of the value that it is of: what a real value has no part of is dropped."""
    if cotangent.is_complex() and not dtype.is_complex:
        cotangent = torch.real(cotangent)
    return cotangent if cotangent.dtype == dtype else cotangent.to(dtype)
