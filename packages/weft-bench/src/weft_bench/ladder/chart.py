"""The chart of a flight, in HTML: it is as wide as the window, light or dark as the reader's system says.

A row for each rung: bars are shares of the roof, of this machine and of those that were recorded; a stroke is what was
predicted, a diamond what a source published of its own roof. Where no roof is known bars are shares of the fastest
rung's speed.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from weft.base.figures import duration
from weft_bench.ladder import text
from weft_bench.ladder.record import Climb, Step
from weft_bench.ladder.recorded import Recording


def anchor(climb: Climb, step: Step) -> str:
    """The place of a rung on the page."""
    return f"{climb.ladder}-{step.number}"


def share_of(step: Step, steps: Sequence[Step]) -> float | None:
    """How long the bar of a rung among these is."""
    if any(each.share for each in steps) or step.interval is None:
        return step.share
    return min(each.interval.value for each in steps if each.interval is not None) / step.interval.value


def chart(climb: Climb, steps: Sequence[Step], others: Sequence[Recording]) -> str:
    """The rows, the first rung on top, under a legend."""
    rows = "\n".join(_row(climb, step, share_of(step, steps), others) for step in steps)
    return f'<div class="bars">\n{_legend(climb, others)}\n{rows}\n</div>'


def _legend(climb: Climb, others: Sequence[Recording]) -> str:
    here = [f'<span><i class="bar here"></i>{html.escape(climb.device)}</span>'] if climb.measured else []
    recorded = [
        f'<span><i class="bar recorded-{at}"></i>{html.escape(each.brief)}, {each.date}</span>'
        for at, each in enumerate(others)
    ]
    marks = '<span><i class="predicted"></i>predicted</span><span><i class="published"></i>published</span>'
    return f'<p class="legend">{"".join((*here, *recorded))}{marks}</p>'


def _row(climb: Climb, step: Step, share: float | None, others: Sequence[Recording]) -> str:
    bars, said = [], []
    if step.seconds:
        bars.append(_bar("here", share))
        said.append(text.duration(step))
    for at, each in enumerate(others):
        found = each.of(climb.ladder, step.flight, step.name)
        bars.append(_bar(f"recorded-{at}", found[1] if found else None))
        said += [duration(found[0])] if found else []
    published = next((each["share"] for each in step.published if each["share"]), None)
    marks = [_mark("predicted", step.predicted_share), _mark("published", published)]
    name = f'<a href="#{anchor(climb, step)}">{step.number} {html.escape(step.name)}</a>'
    track = f'<span class="track">{"".join((*bars, *marks))}</span>'
    return f'<div class="row">{name}{track}<span class="said">{", ".join(said)}</span></div>'


def _bar(kind: str, share: float | None) -> str:
    """A bar, empty where nothing was measured; a share above the roof ends there."""
    width = 100 * min(share or 0.0, 1.0)
    return f'<i class="bar {kind}" style="width:{width:.1f}%"></i>'


def _mark(kind: str, share: float | None) -> str:
    return "" if share is None else f'<i class="{kind}" style="left:{100 * min(share, 1.0):.1f}%"></i>'
