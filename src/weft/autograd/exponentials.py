"""The algebra `log` by products of exponentials, forward and backward, in torch's operations on a CPU.

    D[m, n] = p[m] + q[n] + log S[m, n]                 S[m, n] = sum_k X[m, k] Y[k, n]
    dA[m, k] = X[m, k] sum_n W[m, n] Y[k, n]            W = dD / S

X = exp(A - p) and Y = exp(B - q) are kept for the backward pass; p and q are the largest values of rows of A and of
columns of B, as in `weft.planner.exponentials`. One product for each gradient, whatever the signs in dD. Where a sum is
so small that lost factors count there, sums of logarithms serve (`weights`): that has to be looked up, for which a GPU
would have to be waited for.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, fx

from weft.autograd.graphs import GraphWriter, Program
from weft.autograd.spec import A, B, Spec
from weft.base.cached import cached_property
from weft.planner.exponentials import TYPES, least_sum


class Factors(NamedTuple):
    """X, Y and S of a call, as its backward pass takes them."""

    x: Tensor
    y: Tensor
    sums: Tensor


class ByProducts:
    """The contractions of a spec for tensors of these shapes."""

    def __init__(self, spec: Spec, shapes: tuple[torch.Size, torch.Size]) -> None:
        self._spec = spec
        self._extents = dict(zip(spec.term_a + spec.term_b, (*shapes[A], *shapes[B]), strict=True))
        summed = [extent for label, extent in self._extents.items() if label not in spec.term_d]
        self._least = least_sum(int(torch.Size(summed).numel()), spec.accumulate)
        self._lowest = torch.finfo(spec.accumulate).min
        self._forward = self._written(masked=False)
        self._backward: dict[tuple[bool, bool], Program] = {}

    @cached_property
    def _masked(self) -> Program:
        return self._written(masked=True)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Factors] | None:
        """D and the factors; None where its sums are not all in range."""
        d, sums, x, y, p, q = self._forward(a, b)
        if sums.min().item() >= self._least:  # and not NaN
            return d, Factors(x, y, sums)
        d, sums, x, y, p, q = self._masked(a, b)
        nothing = (p == self._lowest) | (q == self._lowest)
        sums.masked_fill_(nothing, torch.inf)  # sums of nothing have no weights
        return (d, Factors(x, y, sums)) if sums.min().item() >= self._least else None

    def backward(self, grad: Tensor, kept: Factors, needs: tuple[bool, bool]) -> list[Tensor | None]:
        """The gradients of A and of B."""
        program = self._backward.get(needs)
        if program is None:
            program = self._backward[needs] = self._pulled(needs)
        found = iter(program(grad, *kept))
        return [next(found) if need else None for need in needs]

    def _written(self, *, masked: bool) -> Program:
        """`masked`: the largest of nothing is the lowest number, so that its exponentials are 0."""
        spec, writer = self._spec, GraphWriter(self._extents)
        factors, tops = [], []
        for name, term, own in (("a", spec.term_a, spec.storage[A]), ("b", spec.term_b, spec.storage[B])):
            values = writer.graph.placeholder(name)
            if own is not spec.accumulate:
                values = writer.method("to", values, spec.accumulate)
            summed, top = [at for at, label in enumerate(term) if label not in spec.term_d], values
            if summed:
                top = writer.method("amax", values, summed, True)
            if masked:
                top = writer.method("clamp_min", top, self._lowest)
            factors.append(writer.method("exp", writer.call(torch.sub, values, top)))
            tops.append(self._beside(writer, top, term))
        sums = writer.product(factors[A], spec.term_a, factors[B], spec.term_b, spec.term_d)
        d = writer.call(torch.add, writer.call(torch.add, writer.method("log", sums), tops[A]), tops[B])
        if spec.results[0] is not spec.accumulate:
            d = writer.method("to", d, spec.results[0])
        return writer.program([d, sums, *factors, *tops])

    def _beside(self, writer: GraphWriter, top: fx.Node, term: str) -> fx.Node:
        """The largest values of rows, which have an extent of 1 along what is summed, along D's modes."""
        term_d = self._spec.term_d
        kept = "".join(label for label in term if label in term_d)
        lies = [self._extents[label] if label in kept else 1 for label in term]
        wanted = [self._extents[label] if label in kept else 1 for label in term_d]
        ordered = "".join(label for label in term_d if label in kept) == kept
        if ordered and len(lies) == len(wanted) and lies == wanted:
            return top
        return writer.aligned(writer.method("reshape", top, writer.shape(kept)), kept, term_d)

    def _pulled(self, needs: tuple[bool, bool]) -> Program:
        spec, writer = self._spec, GraphWriter(self._extents)
        grad, x, y, sums = (writer.graph.placeholder(name) for name in ("grad", "x", "y", "sums"))
        weights = writer.call(torch.div, grad, sums)
        found: list[fx.Node] = []
        sides = ((A, spec.term_a, x, spec.term_b, y), (B, spec.term_b, y, spec.term_a, x))
        for side, term, own, other_term, other in sides:
            if needs[side]:
                total = writer.product(weights, spec.term_d, other, other_term, term)
                found.append(writer.method("mul", total, own))
                if spec.storage[side] is not spec.accumulate:
                    found[-1] = writer.method("to", found[-1], spec.storage[side])
        return writer.program(found)


@lru_cache(maxsize=1024)
def by_products(spec: Spec, shapes: tuple[torch.Size, torch.Size], kind: str) -> ByProducts | None:
    """The algebra `log` of tensors of these shapes on a `kind` of device; None where sums of logarithms serve."""
    terms = {*spec.term_a}, {*spec.term_b}, {*spec.term_d}
    met = all(terms[at] <= terms[at - 1] | terms[at - 2] for at in range(3))  # no label stands in one term alone
    if kind != "cpu" or not met or spec.accumulate not in TYPES or 0 in (*shapes[A], *shapes[B]):
        return None
    return ByProducts(spec, shapes)
