"""Functions that compute different things have different fingerprints, however deep the difference lies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from fn.programs import LEAVES, Event, Fn, Spec, build, leaves, specs
from weft.fn import fingerprint

X = torch.tensor([-2.0, -0.75, 0.5, 1.5], dtype=torch.float64)
NUMBERS = (0.5, -0.75, 1.25, 2.0, -1.5, 3.0)


def computed(fn: Fn) -> list[float]:
    return [-0.0 if math.isnan(each) else each for each in fn(X).tolist()]


def known(fn: Fn) -> tuple[Hashable | None, list[float]]:
    return fingerprint(fn), computed(fn)


def check(spec: Spec, numbers: list[float], other: float, count: Counter[str]) -> None:
    """Pairs of programs that differ in one number, and a program before and after one of its numbers changes."""
    events: list[Event] = []
    fn = build(spec, numbers, events)
    pairs: list[tuple[Any, Any]] = []
    first = known(fn)
    for at in range(len(numbers)):
        pairs.append((first, known(build(spec, [*numbers[:at], other, *numbers[at + 1 :]], []))))
    for change in events:
        change(other)
        pairs.append((first, now := known(fn)))
        first = now
    for (one, result), (two, value) in pairs:
        count["pairs"] += 1
        count["that differ"] += result != value
        count["read"] += one is not None and two is not None
        assert one is None or one != two or result == value, (spec, numbers, other)
    count["known again"] += fingerprint(build(spec, numbers, [])) == fingerprint(build(spec, numbers, [])) is not None
    count["programs"] += 1


def tried(examples: int, at: int) -> Counter[str]:
    count: Counter[str] = Counter()

    @seed(at)
    @settings(max_examples=examples, database=None, derandomize=False, suppress_health_check=list(HealthCheck))
    @given(spec=specs, draw=st.data())
    def run(spec: Spec, draw: Any) -> None:
        numbers = draw.draw(st.lists(st.sampled_from(NUMBERS), min_size=leaves(spec), max_size=leaves(spec)))
        check(spec, numbers, 7.0, count)

    run()
    return count


def test_programs_of_one_leaf_or_two() -> None:
    count: Counter[str] = Counter()
    for name in LEAVES:
        check((name,), [0.5], 7.0, count)
    assert count["read"] >= 0.75 * count["pairs"]


def test_some_thousand_pairs() -> None:
    count = tried(500, 0)
    print(dict(count))


@pytest.mark.slow
def test_many_pairs() -> None:
    count: Counter[str] = Counter()
    while count["pairs"] < 100_000:
        count += tried(2000, count["pairs"])
    print(dict(count))
