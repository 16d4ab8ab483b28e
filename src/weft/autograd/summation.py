"""Algebras of your own whose `reduce` is a sum, or that bring a `vjp`: gradients as sums over elements that are not
stored.

    D[m, n] = sum_k f(A[m, k], B[k, n])        dA[m, k] = sum_n dD[m, n] f_x(A[m, k], B[k, n])

The right-hand side is one contraction of B, repeated along m by a stride of 0, whose function reads A and dD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from weft.algebra import Algebra
from weft.api.lookup import one_of
from weft.autograd.backward import Needs
from weft.autograd.function import once
from weft.autograd.spec import A, B, Spec, batched, used_options
from weft.autograd.steps import contraction
from weft.errors import FunctionError, UnsupportedError
from weft.fn.derivative import Derived, derived, pull
from weft.planner.schedule import Scalar


class Summation:
    """The rule of a bare contraction of such an algebra."""

    def __init__(self, spec: Spec, needs: Needs, ahead: bool) -> None:
        self.spec, self.needs, self.ahead = spec, needs, ahead
        assert spec.algebra is not None
        self.slopes = _slopes(spec.algebra, spec.accumulate)

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        spec = self.spec
        return (
            contraction(
                spec.text, tensors[A], tensors[B], algebra=spec.algebra, out_dtype=spec.results[0],
                accumulate=spec.accumulate, **used_options(spec),
            ),
        )  # fmt: skip

    def saved(self, tensors: Sequence[Tensor | None], results: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        return (*tensors[:2], results[0])

    def backward(
        self,
        alpha: Scalar,
        beta: Scalar,
        saved: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
        needs: Needs,
    ) -> tuple[Tensor | None, ...]:
        spec = self.spec
        a, b, total = saved
        grad = grads[0]
        assert a is not None
        assert b is not None
        assert total is not None
        found: list[Tensor | None] = [None] * len(needs)
        if grad is None:
            return tuple(found)
        with torch.no_grad():
            values = {
                "x": (spec.term_a, a.to(spec.accumulate)), "y": (spec.term_b, b.to(spec.accumulate)),
                "grad": (spec.term_d, grad.to(spec.accumulate)), "total": (spec.term_d, total.to(spec.accumulate)),
            }  # fmt: skip
            for side, (own, main) in enumerate((("x", "y"), ("y", "x"))):
                if needs[side]:
                    like, slope = (a, b)[side], self.slopes[side]
                    found[side] = (
                        torch.zeros_like(like) if slope is None else self._summed(slope, own, main, values, like)
                    )
        what = f"the algebra {spec.algebra.name if spec.algebra else ''}"
        return tuple(each if each is None else once(what, each, grad, a, b) for each in found)

    def _summed(
        self, slope: Derived, own: str, main: str, values: Mapping[str, tuple[str, Tensor]], like: Tensor
    ) -> Tensor:
        extents = {label: size for term, each in values.values() for label, size in zip(term, each.shape, strict=True)}
        every = "".join(extents)
        term, tensor = values[main]
        tensor = tensor.permute([term.index(label) for label in every if label in term])
        tensor = tensor[tuple(slice(None) if label in term else None for label in every)]
        tensor = tensor.expand([extents[label] for label in every])
        found: Tensor = contraction(
            f"{every},->{values[own][0]}", tensor, one_of(tensor.dtype, tensor.device), a_fn=slope.function,
            operands={name: values[name] for name in slope.inputs[1:]}, out_dtype=like.dtype,
            **{**used_options(self.spec), "accumulate": self.spec.accumulate},
        )  # fmt: skip
        return found

    def forward_mode(
        self, alpha: Scalar, beta: Scalar, saved: Sequence[Tensor | None], tangents: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        name = self.spec.algebra.name if self.spec.algebra else ""
        raise UnsupportedError(f"the algebra {name} has no forward mode: use reverse mode (torch.func.vjp, backward)")

    def batched(
        self, tensors: Sequence[Tensor | None], batches: Sequence[bool], size: int
    ) -> tuple[Summation, tuple[Tensor | None, ...]]:
        spec, arguments = batched(self.spec, tensors, batches, size)
        return Summation(spec, self.needs, self.ahead), arguments


@lru_cache(maxsize=256)
def _slopes(algebra: Algebra, dtype: torch.dtype) -> tuple[Derived | None, Derived | None]:
    """What each pair adds to the gradients of x and of y; the main input of the first is y, of the second x."""
    combine = algebra.traced(dtype).combine

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        if algebra.vjp is None:
            return pull(combine, (t["x"], t["y"]), (t["grad"],), selecting=True)[0]
        found = algebra.vjp(t["x"], t["y"], t["total"], t["grad"])
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise FunctionError(f"vjp of the algebra {algebra.name} returns the gradients of x and y, a pair")
        return found

    names = ("x", "y", "grad", "total")
    first, second = (
        derived(body, {main: dtype, **dict.fromkeys(names, dtype)}, f"the algebra {algebra.name}")
        for main in ("y", "x")
    )
    return first[0], second[1]
