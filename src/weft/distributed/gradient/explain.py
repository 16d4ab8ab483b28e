"""The lines of `explain` on the backward pass of a plan over ranks: its steps, and how each contraction travels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.autograd.explain import kept, named
from weft.autograd.spec import is_smooth
from weft.autograd.steps import ONE, Spread
from weft.base.figures import duration
from weft.distributed.gradient.rule import RankProduct
from weft.distributed.planned.report import way


def lines_of(rule: RankProduct) -> Iterator[str]:
    """The forward pass where it keeps its sums, each step of a full backward pass, and what is kept."""
    sources = rule.empty_parts()
    if rule.kept:
        yield from _lines(rule, "D, and the sums that are kept", ("A", "B", "D"), rule.forward_sketch(sources))
    for step in rule.steps(tuple(is_smooth(dtype) for dtype in rule.spec.results), rule.needs):
        left, right = (step.source, ONE) if isinstance(step, Spread) else (step.left, step.right)
        yield from _lines(rule, step.line(), (left, right, step.target), rule.sketch(step, sources))
    yield kept(rule, " of this rank's")


def _lines(rule: RankProduct, text: str, names: tuple[str, str, str], plan: Any) -> Iterator[str]:
    """A step in a line, and under it what its ranks share out, what moves, and when it will be done."""
    lines = [text, "  of each rank's own elements, and what of others belongs to them"]
    if plan is not None:
        found = plan.prediction
        lines[1] = f"  predicted {duration(found.seconds)}, {found.timeline.bounds} bounds it"
        lines += [f"  {line}" for line in way(found.strategy, names)]
    for line in lines:
        yield named(line, rule.form)
