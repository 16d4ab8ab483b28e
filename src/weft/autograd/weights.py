"""Sums of exponentials with factors, which are derivatives of the algebra `log` of any order.

    Q[3] = sum of u[1] v[2] exp(x[1] + y[2] + z[3])        over what the third term lacks

The first derivatives of ``D = log sum exp(A + B)`` are such sums: dA is that of u = dD, x = -D, y = B and z = A; and so
are the derivatives of Q itself: that by u is Q of the gradient in the place of u and z in the place of x, that by x is
u times the same. So one rule serves all orders, forwards and backwards.

Nothing of the size of all pairs is made, and nothing overflows: Q is a sum of the algebra `log`, of log|u| + x with
log|v| + y, for each sign by itself; exp(z + .) of those sums is added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import Tensor

from weft.algebra import NAMED
from weft.api.entry import contraction
from weft.api.lookup import one_of
from weft.autograd.steps import with_modes
from weft.base.batched import each_of_batch
from weft.fn import Pointwise
from weft.fn.derivative import recorded
from weft.planner.options import Options
from weft.spec.notation import unused_letters

Signed = list[tuple[int, Tensor]]  # logarithms, and the sign of what they are of


@dataclass(frozen=True, slots=True)
class SignedSum:
    """Which sum: its terms, and whether x, y and z are added or taken off."""

    terms: tuple[str, str, str]
    signs: tuple[int, int, int]
    accumulate: torch.dtype
    options: Options  # of contractions

    def turned(self, *places: int) -> SignedSum:
        """The sum whose terms are these places of this one's."""
        first, second, third = places
        terms, signs = self.terms, self.signs
        return replace(
            self, terms=(terms[first], terms[second], terms[third]),
            signs=(signs[first], signs[second], signs[third]),
        )  # fmt: skip

    @property
    def core(self) -> str:
        """The modes of the third term that the sum has; along the others of its modes z alone changes."""
        return "".join(label for label in self.terms[2] if label in self.terms[0] + self.terms[1])


def weighted(form: SignedSum, u: Tensor | None, x: Tensor, v: Tensor | None, y: Tensor, z: Tensor) -> Tensor:
    """Q, differentiable; None for u or v stands for ones."""
    found: Tensor = _Weighted.apply(form, u, x, v, y, z)
    return found


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
    how = replace(form.options, algebra=NAMED["log"], accumulate=kind, out_dtype=kind, promote=True)
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
    how = replace(
        form.options, precision=kind, accumulate=kind, promote=False, out_dtype=out_dtype, operands=beside
    )
    one = one_of(value.dtype, value.device)
    return contraction(f"{term},->{term}", value, one, how.having(epilogue=function))


class _Weighted(torch.autograd.Function):
    """Q, whose derivatives are made of Q."""

    @staticmethod
    def forward(form: SignedSum, u: Tensor | None, x: Tensor, v: Tensor | None, y: Tensor, z: Tensor) -> Tensor:
        first, second = logarithms(form, 0, u, x), logarithms(form, 1, v, y)
        return summed(form, first, second, z, form.accumulate)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.form, *tensors = inputs
        ctx.save_for_backward(*tensors, output)
        ctx.save_for_forward(*tensors, output)

    @staticmethod
    @each_of_batch
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        form, needs = ctx.form, ctx.needs_input_grad[1:]
        u, x, v, y, z, output = ctx.saved_tensors
        found: list[Tensor | None] = [None] * 5
        if needs[0] or needs[1]:
            slope = weighted(form.turned(2, 1, 0), grad, z, v, y, x)
            found[0] = slope if needs[0] else None
            found[1] = _times(form.signs[0], u, slope) if needs[1] else None
        if needs[2] or needs[3]:
            slope = weighted(form.turned(0, 2, 1), u, x, grad, z, y)
            found[2] = slope if needs[2] else None
            found[3] = _times(form.signs[1], v, slope) if needs[3] else None
        if needs[4]:
            found[4] = _times(form.signs[2], grad, output)
        given = (u, x, v, y, z)
        return (None, *(one if one is None else one.to(own.dtype) for one, own in zip(found, given, strict=True)))

    @staticmethod
    def jvp(ctx: Any, _form: None, du: Tensor | None, dx: Tensor | None, dv: Tensor | None, dy: Tensor | None,
            dz: Tensor | None) -> Tensor:  # fmt: skip
        form, (u, x, v, y, z, output) = ctx.form, ctx.saved_tensors
        first, second = _moved(form.signs[0], u, du, dx), _moved(form.signs[1], v, dv, dy)
        parts = [
            *([weighted(form, first, x, v, y, z)] if first is not None else ()),
            *([weighted(form, u, x, second, y, z)] if second is not None else ()),
            *([_times(form.signs[2], dz, output)] if dz is not None else ()),
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], form: SignedSum, *tensors: Tensor | None
    ) -> tuple[Tensor, int]:
        """One more mode, of the terms of which a tensor has it, and of the result."""
        dims = in_dims[1:]
        has = [any(dims[at] is not None for at in places) for places in ((0, 1), (2, 3))]
        has.append(True)
        label = next(unused_letters("".join(form.terms)))
        moved = [
            _first(tensor, at, info.batch_size) if there else tensor
            for tensor, at, there in zip(tensors, dims, (has[0], has[0], has[1], has[1], True), strict=True)
        ]
        first, second, third = (label + term if there else term for term, there in zip(form.terms, has, strict=True))
        wider = replace(form, terms=(first, second, third))
        return _Weighted.apply(wider, *moved), 0


def _times(sign: int, factor: Tensor | None, value: Tensor) -> Tensor:
    found = value if factor is None else factor * value
    return found if sign > 0 else -found


def _moved(sign: int, factor: Tensor | None, tangent: Tensor | None, exponents: Tensor | None) -> Tensor | None:
    """The tangent of u exp(x), by exp(x)."""
    if exponents is None:
        return tangent
    through = _times(sign, factor, exponents)
    return through if tangent is None else tangent + through


def _first(tensor: Tensor | None, at: int | None, size: int) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if at is None else tensor.movedim(at, 0)


@lru_cache(maxsize=64)
def _logarithms(sign: int, wide: torch.dtype, exponent: torch.dtype) -> Pointwise:
    """log|u| + x of the positive u and of the negative; where D is minus infinity, -D is none that counts."""

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor]:
        given, added = t["weft_factor"], t["weft_exponent"].to(wide)
        added = added if sign > 0 else -added
        nowhere = added == torch.inf
        return tuple(
            torch.where(nowhere, -torch.inf, torch.log(torch.relu(each)) + added) for each in (given, -given)
        )

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
