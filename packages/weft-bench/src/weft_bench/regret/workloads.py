"""The workloads of fresh processes: an everyday case called over and over, small shapes once each, or a network.

Nothing of weft is imported here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from weft_bench.cases.everyday import EverydayCase, everyday
from weft_bench.cases.everyday.case import case

CALLS, SHAPES, NETWORK = "calls", "shapes", "network"
COUNT, MOST = 150, 48  # small shapes, and the largest extent of one
NETWORKS = ("randreg_200_3", "rand_50_5", "peps_cluster_r2_D10")
EQUATIONS = ("mk,kn->mn", "mk,nk->mn", "bmk,bkn->bmn", "abk,kc->acb")


class Workload(NamedTuple):
    """One row of the table; `kind` is `CALLS`, `SHAPES` or `NETWORK`."""

    name: str
    kind: str


def workloads() -> tuple[Workload, ...]:
    """All of them: the everyday cases that are marked for it, the shapes, the networks."""
    calls = [Workload(each.name, CALLS) for each in everyday() if each.regret]
    return (*calls, Workload(f"{COUNT} small shapes", SHAPES), *(Workload(name, NETWORK) for name in NETWORKS))


def chosen(words: Sequence[str]) -> list[Workload]:
    """The workloads whose name has one of `words` in it; all where there are none.

    Any everyday case may be named in full.
    """
    found = [each for each in workloads() if not words or any(word in each.name for word in words)]
    known = {each.name for each in found}
    return found + [Workload(each.name, CALLS) for each in everyday() if each.name in words and each.name not in known]


def case_of(name: str) -> EverydayCase:
    """The everyday case of that name."""
    return next(each for each in everyday() if each.name == name)


def small_shapes(count: int = COUNT) -> list[EverydayCase]:
    """Contractions of random extents, the same in every process."""
    draw = random.Random(5)
    found = []
    for at in range(count):
        equation = draw.choice(EQUATIONS)
        extents = {label: draw.randint(2, MOST) for label in sorted({*equation} - {*",->"})}
        found.append(case("shapes", f"shape {at}", equation, **extents))
    return found
