"""Random problems of fixed seeds, called many times while programs change: `fuzz_calls` plays them for longer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from fuzz_calls import Found, play
from fuzz_kinds import KINDS, kinds_on
from weft.planner import validity

SHORT, LONG = 60, 1500  # problems


@pytest.fixture(autouse=True)
def defaults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls begin with the library, and change to what is better, as they do for users."""
    monkeypatch.delenv("WEFT_TIERS", raising=False)
    yield
    validity.outdate()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("first", "count"), [(0, SHORT), pytest.param(10_000, LONG, marks=pytest.mark.slow)])
def test_every_call_is_right(first: int, count: int, device: str) -> None:
    found = Found()
    for seed in range(first, first + count):
        play(seed, device, math.inf, found)
    assert not found.faults, found
    assert found.problems == count
    assert found.calls > 5 * count
    assert sum(found.refused.values()) < count / 20, found.refused


def test_every_kind_is_played() -> None:
    assert set(kinds_on("cpu")) >= KINDS.keys() - {"jax"}
    assert "jax" not in kinds_on("cuda")
