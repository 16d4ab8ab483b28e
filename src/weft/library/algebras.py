"""Sums and products of other algebras, by tables of pairs of a bounded size."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from weft.algebra import log
from weft.fn import Pointwise
from weft.fn.algebra import TracedAlgebra
from weft.fn.pointwise import RecordedFunction
from weft.library.functions import value_of

TABLE = {"cpu": 1 << 18, "gpu": 1 << 25}  # pairs that stand in memory at once; of a CPU, in its caches

Reduction = Callable[[Tensor], Tensor]  # of the last dimension, which is not empty


def table(kind: str) -> int:
    return TABLE["cpu" if kind == "cpu" else "gpu"]


def reduced(algebra: TracedAlgebra, x: Tensor, y: Tensor, dtype: torch.dtype, most: int) -> Tensor:
    """[batch, m, n] of [batch, m, k] and [batch, n, k], none of them empty, `most` pairs at a time."""
    (batch, m, k), n = x.shape, y.shape[1]
    known, joined = _known(algebra.reduce), joining(algebra, dtype)

    def reduction(left: Tensor, right: Tensor) -> Tensor:
        shape = (left.shape[0], left.shape[1], n, left.shape[3])
        pairs = value_of(algebra.combine, left, right).to(dtype).expand(shape)
        return known(pairs) if known is not None else halved(pairs, joined)

    if batch * m * n * k <= most:
        return reduction(x[:, :, None], y[:, None])
    total = x.new_empty((batch, m, n), dtype=dtype)
    sums = min(k, max(most // n, 1))
    rows = min(m, max(most // (n * sums), 1))
    batches = max(most // (n * sums * rows), 1)
    for b in range(0, batch, batches):
        for i in range(0, m, rows):
            kept = total[b : b + batches, i : i + rows]
            for p in range(0, k, sums):
                left = x[b : b + batches, i : i + rows, None, p : p + sums]
                right = y[b : b + batches, None, :, p : p + sums]
                part = reduction(left, right)
                kept.copy_(part if p == 0 else joined(kept, part))
    return total


def joining(algebra: TracedAlgebra, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """The algebra's sum of two tensors."""
    return lambda p, q: value_of(algebra.reduce, p, q).to(dtype)


def halved(pairs: Tensor, reduce: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Reduce the last dimension, not empty, by halves: about as many calls as its extent has digits in binary."""
    odd: Tensor | None = None
    while (extent := pairs.shape[-1]) > 1:
        half = extent // 2
        if extent % 2:
            last = pairs[..., -1:]
            odd = last if odd is None else reduce(odd, last)
        pairs = reduce(pairs[..., :half], pairs[..., half : 2 * half])
    return (pairs if odd is None else reduce(pairs, odd)).squeeze(-1)


_ATEN = torch.ops.aten
_KNOWN: dict[object, Callable[..., Tensor]] = {
    _ATEN.maximum.default: torch.amax, _ATEN.minimum.default: torch.amin, _ATEN.add.Tensor: torch.sum,
}  # fmt: skip
_PAIRED: dict[object, Callable[..., Tensor]] = {
    _ATEN.maximum.default: torch.maximum, _ATEN.minimum.default: torch.minimum, _ATEN.add.Tensor: torch.add,
    _ATEN.mul.Tensor: torch.mul,
}  # fmt: skip


class TableOperations(NamedTuple):
    """Operations of torch that are an algebra's: of all pairs, and along a dimension."""

    combine: Callable[..., Tensor]
    reduce: Callable[..., Tensor]


def operations_of(algebra: TracedAlgebra) -> TableOperations | None:
    """Both for values of one floating type; None where torch has none."""
    combine, reduce = _PAIRED.get(_operation(algebra.combine)), _reduction(algebra.reduce)
    types = {*algebra.combine.dtypes, *algebra.combine.results, *algebra.reduce.dtypes}
    alike = len(types) == 1 and all(each.is_floating_point for each in types)
    return TableOperations(combine, reduce) if combine is not None and reduce is not None and alike else None


@lru_cache(maxsize=256)
def _known(reduce: Pointwise) -> Reduction | None:
    """One operation of torch that reduces a dimension as an algebra's sum does, where there is one."""
    found = _reduction(reduce)
    if found is torch.sum:
        return lambda pairs: torch.sum(pairs, -1, dtype=pairs.dtype)
    return None if found is None else lambda pairs: found(pairs, -1)


def _reduction(reduce: Pointwise) -> Callable[..., Tensor] | None:
    kind = reduce.dtypes[0]
    if isinstance(reduce, RecordedFunction) and kind.is_floating_point and reduce == log.traced(kind).reduce:
        return torch.logsumexp
    return _KNOWN.get(_operation(reduce))


def _operation(function: Pointwise) -> object:
    """The one operation that a function applies to its inputs; None for others."""
    if not isinstance(function, RecordedFunction):
        return None
    nodes = list(function.graph.nodes)
    given = [node for node in nodes if node.op == "placeholder"]
    made = [node for node in nodes if node.op == "call_function"]
    if len(made) != 1 or len(given) != 2 or set(made[0].args) != set(given) or made[0].kwargs:
        return None
    return made[0].target
