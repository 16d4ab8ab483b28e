"""Networks distributed by modes: right, the same bits on every rank and again; within each rank's memory; no hang."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import modes_rank_cases as cases
from on_ranks import Outcome, on_ranks


def values(outcomes: list[Outcome]) -> list[Any]:
    assert [outcome.message for outcome in outcomes] == [""] * len(outcomes)
    assert not any(outcome.ended for outcome in outcomes)
    return [outcome.value for outcome in outcomes]


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_results_are_right_and_the_same_bits_on_all_ranks_and_again(size: int) -> None:
    found = values(on_ranks(size, cases.results))
    for name, first in found[0].items():
        assert first["right"], name
        for one in found:
            for other in (one[name]["first"], one[name]["again"]):
                assert all(np.array_equal(x, y) for x, y in zip(first["first"], other, strict=True)), name
    assert found[0]["ladder"]["sent"] > 0
