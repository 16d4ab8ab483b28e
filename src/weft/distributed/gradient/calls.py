"""A call over ranks that needs gradients: the tensors that require them, and the rule that is kept with the plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from weft.algebra import Algebra
from weft.autograd.function import apply
from weft.base.arrays import grad_mode, is_transforming
from weft.distributed.gradient.explain import lines_of
from weft.distributed.gradient.form import form_of
from weft.distributed.gradient.rule import DifferentiatedPlan, RankProduct
from weft.distributed.planned.blocks import LocalBlock
from weft.distributed.planned.placement import Places
from weft.errors import UnsupportedError, WeftError
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.plans.derivatives import asks


def asking(tensors: Mapping[str, torch.Tensor | None], algebra: Algebra | None) -> list[str]:
    """The names of tensors that require a gradient; `UnsupportedError` where there is none."""
    refuse_transforms(tensors)
    found = [name for name, tensor in tensors.items() if tensor is not None and asks(tensor)]
    if found and algebra is not None:
        raise UnsupportedError(
            f"{found[0]} requires a gradient: over ranks the algebra {algebra.name} has none, plus_times has; detach "
            f"{found[0]}, or call weft.contract on whole tensors"
        )
    return found


def refuse_transforms(tensors: Mapping[str, torch.Tensor | None]) -> None:
    """`UnsupportedError` where a derivative is requested otherwise than by a tensor that requires a gradient."""
    for name, tensor in tensors.items():
        with grad_mode(False):  # what requests derivatives nevertheless does so otherwise
            otherwise = tensor is not None and (is_transforming() or asks(tensor))
        if otherwise:
            raise UnsupportedError(
                f"{name} is inside a transform of torch.func, or has a tangent: contractions over ranks have "
                "gradients in reverse mode alone, by requires_grad and backward"
            )


class Gradients:
    """The rules of a plan's calls, one for each set of tensors that ask, made once."""

    def __init__(
        self, plan: DifferentiatedPlan, what: str, request: Request, places: Mapping[str, Places], backend: str
    ) -> None:
        """`request` is of the whole tensors; `places` are those of operands, by their names in the call."""
        self._plan, self._what, self._request = plan, what, request
        self._places, self._backend = places, backend
        self._rules: dict[Any, RankProduct] = {}

    def call(
        self, a: torch.Tensor, b: torch.Tensor, c: LocalBlock | None, operands: Mapping[str, torch.Tensor],
        alpha: Scalar, beta: Scalar,
    ) -> list[torch.Tensor]:  # fmt: skip
        """This rank's part of each result, with what makes gradients of it. Every rank calls it."""
        ranks = self._plan.ranks
        addend = None if c is None else c.tensor
        asked = tuple(each is not None and asks(each) for each in (a, b, addend, *operands.values()))
        key = asked, None if c is None else (c.broadcast, c.tensor.dtype)
        if key not in self._rules:

            def make() -> RankProduct:
                return self._made(asked[:3], dict(zip(operands, asked[3:], strict=True)), c, a.device)

            self._rules[key] = ranks.agreed(f"{self._what}: gradients", make) if self._plan.agree_backward else make()
        rule = self._rules[key]
        tensors = rule.form.of((a, b, addend, *(operands[name] for name in rule.form.given)))
        found = apply(rule, alpha, beta, tensors)
        return list(found[: len(rule.spec.results)])

    def described(self, given: Collection[str], names: Collection[str], device: torch.device) -> list[str]:
        """Lines on the backward pass of calls in which `given` of A and B, and operands of these names, ask.

        No other rank takes part.
        """
        algebra = self._request.raw_algebra
        if algebra is not None:
            return [f"none: over ranks the algebra {algebra.name} has no gradient"]
        try:
            rule = self._made(("a" in given, "b" in given, False), {name: name in names for name in self._places}, None,
                              device)  # fmt: skip
            return list(lines_of(rule))
        except WeftError as error:
            return [f"none: {error}"]

    def _made(
        self, asked: tuple[bool, ...], of_operands: Mapping[str, bool], c: LocalBlock | None, device: torch.device
    ) -> RankProduct:
        """The rule where these of A, B and C, and of operands, require gradients."""
        problem = self._plan.problem
        whole = None
        if c is not None:
            whole = problem.addend(c.broadcast, problem.d.places)[0], c.tensor.dtype
        at = problem.at(self._plan.ranks.rank)
        form, layout = form_of(problem, at, self._request, whole, self._places, self._backend)
        needs = (*asked, *(of_operands[name] for name in form.given))
        return RankProduct(self._plan, self._what, form, layout, needs, device)
