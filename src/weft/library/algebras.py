"""Sums in other algebras: by tables of pairs of a bounded size, on a CPU by products of exponentials and truth values.

The identity of exponentials, and what is lost: `weft.planner.exponentials`. Whether something is lost is looked up in
the sums, for which a GPU would have to be waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from weft.algebra import log, of_count
from weft.cpu.host import multiplies_bytes
from weft.fn import Pointwise
from weft.fn.algebra import TracedAlgebra
from weft.fn.pointwise import RecordedFunction
from weft.library.factors import OperandMatrix
from weft.library.functions import value_of
from weft.library.products import MatrixProducts, ProductTypes, of_tables
from weft.library.scheme import LibraryScheme
from weft.library.sums import Form
from weft.library.views import A, B, D, Frame, Group, MergedModes, View
from weft.planner.exponentials import Exponent, exponent_of, least_sum, spread_kept
from weft.planner.schedule import AuxTensors, Scalar
from weft.spec import Layout

TABLE = {"cpu": 1 << 18, "gpu": 1 << 25}  # pairs that stand in memory at once; of a CPU, in its caches

Reduction = Callable[[Tensor], Tensor]  # of the last dimension, which is not empty


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
_Operation = Callable[..., Tensor]
#: Operations of torch that are an algebra's: of all pairs, and along a dimension.
_OPERATIONS: dict[object, tuple[_Operation | None, _Operation | None]] = {
    _ATEN.maximum.default: (torch.maximum, torch.amax), _ATEN.minimum.default: (torch.minimum, torch.amin),
    _ATEN.add.Tensor: (torch.add, torch.sum), _ATEN.mul.Tensor: (torch.mul, None), None: (None, None),
}  # fmt: skip


def operations_of(algebra: TracedAlgebra) -> tuple[_Operation, _Operation] | None:
    """Both for values of one floating type; None where torch has none."""
    (combine, _), reduce = _OPERATIONS[_operation(algebra.combine)], _reduction(algebra.reduce)
    types = {*algebra.combine.dtypes, *algebra.combine.results, *algebra.reduce.dtypes}
    alike = len(types) == 1 and all(each.is_floating_point for each in types)
    return (combine, reduce) if combine is not None and reduce is not None and alike else None


@lru_cache(maxsize=256)
def _known(reduce: Pointwise) -> Reduction | None:
    """One operation of torch that reduces a dimension as an algebra's sum does, where there is one."""
    found = _reduction(reduce)
    if found is torch.sum:
        return lambda pairs: torch.sum(pairs, -1, dtype=pairs.dtype)
    return None if found is None else lambda pairs: found(pairs, -1)


def _reduction(reduce: Pointwise) -> _Operation | None:
    kind = reduce.dtypes[0]
    if isinstance(reduce, RecordedFunction) and kind.is_floating_point and reduce == log.traced(kind).reduce:
        return torch.logsumexp
    return _OPERATIONS[_operation(reduce)][1]


def _operation(function: Pointwise) -> object:
    """The one operation of the table that a function applies to its inputs; None for others."""
    if not isinstance(function, RecordedFunction):
        return None
    nodes = list(function.graph.nodes)
    given = [node for node in nodes if node.op == "placeholder"]
    made = [node for node in nodes if node.op == "call_function"]
    if len(made) != 1 or len(given) != 2 or set(made[0].args) != set(given) or made[0].kwargs:
        return None
    return made[0].target if made[0].target in _OPERATIONS else None


Direct = Callable[[Tensor, Tensor], Tensor]


def summed(x: Tensor, y: Tensor, exponent: Exponent, multiply: MatrixProducts, direct: Direct) -> Tensor:
    """[batch, m, n] of [batch, m, k] and [batch, n, k], none of them empty; `direct` computes a part from pairs."""
    p, q = _largest(x, exponent), _largest(y, exponent)
    sums = multiply(_factor(x, p, exponent), _factor(y, q, exponent).mT)
    low, high = torch.aminmax(sums)
    total = torch.log(sums)
    if exponent.rate != 1:
        total /= exponent.rate
    total.add_(p).add_(q.mT)
    if not (low >= least_sum(x.shape[-1], sums.dtype) and high < math.inf):  # or NaN
        _repair(total, _lost(x, y, p, q, sums, exponent), x, y, direct)
    return total


def _largest(values: Tensor, exponent: Exponent) -> Tensor:
    return values.amax(-1, keepdim=True) if exponent.rate > 0 else values.amin(-1, keepdim=True)


def _factor(values: Tensor, largest: Tensor, exponent: Exponent) -> Tensor:
    """Exponentials of values under the largest of their row; zeros of a row that holds nothing."""
    off = values - largest.masked_fill(largest == exponent.nothing, 0)
    if exponent.rate != 1:
        off *= exponent.rate
    return off.exp_()


def _lost(x: Tensor, y: Tensor, p: Tensor, q: Tensor, sums: Tensor, exponent: Exponent) -> Tensor:
    """Which sums do not tell their result."""
    empty = (p == exponent.nothing) & ~_special(q, exponent).mT | (q == exponent.nothing).mT & ~_special(p, exponent)
    lost = ~(sums < math.inf) & ~empty  # or NaN
    spread = _depth(x, p, exponent) + _depth(y, q, exponent).mT
    small = (sums < least_sum(x.shape[-1], sums.dtype)) & (spread > spread_kept(sums.dtype))
    return lost | small & ~empty


def _special(largest: Tensor, exponent: Exponent) -> Tensor:
    return torch.isnan(largest) | (largest == -exponent.nothing)


def _depth(values: Tensor, largest: Tensor, exponent: Exponent) -> Tensor:
    """How far the exponents of a row that stand for something reach below the largest."""
    off = (values - largest) * exponent.rate
    return off.masked_fill(values == exponent.nothing, 0).amin(-1, keepdim=True).neg_()


def _repair(total: Tensor, lost: Tensor, x: Tensor, y: Tensor, direct: Direct) -> None:
    """Compute rows and columns that hold results which were lost, of each of a batch, from pairs."""
    for which in lost.flatten(1).any(1).nonzero().flatten().tolist():
        rows, columns = lost[which].any(1).nonzero()[:, 0], lost[which].any(0).nonzero()[:, 0]
        part = direct(x[which, rows][None], y[which, columns][None])[0]
        total[which, rows[:, None], columns] = part


class Tables(Form):
    """Another algebra's sums, by tables of pairs."""

    places = False

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        algebra, roles = scheme.contraction.algebra, scheme.roles
        assert algebra is not None, "this form is of an algebra"
        self.kept = roles.kept
        self._algebra, self._accumulate = algebra, scheme.accumulate
        self._a, self._b = (
            _in_batches(scheme, place, frame, (roles.batch, free, roles.k))
            for place, free in ((A, roles.m), (B, roles.n))
        )
        self.operands = self._a, self._b
        self._factors = sum([frame.size((*roles.batch, *free, *roles.k)) for free in (roles.m, roles.n)])  # elements
        self._shape, self._most = frame.shape(self.kept), TABLE["cpu" if scheme.kind == "cpu" else "gpu"]
        pairs = min(max(self._most, frame.size(roles.n)), frame.size((*self.kept, *roles.k)))
        self.bytes = self.packed_bytes + 2 * pairs * self._accumulate.itemsize
        self.bytes += 2 * frame.size(self.kept) * self._accumulate.itemsize
        if scheme.form == "algebra" and frame.size((*self.kept, *roles.k)) <= self._most:
            self._find_direct(scheme, frame)

    def _find_direct(self, scheme: LibraryScheme, frame: Frame) -> None:
        contraction, roles = scheme.contraction, scheme.roles
        d, operations = contraction.d, operations_of(self._algebra)
        plain = contraction.c is None and all(scheme.plain) and d.dtype is self._accumulate
        left = _spread(frame, (roles.batch, roles.m, None, roles.k), A)
        right = _spread(frame, (roles.batch, None, roles.n, roles.k), B)
        place = _spread(frame, (roles.batch, roles.m, roles.n), D)
        if operations is None or not plain or any(frame.starts) or left is None or right is None or place is None:
            return
        self.direct = of_tables(operations, left, right, place, d.shape)
        self.returns = all(_is_contiguous(each.shape, each.strides) for each in (place, d))

    def __call__(self, a: Tensor, b: Tensor, d: Tensor | None, alpha: Scalar, aux: AuxTensors) -> Tensor:
        return self._summed(self._a.of(a, aux), self._b.of(b, aux)).view(self._shape)

    def _summed(self, x: Tensor, y: Tensor) -> Tensor:
        """[batch, m, n] of [batch, m, k] and [batch, n, k]."""
        return reduced(self._algebra, x, y, self._accumulate, self._most)


class Exponentials(Tables):
    """Sums of exponentials, by products of matrices."""

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        super().__init__(scheme, frame)
        exponent = exponent_of(self._algebra, self._accumulate)
        assert exponent is not None, "this form is of exponentials"
        self._exponent = exponent
        self._products = MatrixProducts(scheme.types, True, scheme.kind)
        self.bytes += (self._factors + 2 * frame.size(self.kept)) * self._accumulate.itemsize

    def _summed(self, x: Tensor, y: Tensor) -> Tensor:
        return summed(x, y, self._exponent, self._products, super()._summed)


class Counts(Tables):
    """Sums of truth values, by products of matrices that count the pairs which are true."""

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        super().__init__(scheme, frame)
        result = of_count(self._algebra, self._accumulate)
        assert result is not None, "this form is of truth values"
        self._result, self._by_bytes = result, multiplies_bytes() and not scheme.roles.batch
        one = torch.int8 if self._by_bytes else torch.float32
        count = torch.int32 if self._by_bytes else torch.float32
        types = ProductTypes(one, one, count, "bytes" if self._by_bytes else "plain")
        self._one, self._products = one, MatrixProducts(types, not self._by_bytes, scheme.kind)
        self.bytes += self._factors * (1 + one.itemsize) + frame.size(self.kept) * (count.itemsize + 1)

    def _summed(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self._ones(x), self._ones(y)
        counts = self._products(x[0], y[0].mT) if self._by_bytes else self._products(x, y.mT)
        return self._result(counts)

    def _ones(self, values: Tensor) -> Tensor:
        """Ones where values are true: where their bytes are not zero."""
        return values.view(torch.uint8).clamp(max=1).to(self._one)


def _in_batches(
    scheme: LibraryScheme, place: int, frame: Frame, groups: tuple[Group, Group, Group]
) -> OperandMatrix | View:
    """An operand as [batch, free, k], of one batch where there is none."""
    view = frame.matrix(groups, place) if scheme.plain[place] else None
    if view is None:
        return OperandMatrix(scheme, place, frame, groups, True)
    return view if groups[0] else view._replace(shape=(1, *view.shape), strides=(1, *view.strides))


def _spread(frame: Frame, groups: Sequence[Group | None], place: int) -> View | None:
    """A dimension for each group of modes; for None one that the tensor is repeated along."""
    runs = [MergedModes(1, 0) if group is None else frame.run(group, place) for group in groups]
    known = [run for run in runs if run is not None]
    if len(known) < len(runs):
        return None
    return View(tuple([run.extent for run in known]), tuple([run.stride for run in known]))


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    usual = Layout.contiguous(shape, torch.float32).strides
    return all(extent == 1 or one == other for extent, one, other in zip(shape, strides, usual, strict=True))
