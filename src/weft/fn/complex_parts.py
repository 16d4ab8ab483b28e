"""A function of complex values as a function of their real and imaginary parts: Triton has no complex types.

The recorded graph is run on pairs of real tensors, with each complex operation written in real ones
(`complex_pairs`). That run is recorded in its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from weft.errors import UnsupportedError
from weft.fn.complex_pairs import OPERATIONS, REAL_OF, Operation, Pair, as_pair, as_tensor
from weft.fn.graphs import name_of, output_of, results_of, run


def split_complex(graph: fx.Graph) -> Callable[..., Any]:
    """The graph as a function of real values. Each complex input becomes two: its real part, then its imaginary part.

    A complex result becomes two results in the same order. Raises `UnsupportedError` for an operation that has no
    real form here.
    """
    for node in graph.nodes:
        if node.op == "call_function" and any(each.meta["dtype"].is_complex for each in (node, *node.all_input_nodes)):
            _operation_of(node)

    def of_parts(*parts: Tensor) -> Any:
        given = iter(parts)
        complexes = [node.meta["dtype"].is_complex for node in graph.nodes if node.op == "placeholder"]
        values = run(graph, [Pair(next(given), next(given)) if both else next(given) for both in complexes], _computed)
        pairs = zip(results_of(graph), values, strict=True)
        found = tuple([part for node, value in pairs for part in _yielded(value, node.meta["dtype"], parts[0])])
        return found if len(found) > 1 or isinstance(output_of(graph), tuple) else found[0]

    return of_parts


def _yielded(value: Any, dtype: torch.dtype, like: Tensor) -> list[Tensor]:
    """A real value, or both parts of a complex one, in the type that torch gives the result."""
    parts = as_pair(value) if dtype.is_complex else (value,)
    return [as_tensor(part, like, REAL_OF.get(dtype, dtype)) for part in parts]


def _computed(node: fx.Node, args: Any, kwargs: Any) -> Any:
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
