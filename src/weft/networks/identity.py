"""The identity of a computation, by name: ranks must agree on it, and a checkpoint is compared with it.

Functions are distinguished by what they compute, operands by all their bytes. Kernels are not part of it: a run may go
on on another device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.algebra import NAMED, Algebra
from weft.base.arrays import as_bytes, without_neg
from weft.errors import WeftError
from weft.fn import trace
from weft.networks.plan import NetworkPlan
from weft.networks.tree import Tree
from weft.spec.dtypes import dtype_name

_CHUNK = 1 << 24  # elements that are copied to the host at once


def identity_of(network: NetworkPlan) -> dict[str, str]:
    """The network without the values of its operands."""
    graph, settings = network.graph, network.settings
    options = settings.options
    algebra = options.algebra
    return {
        "shapes of operands": _shortened(",".join(str(operand.shape) for operand in graph.operands)),
        "types": _shortened(", ".join(dtype_name(network.whole_dtypes[node]) for node in sorted(network.whole_dtypes))),
        "labels": _digest((graph.terms, graph.output, graph.extents)),
        "path": _digest((network.path, network.folded.given)),
        "slices": f"{network.tree.slices} over {_sliced(network.tree)}",
        "functions": _digest([(node, _function(function, network.whole_dtypes[node]))
                              for node, function in sorted(network.whole_functions.items())]),
        "precision": f"{options.precision}, {options.accumulate}",
        "algebra": "plus_times" if algebra is None else _algebra(algebra, network.dtype),
        "exponents": str(settings.strip_exponent),
    }  # fmt: skip


def _sliced(tree: Tree) -> list[int | tuple[int, int]]:
    """The sliced labels, with the number of indices in a slice where it has several."""
    each = zip(tree.sliced_labels, tree.stretches, strict=True)
    return [label if length == 1 else (label, length) for label, length in sorted(each)]


def values_of(network: NetworkPlan, operands: Sequence[torch.Tensor]) -> dict[str, str]:
    """A digest of all values of each operand, those that constants were made into at the end."""
    given = network.folded.given
    names = [f"values of operand {at}" for at in given]
    names += [f"values of constants ({at})" for at in range(len(operands) - len(given))]
    return {name: digest_of(tensor) for name, tensor in zip(names, operands, strict=True)}


def digest_of(tensor: torch.Tensor) -> str:
    """Digest of a tensor's values in the order of its modes; strides and device do not matter."""
    found = hashlib.blake2b(digest_size=16)
    plain = without_neg(tensor.detach())
    flat = plain.resolve_conj().reshape(-1)  # a view where it is stored without gaps
    for chunk in flat.split(_CHUNK):
        found.update(as_bytes(chunk.cpu().contiguous()).numpy().data)
    return found.hexdigest()


def _function(function: Callable[..., Any], dtype: torch.dtype) -> str:
    try:
        return trace(function, (dtype,)).identity
    except WeftError:  # it is refused where the step is planned, in the words of that place
        return getattr(function, "__qualname__", type(function).__name__)


def _algebra(algebra: Algebra, dtype: torch.dtype) -> str:
    """The name, and of an algebra that is not one of weft's own a digest of what it computes."""
    if NAMED.get(algebra.name) is algebra:
        return algebra.name
    try:
        traced = algebra.traced(dtype)
    except WeftError:  # as for functions
        return algebra.name
    return f"{algebra.name} ({_digest((traced.combine.identity, traced.reduce.identity, traced.identity))})"


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _shortened(text: str) -> str:
    """Text that people can read where it is short; with a digest of all of it where it is not."""
    return text if len(text) <= 120 else f"{text[:80]}... ({_digest(text)})"
