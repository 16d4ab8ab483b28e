"""The algebra `log`: gradients by softmax weights that are never stored.

    D[m, n] = log sum_k exp(A[m, k] + B[k, n])       dA[m, k] = sum_n dD[m, n] exp(A[m, k] + B[k, n] - D[m, n])

dA is one of the sums of exponentials with factors

    Q[3] = sum of u[1] v[2] exp(x[1] + y[2] + z[3])        over what the third term lacks

that of u = dD, x = -D, y = B and z = A; and so are the derivatives of Q: that by u is Q of the gradient for u and
z for x, that by x is u times the same. One rule serves all orders, forwards and backwards. Nothing of the
size of all pairs is made, and nothing overflows: Q is a sum of the algebra `log`, of log|u| + x with log|v| + y, for
each sign by itself; exp(z + .) of those sums is added up. They are as large as D while their sum with z is small, which
takes digits off: sums of float32 are made in float64, D as well.

On a CPU products of exponentials are faster still (`ByProducts`), forward and backward, in torch's operations:

    D[m, n] = p[m] + q[n] + log S[m, n]                 S[m, n] = sum_k X[m, k] Y[k, n]
    dA[m, k] = X[m, k] sum_n W[m, n] Y[k, n]            W = dD / S

X = exp(A - p) and Y = exp(B - q) are kept for the backward pass; p and q are the largest values of rows of A and of
columns of B, as in `weft.planner.exponentials`. Where a sum is so small that lost factors count, sums of logarithms
serve: that is looked up, for which a GPU would have to be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, fx

from weft.algebra import NAMED
from weft.api.entry import contraction
from weft.api.lookup import one_of
from weft.autograd.backward import Needs
from weft.autograd.graphs import GraphWriter, Program
from weft.autograd.rule import Bare, Found, Rule, Tensors, apply
from weft.autograd.spec import A, B, Spec, mapped_first
from weft.autograd.steps import with_modes
from weft.base.arrays import dispatch_modes, grad_mode
from weft.base.caches import cached_property
from weft.fn import Pointwise
from weft.fn.trace import recorded
from weft.machine.exactness import shortened
from weft.planner.exponentials import TYPES, least_sum
from weft.planner.options import Options
from weft.planner.schedule import Scalar
from weft.spec.notation import unused_letters

Signed = list[tuple[int, Tensor]]  # logarithms, and the sign of what they are of


@dataclass(frozen=True)
class SignedSum(Rule):
    """The rule of Q, whose derivatives are made of Q: its terms, and whether x, y and z are added or taken off.

    Tensors are u, x, v, y and z; None for u or v stands for ones.
    """

    terms: tuple[str, str, str]
    signs: tuple[int, int, int]
    accumulate: torch.dtype
    how: Options  # of contractions
    ahead: bool = True

    def turned(self, first: int, second: int, third: int) -> SignedSum:
        """The sum whose terms are these places of this one's."""
        terms, signs = self.terms, self.signs
        return replace(
            self, terms=(terms[first], terms[second], terms[third]),
            signs=(signs[first], signs[second], signs[third]),
        )  # fmt: skip

    @property
    def core(self) -> str:
        """The modes of the third term that the sum has; along the others of its modes z alone changes."""
        return "".join(label for label in self.terms[2] if label in self.terms[0] + self.terms[1])

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Sequence[Any]) -> tuple[Tensor, ...]:
        u, x, v, y, z = tensors
        return (summed(self, logarithms(self, 0, u, x), logarithms(self, 1, v, y), z, self.accumulate),)

    def saved(self, tensors: Tensors, results: Sequence[Tensor]) -> Tensors:
        return (*tensors, *results)

    def backward(self, alpha: Scalar, beta: Scalar, saved: Sequence[Any], grads: Sequence[Any], needs: Needs) -> Found:
        (*given, output), (grad,) = saved, grads
        found: list[Tensor | None] = [None] * 5
        if grad is None:
            return tuple(found)
        u, x, v, y, z = given
        sides = ((u, (2, 1, 0), (grad, z, v, y, x)), (v, (0, 2, 1), (u, x, grad, z, y)))
        for side, (factor, places, tensors) in enumerate(sides):
            of_factor, of_exponent = needs[2 * side : 2 * side + 2]
            if of_factor or of_exponent:
                slope = weighted(self.turned(*places), *tensors)
                found[2 * side] = slope if of_factor else None
                found[2 * side + 1] = _times(self.signs[side], factor, slope) if of_exponent else None
        if needs[4]:
            found[4] = _times(self.signs[2], grad, output)
        return tuple([one if one is None else one.to(own.dtype) for one, own in zip(found, given, strict=True)])

    def forward_mode(self, alpha: Scalar, beta: Scalar, saved: Sequence[Any], tangents: Tensors) -> Found:
        (u, x, v, y, z, output), (du, dx, dv, dy, dz) = saved, tangents
        first, second = _moved(self.signs[0], u, du, dx), _moved(self.signs[1], v, dv, dy)
        parts = [
            *([weighted(self, first, x, v, y, z)] if first is not None else ()),
            *([weighted(self, u, x, second, y, z)] if second is not None else ()),
            *([_times(self.signs[2], dz, output)] if dz is not None else ()),
        ]
        return (sum(parts[1:], parts[0]),)

    def batched(self, tensors: Tensors, batches: Sequence[bool], size: int) -> tuple[SignedSum, Tensors]:
        """One more mode, of the terms of which a tensor has it, and of the result."""
        has = (any(batches[:2]), any(batches[2:4]), True)
        label = next(unused_letters("".join(self.terms)))
        moved = [
            mapped_first(tensor, None, size) if there and not mapped else tensor
            for tensor, mapped, there in zip(tensors, batches, (has[0], has[0], has[1], has[1], True), strict=True)
        ]
        first, second, third = (label + term if there else term for term, there in zip(self.terms, has, strict=True))
        return replace(self, terms=(first, second, third)), moved


def weighted(form: SignedSum, u: Tensor | None, x: Tensor, v: Tensor | None, y: Tensor, z: Tensor) -> Tensor:
    """Q, differentiable."""
    return apply(form, 1.0, 1.0, (u, x, v, y, z))[0]


def logarithms(form: SignedSum, side: int, factor: Tensor | None, exponent: Tensor) -> Signed:
    """log|u| + x of the positive u and of the negative; exponents of plus infinity belong to what has no share."""
    sign, term = form.signs[side], form.terms[side]
    if factor is None:
        return [(1, exponent if sign > 0 else -exponent)]
    kind = form.accumulate
    found = _pass(
        form, term, factor, (kind, kind), _logarithms(sign, kind, exponent.dtype), weft_exponent=(term, exponent)
    )
    return list(zip((1, -1), found, strict=True))


def summed(form: SignedSum, first: Signed, second: Signed, z: Tensor, out_dtype: torch.dtype) -> Tensor:
    """Q of the logarithms of both sides; the last sum is made with all that follows, or in a pass before it."""
    kind, core, term = form.accumulate, form.core, form.terms[2]
    text = f"{form.terms[0]},{form.terms[1]}->{core}"
    how = replace(form.how, algebra=NAMED["log"], accumulate=kind, out_dtype=kind, promote=True)
    pairs = list(product(first, second))
    *_, (x, y) = values = [(x, y) for (_, x), (_, y) in pairs]
    beside = {f"weft_{at}": (core, contraction(text, *pair, how)) for at, pair in enumerate(values[:-1])}
    beside = {"weft_z": (term, z), **beside}
    finish = _finish(form.signs[2], tuple(one * other for (one, _), (other, _) in pairs), kind, z.dtype)
    if core != term:
        last = with_modes(contraction(text, x, y, how), core, term).expand(z.shape)
        found: Tensor = _pass(form, term, last, out_dtype, finish, **beside)
    else:
        how = replace(how, out_dtype=out_dtype, operands=beside)
        found = contraction(text, x, y, how.having(epilogue=finish))
    return found


def _pass(
    form: SignedSum, term: str, value: Tensor, out_dtype: Any, function: Pointwise, **beside: tuple[str, Tensor]
) -> Any:
    """A function of a tensor's elements and of what lies beside them."""
    kind = form.accumulate
    how = replace(form.how, precision=kind, accumulate=kind, promote=False, out_dtype=out_dtype, operands=beside)
    one = one_of(value.dtype, value.device)
    return contraction(f"{term},->{term}", value, one, how.having(epilogue=function))


def _times(sign: int, factor: Tensor | None, value: Tensor) -> Tensor:
    found = value if factor is None else factor * value
    return found if sign > 0 else -found


def _moved(sign: int, factor: Tensor | None, tangent: Tensor | None, exponents: Tensor | None) -> Tensor | None:
    """The tangent of u exp(x), by exp(x)."""
    if exponents is None:
        return tangent
    through = _times(sign, factor, exponents)
    return through if tangent is None else tangent + through


@lru_cache(maxsize=64)
def _logarithms(sign: int, wide: torch.dtype, exponent: torch.dtype) -> Pointwise:
    """log|u| + x of the positive u and of the negative; where D is minus infinity, -D is none that counts."""

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor]:
        given, added = t["weft_factor"], t["weft_exponent"].to(wide)
        added = added if sign > 0 else -added
        nowhere = added == torch.inf
        return tuple(torch.where(nowhere, -torch.inf, torch.log(torch.relu(each)) + added) for each in (given, -given))

    return recorded(body, {"weft_factor": wide, "weft_exponent": exponent}, "the derivative of log")


@lru_cache(maxsize=64)
def _finish(sign: int, signs: tuple[int, ...], wide: torch.dtype, exponent: torch.dtype) -> Pointwise:
    """exp(z + .) of the sums, added up by their signs; the value is the last of them."""
    names = [*(f"weft_{at}" for at in range(len(signs) - 1)), "weft_last"]

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor]:
        z = t["weft_z"].to(wide)
        z = z if sign > 0 else -z
        parts = [torch.exp(z + t[name]) for name in names]
        total = parts[0] if signs[0] > 0 else -parts[0]
        for part, plus in zip(parts[1:], signs[1:], strict=True):
            total = total + part if plus > 0 else total - part
        return (torch.where(z == torch.inf, 0.0, total),)

    inputs = {"weft_last": wide, "weft_z": exponent} | dict.fromkeys(names[:-1], wide)
    return recorded(body, inputs, "the derivative of log")


class ByProducts:
    """The contractions of a spec for tensors of these shapes."""

    def __init__(self, spec: Spec, shapes: tuple[torch.Size, torch.Size]) -> None:
        self._spec = spec
        self._extents = spec.extents(shapes)
        summed = [extent for label, extent in self._extents.items() if label not in spec.term_d]
        self._least = least_sum(int(torch.Size(summed).numel()), spec.accumulate)
        self._lowest = torch.finfo(spec.accumulate).min
        self._forward = self._written(masked=False)
        self._backward: dict[tuple[bool, bool], Program] = {}

    @cached_property
    def _masked(self) -> Program:
        return self._written(masked=True)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...] | None:
        """D, and what `backward` takes: X, Y and S; None where sums are not all in range."""
        *found, sums, p, q = self._forward(a, b)
        if sums.min().item() >= self._least:  # and not NaN
            return (*found, sums)
        *found, sums, p, q = self._masked(a, b)
        nothing = (p == self._lowest) | (q == self._lowest)
        sums.masked_fill_(nothing, torch.inf)  # sums of nothing have no weights
        return (*found, sums) if sums.min().item() >= self._least else None

    def backward(self, grad: Tensor, kept: Sequence[Tensor], needs: tuple[bool, bool]) -> Found:
        """The gradients of A and of B."""
        program = self._backward.get(needs)
        if program is None:
            program = self._backward[needs] = self._pulled(needs)
        found = iter(program(grad, *kept))
        return tuple([next(found) if need else None for need in needs])

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
        return writer.program([d, *factors, sums, *tops])

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


class Logarithm(Bare):
    """The rule of a bare contraction of `log`."""

    def __init__(self, spec: Spec, needs: Needs, ahead: bool) -> None:
        super().__init__(spec, needs, ahead)
        self._wide = spec.asked(algebra=spec.algebra, out_dtype=torch.float64, accumulate=torch.float64)
        self._forms = tuple([self._form(side) for side in (A, B)])

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Sequence[Any]) -> tuple[Tensor, ...]:
        a, b, *_ = tensors
        products = self._by_products(a, b)
        if products is not None and (made := products.forward(a, b)) is not None:
            return made
        return super().forward(alpha, beta, tensors)

    def _by_products(self, a: Tensor, b: Tensor) -> ByProducts | None:
        if self.ahead or shortened() or type(a) is not Tensor or type(b) is not Tensor or dispatch_modes():
            return None
        return by_products(self.spec, (a.shape, b.shape), a.device.type)

    def pulled(self, grad: Tensor, saved: Sequence[Any], needs: Needs) -> Found:
        a, b, total, *kept = saved
        found: list[Tensor | None] = [None, None]
        sides, products = ((A, a, b), (B, b, a)), self._by_products(a, b)
        if kept and products is not None and not torch.is_grad_enabled():
            return products.backward(grad, kept, (needs[A], needs[B]))
        total, grad = self._exact(a, b, total), grad.to(torch.float64)
        again = torch.is_grad_enabled()  # the gradients may be differentiated in their turn
        signed = [] if again else logarithms(self._forms[A], 0, grad, total)
        for side, own, other in sides:
            if needs[side] and again:
                found[side] = weighted(self._forms[side], grad, total, None, other, own).to(own.dtype)
            elif needs[side]:
                found[side] = summed(self._forms[side], signed, [(1, other)], own, own.dtype)
        return tuple(found)

    def pushed(self, saved: Sequence[Any], tangents: Tensors) -> Tensor:
        """The sum of the tangents by their softmax weights."""
        spec, (a, b, total) = self.spec, saved
        form = replace(self._forms[A], terms=(spec.term_a, spec.term_b, spec.term_d), signs=(1, 1, -1))
        total = self._exact(a, b, total)
        first, second = (None if each is None else each.to(torch.float64) for each in tangents)
        parts = [
            *([weighted(form, first, a, None, b, total)] if first is not None else ()),
            *([weighted(form, None, a, second, b, total)] if second is not None else ()),
        ]
        return sum(parts[1:], parts[0]).to(spec.results[0])

    def _exact(self, a: Tensor, b: Tensor, total: Tensor) -> Tensor:
        """D in float64, which has the derivatives of D."""
        if total.dtype is torch.float64:
            return total
        with grad_mode(False):
            exact: Tensor = contraction(self.spec.text, a, b, self._wide)
            off = exact - total
        return total + torch.where(off.isfinite(), off, 0.0)

    def _form(self, side: int) -> SignedSum:
        """The sum that is the gradient of A or of B."""
        spec = self.spec
        own, other = (spec.term_a, spec.term_b) if side == A else (spec.term_b, spec.term_a)
        return SignedSum((spec.term_d, other, own), (-1, 1, 1), torch.float64, spec.asked())
