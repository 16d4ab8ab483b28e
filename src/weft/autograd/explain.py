"""The backward pass in `Plan.explain`: its steps with their schedules, and the memory kept for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.autograd.algebras import Composed, plain_form, rule
from weft.autograd.backward import Needs
from weft.autograd.hooks import kept_type
from weft.autograd.permutation import as_contraction
from weft.autograd.product import Product
from weft.autograd.rule import Rule
from weft.autograd.spec import Plain, check_differentiable, is_smooth
from weft.autograd.steps import GradientStep
from weft.base.figures import duration, si
from weft.plans.contraction import Plan
from weft.plans.explain.lines import section
from weft.plans.permutation import PermutePlan
from weft.spec.dtypes import dtype_name


def explained(plan: Plan | PermutePlan, needs: Needs) -> str:
    """The backward pass of a plan that was made of tensors which require gradients; `needs` says which of them."""
    request = plan.request if isinstance(plan, Plan) else as_contraction(plan.request)
    needs = needs if isinstance(plan, Plan) else (True,)
    tensors: list[torch.Tensor | None] = [_meta(each.shape, each.dtype) for each in (request.a, request.b)]
    c = plan.contraction.c if isinstance(plan, Plan) else None
    tensors.append(_meta(c.shape, c.dtype) if c is not None else None)
    tensors += [_meta(each.layout.shape, each.dtype) for each in request.named if each.layout is not None]
    asked = [need and each is not None for need, each in zip(needs, tensors, strict=False)] + [False] * len(tensors)
    check_differentiable(request)
    form, places = plain_form(request, tensors, request.backend)
    shapes = tuple([None if each is None else tuple(each.shape) for each in form.of([tensors[at] for at in places])])
    needed, permutes = tuple([asked[at] for at in places]), isinstance(plan, PermutePlan)
    found = rule(form.spec, needed, shapes, request.device, False, permutes)
    return "\n".join(section("backward", described(form, found)))


def described(form: Plain, found: Rule | Composed) -> list[str]:
    """Lines on a rule: the steps of a full backward pass, and what is kept."""
    if not isinstance(found, Product):
        return [f"by the rule {type(found).__name__.lower()}: {(type(found).__doc__ or '').splitlines()[0]}"]
    steps = found.steps(tuple(is_smooth(dtype) for dtype in form.spec.results), found.needs)
    said, metas = [], found.metas()
    for step in steps:
        text = step.line()
        if isinstance(step, GradientStep):
            metas[step.target], choice = step.chosen(metas, found.device)
            if choice is not None:
                text += f"; predicted {duration(choice.best.seconds)}: {choice.best.schedule}"
        said.append(named(text, form))
    return [*said, kept(found)]


def kept(found: Product, whose: str = "") -> str:
    """A line on what is kept for the backward pass; `whose` the sums are, where it is not all of them."""
    if found.kept:
        size = si(found.sums_bytes, "B")
        return f"kept besides operands and results: the sums, {size}{whose} in {dtype_name(kept_type(found.spec))}"
    if found.again:
        return "kept besides operands and results: nothing; the sums are made again"
    return "kept besides operands and results: nothing"


def named(text: str, form: Plain) -> str:
    """Operands by the names that the call gives them."""
    for (inner, _), name in zip(form.spec.operands, form.given, strict=True):
        text = text.replace(f"operand {inner}", name)
    return text


def _meta(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="meta")
