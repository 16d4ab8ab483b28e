"""A call over ranks that needs gradients: its plain form, and the rules that are kept with the plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch

from weft.autograd.rule import apply
from weft.autograd.spec import Letters, check_differentiable, plain
from weft.distributed.asked import key_of
from weft.distributed.placement import LocalBlock, Places
from weft.distributed.rank_product import RankProduct
from weft.errors import UnsupportedError, WeftError
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.spec.notation import label_text


class RankGradients:
    """The rules of a plan's calls, one for each set of tensors that ask, made once."""

    def __init__(self, plan: Any) -> None:
        """`plan` is a `DistributedPlan`."""
        self._plan = plan
        self._rules: dict[Any, RankProduct] = {}

    def call(
        self, asking: Collection[str], a: torch.Tensor, b: torch.Tensor, c: LocalBlock | None,
        operands: Mapping[str, torch.Tensor], alpha: Scalar, beta: Scalar,
    ) -> list[torch.Tensor]:  # fmt: skip
        """This rank's part of each result, with what makes gradients of it. Every rank calls it."""
        plan = self._plan
        key = tuple(asking), None if c is None else (c.broadcast, c.tensor.dtype)
        if key not in self._rules:
            make = partial(self._made, asking, c)
            self._rules[key] = plan.ranks.agreed(f"{plan.what}: gradients", make) if plan.agree_backward else make()
        rule = self._rules[key]
        addend = None if c is None else c.tensor
        found = apply(rule, alpha, beta, rule.form.of((a, b, addend, *(operands[name] for name in rule.form.given))))
        return list(found[: len(rule.spec.results)])

    def described(self) -> list[str]:
        """Lines on the backward pass of calls of tensors that ask as those did that the plan was made of.

        No other rank takes part.
        """
        plan, algebra = self._plan, self._plan.request.raw_algebra
        asking = plan.asked.asking
        if not asking:
            return []
        if algebra is not None:
            lines = [f"none: over ranks the algebra {algebra.name} has no gradient"]
        else:
            try:
                lines = list(self._made(asking, None).lines())
            except WeftError as error:
                lines = [f"none: {error}"]
        names = [name for name in plan.asked.options.operands if key_of(name) in asking]
        given = [name for name in ("a", "b") if name in asking]
        return ["", f"backward, of {', '.join((*given, *names))}:", *(f"  {line}" for line in lines)]

    def _made(self, asking: Collection[str], c: LocalBlock | None) -> RankProduct:
        """The rule where these tensors require gradients.

        `DTypeError` where the result has no derivative, `UnsupportedError` where a tensor is repeated along a mode in a
        way that its parts do not tell.
        """
        plan, problem, request = self._plan, self._plan.problem, self._plan.request
        letters, places = Letters(request).of, plan.asked.places
        whole = None if c is None else (problem.addend(c.broadcast, problem.d.places)[0], c.tensor.dtype)
        _refuse_repeated(request, None if whole is None else whole[0], places)
        check_differentiable(request)
        form = plain(request, whole, plan.asked.options.backend)
        placed = {"A": places["a"], "B": places["b"], "D": places["d"]}
        placed |= {f"operand {name}": places[key_of(given)] for (name, _), given in zip(
            form.spec.operands, form.given, strict=True)}  # fmt: skip
        spelled = {
            name: tuple(None if label is None else letters[label] for label in each) for name, each in placed.items()
        }
        names = ("a", "b", *(key_of(name) for name in form.given))
        needs = [name in asking for name in names]
        needs.insert(2, c is not None and "c" in asking)
        extents = {letters[label]: extent for label, extent in problem.extents.items()}
        return RankProduct(plan, form, extents, spelled, tuple(needs))


def _refuse_repeated(request: Request, c: tuple[int, ...] | None, places: Mapping[str, Places]) -> None:
    """Refuse functions of tensors with an extent of 1 that stands for more: they may need the full extent."""
    extents, notation, names = request.extents, request.notation, request.functions.names
    terms = {each.name: each.term for each in request.named}
    given = {"a": (notation.inputs[0], request.a.shape, names[0]), "b": (notation.inputs[1], request.b.shape, names[1])}
    if c is not None:
        given["c"] = notation.output, c, names[2]
    for name, (term, shape, taken) in given.items():
        for label, extent in zip(term, shape, strict=True):
            if extent != 1 or extents.get(label, 1) == 1:
                continue
            reason = ""
            if label in places.get(name, ()):
                reason = "is placed by it: place it whole"
            elif any(label in terms[one] for one in taken):
                reason = "its function takes an operand that lies along it: expand it"
            if reason:
                raise UnsupportedError(
                    f"{name} has extent 1 along '{label_text(label)}', which is {extents[label]}, and {reason} to get "
                    "its gradient"
                )
