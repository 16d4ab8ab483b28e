"""Algebras of your own whose `reduce` is a sum, or that bring a `vjp`: gradients as sums over elements that are not
stored.

    D[m, n] = sum_k f(A[m, k], B[k, n])        dA[m, k] = sum_n dD[m, n] f_x(A[m, k], B[k, n])

The right-hand side is one contraction of B, repeated along m by a stride of 0, whose function reads A and dD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from weft.algebra import Algebra
from weft.api.entry import contraction
from weft.api.lookup import one_of
from weft.autograd.backward import Needs
from weft.autograd.kept import kept_for_algebra
from weft.autograd.rule import Bare, Found, Tensors
from weft.autograd.spec import Spec
from weft.autograd.steps import with_modes
from weft.errors import FunctionError, UnsupportedError
from weft.fn import Pointwise
from weft.fn.derivative import Derived, compute, derived, pull, push, recorded


class Summation(Bare):
    """The rule of a bare contraction of such an algebra."""

    def __init__(self, spec: Spec, needs: Needs, ahead: bool) -> None:
        super().__init__(spec, needs, ahead)
        assert spec.algebra is not None
        self.slopes = _slopes(spec.algebra, spec.accumulate)

    def pulled(self, grad: Tensor, saved: Sequence[Any], needs: Needs) -> Found:
        a, b, total = saved
        found: list[Tensor | None] = [None, None]
        for side, (slope, like) in enumerate(zip(self.slopes, (a, b), strict=True)):
            if needs[side] and slope is None:
                found[side] = torch.zeros_like(like)
            elif needs[side] and slope is not None:
                found[side] = self._summed(slope, self._values(a, b, grad, total), "xy"[side], like.dtype)
        return tuple(found)

    def _values(self, a: Tensor, b: Tensor, grad: Tensor | None, total: Tensor) -> dict[str, tuple[str, Tensor]]:
        """The values that functions of a pair read, in the accumulator's type, each with its modes."""
        spec = self.spec
        terms = {"x": spec.term_a, "y": spec.term_b, "grad": spec.term_d, "total": spec.term_d}
        given = {name: (term, each) for (name, term), each in zip(terms.items(), (a, b, grad, total), strict=True)}
        return {name: (term, each.to(spec.accumulate)) for name, (term, each) in given.items() if each is not None}

    def _summed(
        self, function: Derived, values: Mapping[str, tuple[str, Tensor]], own: str, dtype: torch.dtype
    ) -> Tensor:
        """The sum of a function of all pairs over the modes that one of its inputs, `own`, has not.

        It is a contraction of the first input, repeated along the modes that it lacks by strides of 0. Where it may be
        differentiated in its turn a number is repeated in its place, and the input is an operand: its gradient is
        summed along those modes as it is made.
        """
        extents = {label: size for term, each in values.values() for label, size in zip(term, each.shape, strict=True)}
        every, (main, *others) = "".join(extents), function.inputs
        term, tensor = values[main]
        graph, operands = function.function, {name: values[name] for name in others}
        if torch.is_grad_enabled():
            graph, operands = _alongside_a_number(function, tensor.dtype), operands | {main: values[main]}
            term, tensor = "", one_of(tensor.dtype, tensor.device)
        tensor = tensor.permute([term.index(label) for label in every if label in term])
        tensor = with_modes(tensor, [label for label in every if label in term], every)
        tensor = tensor.expand([extents[label] for label in every])
        options = self.spec.asked(
            out_dtype=dtype, accumulate=self.spec.accumulate, functions=(graph, None, None, None), operands=operands
        )
        text = f"{every},->{values[own][0]}"
        found: Tensor = contraction(text, tensor, one_of(tensor.dtype, tensor.device), options)
        return found

    def pushed(self, saved: Sequence[Any], tangents: Tensors) -> Tensor:
        """The sum over all pairs of what the tangents of their values make of each."""
        spec, (a, b, total) = self.spec, saved
        assert spec.algebra is not None
        moving = zip(("dx", "dy"), (spec.term_a, spec.term_b), tangents, strict=True)
        given = {name: (term, each.to(spec.accumulate)) for name, term, each in moving if each is not None}
        function = _tangent(spec.algebra, spec.accumulate, tuple(given))
        if function is None:
            return torch.zeros_like(total)
        return self._summed(function, self._values(a, b, None, total) | given, "total", spec.results[0])


def _vjp(algebra: Algebra, x: Tensor, y: Tensor, total: Tensor, grad: Tensor) -> Sequence[Tensor | None]:
    """The gradients that a pair adds to those of its values, by the user's `vjp`."""
    assert algebra.vjp is not None
    found = algebra.vjp(x, y, total, grad)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise FunctionError(f"vjp of the algebra {algebra.name} returns the gradients of x and y, a pair")
    return found


@kept_for_algebra
def _slopes(algebra: Algebra, dtype: torch.dtype) -> tuple[Derived | None, Derived | None]:
    """Functions of what a pair adds to the gradients of x and of y; the first's main input is y, the second's x."""
    combine = algebra.traced(dtype).combine

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        if algebra.vjp is None:
            return pull(combine, (t["x"], t["y"]), (t["grad"],), selecting=True)[0]
        return _vjp(algebra, t["x"], t["y"], t["total"], t["grad"])

    names = ("x", "y", "grad", "total")
    first, second = (
        derived(body, {main: dtype, **dict.fromkeys(names, dtype)}, f"the algebra {algebra.name}")
        for main in ("y", "x")
    )
    return first[0], second[1]


@kept_for_algebra
def _tangent(algebra: Algebra, dtype: torch.dtype, moving: tuple[str, ...]) -> Derived | None:
    """The function of what a pair adds to the tangent of the total; `moving` names the tangents that there are."""
    if algebra.vjp is not None and dtype.is_complex:
        raise UnsupportedError(
            f"the algebra {algebra.name} brings a vjp, which says nothing of forward mode for complex values: use "
            "reverse mode (torch.func.vjp, backward)"
        )

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        if algebra.vjp is None:
            return push(algebra.traced(dtype).combine, (t["x"], t["y"]), [t.get("dx"), t.get("dy")])
        slopes = _vjp(algebra, t["x"], t["y"], t["total"], torch.ones_like(t["x"]))
        pairs = zip(slopes, ("dx", "dy"), strict=True)
        parts = [slope * t[name] for slope, name in pairs if slope is not None and name in t]
        return (sum(parts[1:], parts[0]) if parts else None,)

    names = ("x", "y", "total", *moving)
    return derived(body, dict.fromkeys(names, dtype), f"the algebra {algebra.name}")[0]


@lru_cache(maxsize=256)
def _alongside_a_number(function: Derived, dtype: torch.dtype) -> Pointwise:
    """The function with a value before its inputs that it does not read."""

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return compute(function.function, [t[name] for name in function.inputs])

    inputs = {"weft_number": dtype, **dict(zip(function.inputs, function.function.dtypes, strict=True))}
    return recorded(body, inputs, "the derivative of an algebra")
