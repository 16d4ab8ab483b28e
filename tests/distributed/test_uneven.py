"""Calls over ranks whose extents change from one to the next: a part may look as in an earlier call, and is not."""

from __future__ import annotations

import pytest

import uneven_cases
from gpu.reporting import PARTS
from on_ranks import on_ranks

pytestmark = pytest.mark.early


@pytest.mark.parametrize("rest", PARTS)
def test_every_call_of_a_sequence_is_right(rest: bool) -> None:
    """Every placement, an algebra that sums and one that selects, functions, C and gradients."""
    for outcome in on_ranks(2, uneven_cases.wrong_calls, uneven_cases.CASES[rest::2], limit=240):
        assert (outcome.value, outcome.message) == ([], "")


@pytest.mark.keeps
def test_a_plan_is_found_again_for_the_same_whole_extents() -> None:
    for outcome in on_ranks(2, uneven_cases.plans_made):
        assert outcome.message == ""
        assert outcome.value["changing"] == [1, 1, 0, 0, 0]
        assert outcome.value["outdated"] == [1, 0]


def test_a_group_that_is_begun_anew_has_plans_of_its_own() -> None:
    for outcome in on_ranks(2, uneven_cases.groups_again):
        assert (outcome.value, outcome.message) == ([True] * 3, "")
