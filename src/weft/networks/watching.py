"""The functions that a network is made of, which may compute something else from call to call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch

from weft.algebra import NAMED, Algebra
from weft.errors import WeftError
from weft.fn import trace
from weft.fn.watched import Watched
from weft.networks.planned import Planned


def watched(network: Planned) -> Watched[Hashable] | None:
    """The watched functions: of the network's nodes, and of an algebra of the caller's; None where there are none."""
    algebra = network.settings.options.algebra
    if algebra is None or NAMED.get(algebra.name) is algebra:
        algebra = None
    if algebra is None and not network.functions:
        return None
    parts = () if algebra is None else (algebra.combine, algebra.reduce)
    functions = {node: (function, network.dtypes[node]) for node, function in network.functions.items()}
    found = Watched((*network.functions.values(), *parts), partial(_identity, functions, algebra, network.dtype))
    found.changed()  # from here on
    return found


def _identity(
    functions: dict[int, tuple[Callable[..., Any], torch.dtype]], algebra: Algebra | None, dtype: torch.dtype
) -> Hashable:
    """The computations of functions and algebra. One that is refused is so where its step is planned, in the words of
    that place."""
    found: list[Hashable] = []
    for function, of in functions.values():
        try:
            found.append(trace(function, (of,)))
        except WeftError:
            found.append(None)
    try:
        found.append(algebra.traced(dtype) if algebra is not None else None)
    except WeftError:
        found.append(object())  # for this type it is no algebra: never what it was
    return tuple(found)
