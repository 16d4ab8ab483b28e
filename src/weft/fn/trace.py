"""From a user's function to a `Pointwise`, again where the function may have changed; and from one to its derivative.

A derivative is traced: torch's autograd runs on the recorded graph, under the recorder. `pull` and `push` are called by
the body of a function that `derived` records. What comes out is a `Pointwise` like any other: it is fused where it is
used, has an identity, and can be differentiated again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, fx

from weft.base.arrays import grad_mode, outside_transforms
from weft.base.caches import BoundedCache
from weft.errors import FunctionError
from weft.fn import binding
from weft.fn.decompositions import BACKWARD, DECOMPOSITIONS, IN_PLACE_OF, SELECTING
from weft.fn.fingerprint import fingerprint, fingerprints
from weft.fn.graphs import behind, canonical, name_of, output_of, run
from weft.fn.operations import FUSED
from weft.fn.pointwise import Pointwise, RecordedFunction, is_triton_function, triton_function
from weft.fn.record import record
from weft.fn.reductions import REDUCE, SHAPES

#: Operations on complex values that real ones do not need; the CPU runs them.
_COMPLEX = frozenset({"conj_physical", "real", "imag", "complex", "polar", "angle", "log_sigmoid"})

_traces = BoundedCache(1024)
_SHAPE = (5, 7)  # of the elements that a derivative is recorded on


def trace(
    fn: Callable[..., Any], dtypes: Sequence[torch.dtype], *, names: Sequence[str] = (), hook: str = "function",
    reduces: bool = False,
) -> Pointwise:  # fmt: skip
    """Record `fn` for elements of those dtypes.

    `fn` is ordinary Python on torch operations: a function, a built-in, a `functools.partial`, an `nn.Module` without
    parameters, any callable; or a `@triton.jit` function, which is taken as it is. Its first parameter is the value;
    `names` are further parameters that tensors are passed to. `dtypes` are the value's and then theirs. Python numbers
    that it closes over, reads from globals or gets by default are baked in. It runs twice on fake tensors, unless an
    earlier trace is known to hold still (`fingerprint`). It may change its argument in place: the copy it is given.

    A `Pointwise` for elements of these dtypes is returned as it is.

    `hook` names the argument in messages (`"a_fn"`). `reduces` lets it reduce over modes (`weft.fn.reductions`).
    Raises `FunctionError` for what is not pointwise, closes over tensors, reads values into Python or depends on its
    argument's shape.
    """
    dtypes, names = tuple(dtypes), tuple(names)
    if len(dtypes) != 1 + len(names):
        parameters = ", ".join(("value", *names))
        raise FunctionError(f"{hook}: parameters {parameters} need as many dtypes, not {len(dtypes)}")
    if not callable(fn):
        raise FunctionError(f"{hook}: {type(fn).__name__} is not a function")
    if isinstance(fn, Pointwise) and fn.dtypes == dtypes and fn.inputs[1:] == names:
        return fn
    print_of_fn = fingerprint(fn)
    if print_of_fn is None:
        return _trace(fn, dtypes, names, hook, reduces)
    key = (print_of_fn, dtypes, names, reduces)
    traced: Pointwise = _traces.made(key, lambda: _trace(fn, dtypes, names, hook, reduces))
    return traced


def _trace(
    fn: Callable[..., Any], dtypes: tuple[torch.dtype, ...], names: tuple[str, ...], hook: str, reduces: bool
) -> Pointwise:
    first = _check_parameters(fn, names, hook)
    if is_triton_function(fn):
        return triton_function(fn, first, names, dtypes)
    if isinstance(fn, torch.nn.Module):
        _check_module(fn, hook)

    def call(value: torch.Tensor, *others: torch.Tensor) -> Any:
        return fn(value, **dict(zip(names, others, strict=True)))

    def allowed(name: str) -> bool:
        return fusible(name) or (reduces and name == str(REDUCE))

    graph, other = (record(call, dtypes, shape, hook=hook, fusible=allowed, detaches=True) for shape in SHAPES)
    function = RecordedFunction(graph, (first, *names))
    if function.identity != canonical(other):
        raise FunctionError(
            f"{hook}: the function does different things for different shapes of its argument (or from call to call); "
            "it is given blocks of elements, whose shape means nothing"
        )
    return function


def fusible(name: str) -> bool:
    """Whether an aten operation of that name may stand in a recorded function."""
    return name in FUSED or name in DECOMPOSITIONS or name in _COMPLEX


def _bare(signature: inspect.Signature) -> inspect.Signature:
    """The signature without its types, for messages."""
    empty = inspect.Signature.empty
    parameters = [each.replace(annotation=empty) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=empty)


def _check_parameters(fn: Callable[..., Any], names: tuple[str, ...], hook: str) -> str:
    """Name of the first parameter; refuses names that the function does not have and parameters left without value."""
    signature = binding.signature(fn)
    if signature is None:
        return "value"
    takes = f"the function takes {_bare(signature)}"
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        for name in names:
            if name not in signature.parameters:
                raise FunctionError(f"{hook}: no parameter is called '{name}'; {takes}")
    try:
        signature.bind(None, **dict.fromkeys(names))
    except TypeError as error:
        given = f" and then {', '.join(names)} by name" if names else " alone (more comes by operands= and indices=)"
        raise FunctionError(f"{hook}: {error}; {takes}, and is given the value{given}") from None
    parameter = next(iter(signature.parameters.values()))
    return "value" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name


def _check_module(module: torch.nn.Module, hook: str) -> None:
    held = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    if held:
        raise FunctionError(
            f"{hook}: the module {type(module).__name__} closes over tensors ({', '.join(held)}); "
            "write it as a function and pass them by operands="
        )


Traced = TypeVar("Traced", bound=Hashable)
_REMEMBERED = 64


class Watched(Generic[Traced]):
    """`now()` is what `trace` makes of the functions as they are, found again where they are known to be as before."""

    def __init__(self, functions: tuple[Callable[..., Any] | None, ...], trace: Callable[[], Traced]) -> None:
        self._functions, self._trace = functions, trace
        self._known = BoundedCache(_REMEMBERED)
        self._latest: tuple[Hashable, Traced] | None = None  # mostly they are as they were
        self._last: Traced | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Watched, (self._functions, self._trace)

    def changed(self) -> bool:
        """Whether that is something else than when this was last asked; True at first."""
        last, self._last = self._last, self.now()
        return self._last != last

    def now(self) -> Traced:
        prints, latest = fingerprints(self._functions), self._latest
        if latest is not None and latest[0] == prints:
            return latest[1]
        if prints is None:
            return self._trace()
        found: Traced = self._known.made(prints, self._trace)
        self._latest = prints, found
        return found


# -- derivatives -------------------------------------------------------------------------------------------------------


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
