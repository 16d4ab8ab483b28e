"""Cost constants are data: every one that is kept is used, and says where it came from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from weft.planner.coefficients import FITTED_ON, SHIPPED, fitted
from weft.planner.registry import FAMILIES, PERMUTATION_FAMILIES

pytest.importorskip("triton")

CONTENT = json.loads((SHIPPED / FITTED_ON).read_text())


def numbers(value: Any) -> Iterator[float]:
    """All that an entry holds."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    else:
        yield value


@pytest.mark.parametrize("section", CONTENT["sections"])
def test_every_constant_is_used(section: str) -> None:
    """One that is asked for and missing is an error at import."""
    for family in (*FAMILIES["triton"], *PERMUTATION_FAMILIES["triton"], "weft.gpu.transpose.family"):
        import_module(family)
    assert fitted(section).used == set(CONTENT["sections"][section]["values"])


@pytest.mark.parametrize("section", CONTENT["sections"])
def test_every_constant_has_a_unit_and_the_day_it_came_with(section: str) -> None:
    for name, entry in CONTENT["sections"][section]["values"].items():
        assert all(math.isfinite(number) and number > 0 for number in numbers(entry["value"])), name
        assert entry["unit"], name
        assert len(entry["commit"]) == 10, name
        assert entry["date"].startswith("20"), name


def test_a_constant_that_is_missing_is_an_error() -> None:
    with pytest.raises(KeyError):
        fitted("tma")("no such constant")
