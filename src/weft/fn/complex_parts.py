"""A function of complex values as a function of their real and imaginary parts: Triton has no complex types.

The recorded graph is run on pairs of real tensors, with each complex operation written in real ones
(`complex_pairs`). That run is recorded in its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, fx

from weft.errors import UnsupportedError
from weft.fn.body import name_of, output_of, results_of
from weft.fn.complex_pairs import OPERATIONS, REAL_OF, Operation, Pair, as_pair, as_tensor


def split_complex(graph: fx.Graph) -> Callable[..., Any]:
    """The graph as a function of real values. Each complex input becomes two: its real part, then its imaginary part.

    A complex result becomes two results in the same order. Raises `UnsupportedError` for an operation that has no
    real form here.
    """
    for node in graph.nodes:
        if node.op == "call_function" and any(each.meta["dtype"].is_complex for each in (node, *node.all_input_nodes)):
            _operation_of(node)

    def run(*parts: Tensor) -> Any:
        given = iter(parts)
        known: dict[fx.Node, Any] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                value = next(given)
                known[node] = Pair(value, next(given)) if node.meta["dtype"].is_complex else value
            elif node.op == "call_function":
                known[node] = _computed(node, known)
        found = tuple(part for node in results_of(graph) for part in _yielded(node, known, parts[0]))
        return found if len(found) > 1 or isinstance(output_of(graph), tuple) else found[0]

    return run


def _yielded(node: fx.Node, known: dict[fx.Node, Any], like: Tensor) -> tuple[Tensor, ...]:
    """A real value, or both parts of a complex one, in the type that torch gives the result."""
    dtype = node.meta["dtype"]
    value = as_pair(known[node]) if dtype.is_complex else (known[node],)
    return tuple(as_tensor(part, like, REAL_OF.get(dtype, dtype)) for part in value)


def _computed(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    dtype = node.meta["dtype"]
    if not dtype.is_complex and not any(isinstance(value, Pair) for value in (*args, *kwargs.values())):
        return node.target(*args, **kwargs)  # type: ignore[operator]
    value = _operation_of(node)(*args, **{key: each for key, each in kwargs.items() if key in ("alpha", "dtype")})
    if not dtype.is_complex:
        return value
    return Pair(*(part.to(REAL_OF[dtype]) if isinstance(part, Tensor) else part for part in as_pair(value)))


def _operation_of(node: fx.Node) -> Operation:
    if name_of(node) not in OPERATIONS:
        raise UnsupportedError(f"{name_of(node)} of complex values does not run on the GPU yet")
    return OPERATIONS[name_of(node)]
