"""The backward pass in `Plan.explain`: its steps with their schedules, and the memory kept for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.autograd.algebras import plain_rule
from weft.autograd.hooks import kept_type
from weft.autograd.permutation import as_contraction
from weft.autograd.product import Product
from weft.autograd.rule import Rule
from weft.autograd.spec import Plain, is_smooth
from weft.autograd.steps import GradientStep
from weft.base.figures import duration, si
from weft.plans.contraction import Plan
from weft.plans.explain.lines import section
from weft.plans.permutation import PermutePlan
from weft.spec.dtypes import dtype_name


def lines_of(plan: Plan, needs: tuple[bool, ...]) -> str:
    """The section of a plan that was made of tensors which require gradients; `needs` says which of them."""
    request, c = plan.request, plan.contraction.c
    tensors: list[torch.Tensor | None] = [_meta(each.shape, each.dtype) for each in (request.a, request.b)]
    tensors.append(_meta(c.shape, c.dtype) if c is not None else None)
    tensors += [_meta(each.layout.shape, each.dtype) for each in request.named if each.layout is not None]
    asked = tuple(need and each is not None for need, each in zip(needs, tensors, strict=False))
    asked = (*asked, *(False,) * (len(tensors) - len(asked)))
    return "\n".join(section("backward", described(*plain_rule(request, tensors, asked))))


def lines_of_permutation(plan: PermutePlan) -> str:
    """The section of a plan that permutes."""
    request = as_contraction(plan.request)
    tensors = (*(_meta(each.shape, each.dtype) for each in (request.a, request.b)), None)
    return "\n".join(section("backward", described(*plain_rule(request, tensors, (True, False, False), permutes=True))))


def described(form: Plain, found: Rule) -> list[str]:
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
    return [*said, _kept(found)]


def _kept(found: Product) -> str:
    if found.kept:
        size = si(found.kept_bytes, "B")
        return f"kept besides operands and results: the sums, {size} in {dtype_name(kept_type(found.spec))}"
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
