"""Functions that compute different things have different fingerprints, however deep the difference lies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import weft
from fn.programs import JOINTS, LEAVES, Event, Fn, Spec, build, leaves, specs
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
    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=False, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(spec=specs, draw=st.data())
    def run(spec: Spec, draw: Any) -> None:
        numbers = draw.draw(st.lists(st.sampled_from(NUMBERS), min_size=leaves(spec), max_size=leaves(spec)))
        check(spec, numbers, 7.0, count)

    run()
    return count


def test_each_joint_of_each_leaf() -> None:
    """Most of them are read, and known again when they are made again: else each call would trace them."""
    count: Counter[str] = Counter()
    for name in LEAVES:
        check((name,), [0.5], 7.0, count)
        for joint in JOINTS:
            check((joint, (name,), (name,)), [0.5, 0.75], 7.0, count)
    assert count["that differ"] >= 0.95 * count["pairs"]
    assert count["read"] >= 0.75 * count["pairs"]
    assert count["known again"] >= 0.75 * count["programs"]


def test_programs_of_some_depth() -> None:
    assert tried(150, 0)["pairs"] > 500


A = torch.tensor([[1.0, -2.0], [0.5, 1.5], [-1.0, 0.25]], dtype=torch.float64)
B = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.75, -0.5]], dtype=torch.float64)
DOORS: dict[str, tuple[Callable[[Fn], torch.Tensor], Callable[[Fn], torch.Tensor]]] = {
    "contract": (lambda fn: weft.contract("ij,jk->ik", A, B, epilogue=fn), lambda fn: fn(A @ B)),
    "contract, a_fn": (lambda fn: weft.contract("ij,jk->ik", A, B, a_fn=fn), lambda fn: fn(A) @ B),
    "einsum": (lambda fn: weft.einsum("ij,jk->ik", A, B, epilogue=fn), lambda fn: fn(A @ B)),
    "permute": (lambda fn: weft.permute(A, "ij->ji", fn=fn), lambda fn: fn(A).T),
    "cascade": (lambda fn: weft.cascade("ij,jk->ik, ik,kj->ij", A, B, B.T, between=fn), lambda fn: fn(A @ B) @ B.T),
    "grouped": (lambda fn: weft.grouped("ij,jk->ik", [(A, B)], epilogue=fn)[0], lambda fn: fn(A @ B)),
}


def alternating(spec: Spec, numbers: list[float], doors: list[str]) -> None:
    """Calls with two programs by turns, remade or as they are, and after each event of the first."""
    events: list[Event] = []
    other = [*numbers[:-1], 7.0]
    first, second = build(spec, numbers, events), build(spec, other, [])
    turns: list[Callable[[], Fn]] = [
        lambda: first, lambda: second, lambda: first, lambda: build(spec, other, []), lambda: build(spec, numbers, []),
    ]  # fmt: skip
    for change in (None, *events):
        if change is not None:
            change(-3.0)
        for turn in turns:
            for door in doors:
                call, plain = DOORS[door]
                torch.testing.assert_close(call(turn()), plain(turn()), msg=f"{door}: {spec}")


@pytest.mark.parametrize("door", DOORS)
def test_doors(door: str) -> None:
    """Some of the leaves in each, in a joint of the same turn."""
    at, joints = list(DOORS).index(door), sorted(JOINTS)
    for place, name in list(enumerate(LEAVES))[at :: 2 * len(DOORS)]:
        alternating((joints[place % len(joints)], (name,), (name,)), [0.5, 0.75], [door])


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", LEAVES)
def test_each_leaf_in_each_door(door: str, name: str) -> None:
    joints = sorted(JOINTS)
    for at in range(2):
        joint = joints[(7 * at + list(LEAVES).index(name)) % len(joints)]
        alternating((joint, (name,), (name,)), [0.5, 0.75], [door])


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 21))
def test_many_programs(at: int) -> None:
    """Twenty times five thousand pairs."""
    count: Counter[str] = Counter()
    while count["pairs"] < 5_000:
        count += tried(400, 1_000_000 * at + count["pairs"])
    assert count["read"] >= 0.6 * count["pairs"]
