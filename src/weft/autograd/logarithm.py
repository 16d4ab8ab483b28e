"""The algebra `log`: gradients by softmax weights that are never stored.

    D[m, n] = log sum_k exp(A[m, k] + B[k, n])       dA[m, k] = sum_n dD[m, n] exp(A[m, k] + B[k, n] - D[m, n])

The sum over n is one of the same algebra, of log|dD| - D with B, for the positive and for the negative dD by itself:

    dA = exp(A + L+) - exp(A + L-)

So it is as fast and as safe from overflow as the forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from weft.api.lookup import one_of
from weft.autograd.backward import Needs
from weft.autograd.function import once
from weft.autograd.spec import A, B, Spec, batched, used_options
from weft.autograd.steps import contraction
from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.fn.derivative import recorded
from weft.planner.schedule import Scalar


class Logarithm:
    """The rule of a bare contraction of `log`."""

    def __init__(self, spec: Spec, needs: Needs, ahead: bool) -> None:
        self.spec, self.needs, self.ahead = spec, needs, ahead

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
        a, b, total = saved
        grad = grads[0]
        assert a is not None
        assert b is not None
        assert total is not None
        found: list[Tensor | None] = [None] * len(needs)
        if grad is None:
            return tuple(found)
        with torch.no_grad():
            signed = self._signed(grad, total)
            for side, (own, other) in enumerate(((a, b), (b, a))):
                if needs[side]:
                    found[side] = self._weighted(signed, own, other, side)
        return tuple(each if each is None else once("the algebra log", each, grad, a, b) for each in found)

    def _signed(self, grad: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """log|dD| - D, of the positive dD and of the negative."""
        term, one = self.spec.term_d, one_of(grad.dtype, grad.device)
        found: tuple[Tensor, Tensor] = contraction(
            f"{term},->{term}", grad, one, epilogue=_logarithms(grad.dtype, total.dtype),
            operands={"weft_total": (term, total)}, **self._elements(), out_dtype=(self.spec.accumulate,) * 2,
        )  # fmt: skip
        return found

    def _weighted(self, signed: tuple[Tensor, Tensor], own: Tensor, other: Tensor, side: int) -> Tensor:
        spec = self.spec
        term, beside = (spec.term_a, spec.term_b) if side == 0 else (spec.term_b, spec.term_a)
        core = "".join(label for label in term if label in beside or label in spec.term_d)
        how = {**used_options(spec), "algebra": spec.algebra, "accumulate": spec.accumulate, "promote": True}
        text = f"{spec.term_d},{beside}->{core}"
        above = contraction(text, signed[0], other, out_dtype=spec.accumulate, **how)
        weights = _weights(own.dtype, spec.accumulate)
        if core == term:  # fused into the second sum
            operands = {"weft_own": (term, own), "weft_above": (term, above)}
            made: Tensor = contraction(
                text, signed[1], other, epilogue=weights, operands=operands, out_dtype=own.dtype, **how
            )
            return made
        below = contraction(text, signed[1], other, out_dtype=spec.accumulate, **how)
        spread = below[tuple(slice(None) if label in core else None for label in term)].expand(own.shape)
        passed: Tensor = contraction(
            f"{term},->{term}", spread, one_of(spread.dtype, spread.device), epilogue=weights,
            operands={"weft_own": (term, own), "weft_above": (core, above)}, out_dtype=own.dtype, **self._elements(),
        )  # fmt: skip
        return passed

    def _elements(self) -> dict[str, object]:
        spec = self.spec
        return {**used_options(spec), "precision": spec.accumulate, "accumulate": spec.accumulate}

    def forward_mode(
        self, alpha: Scalar, beta: Scalar, saved: Sequence[Tensor | None], tangents: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        raise UnsupportedError(
            "the algebra log has no forward mode in weft: use reverse mode (torch.func.vjp, backward)"
        )

    def batched(
        self, tensors: Sequence[Tensor | None], batches: Sequence[bool], size: int
    ) -> tuple[Logarithm, tuple[Tensor | None, ...]]:
        spec, arguments = batched(self.spec, tensors, batches, size)
        return Logarithm(spec, self.needs, self.ahead), arguments


@lru_cache(maxsize=64)
def _logarithms(grad: torch.dtype, total: torch.dtype) -> Pointwise:
    """log|dD| - D of the positive dD and of the negative; where D is minus infinity nothing has a share in it."""

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor]:
        given, whole = t["weft_grad"].to(total), t["weft_total"]
        nowhere = whole == -torch.inf
        return tuple(
            torch.where(nowhere, -torch.inf, torch.log(torch.relu(signed)) - whole) for signed in (given, -given)
        )

    return recorded(body, {"weft_grad": total, "weft_total": total}, "the derivative of log")


@lru_cache(maxsize=64)
def _weights(own: torch.dtype, total: torch.dtype) -> Pointwise:
    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor]:
        value = t["weft_own"].to(total)
        return (torch.exp(value + t["weft_above"]) - torch.exp(value + t["weft_below"]),)

    return recorded(
        body, {"weft_below": total, "weft_own": own, "weft_above": total}, "the derivative of log"
    )
