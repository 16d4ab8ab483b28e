"""The lines of `explain` on the backward pass of a plan over ranks: its steps, and how each contraction travels."""

from __future__ import annotations

from collections.abc import Iterator

from weft.autograd.explain import named
from weft.autograd.hooks import kept_type
from weft.base.figures import duration, si
from weft.distributed.gradient.rule import RankProduct
from weft.distributed.planned.report import way
from weft.spec.dtypes import dtype_name


def lines_of(rule: RankProduct) -> Iterator[str]:
    """Each step in a line, and under it what its ranks share out, what moves, and when it will be done."""
    for each in rule.described():
        lines = [each.text, "  of each rank's own elements, and what of others belongs to them"]
        if each.plan is not None:
            found = each.plan.prediction
            lines[1] = f"  predicted {duration(found.seconds)}, {found.timeline.bounds} bounds it"
            lines += [f"  {line}" for line in way(found.strategy, each.names)]
        yield from (named(line, rule.form.plain) for line in lines)
    if not rule.kept:
        yield "kept besides operands and results: nothing"
        return
    kind = kept_type(rule.spec)
    size = rule.layout.elements("sums", rule.spec.term_d) * kind.itemsize
    yield f"kept besides operands and results: the sums, {si(size, 'B')} of this rank's in {dtype_name(kind)}"
