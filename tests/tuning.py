"""Fixtures for tests that tune: a store of their own, few candidates, and a list of what is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import own_cache
from weft.planner import validity
from weft.tune import many, tuner
from weft.tune.candidates import Effort

QUICK = Effort(leaders=2, each=0, samples=0, finals=1, last=0.001)


def begin(monkeypatch: pytest.MonkeyPatch, cache: Path, tiers: str = "1") -> None:
    """An empty store, plans of no other test, and two candidates for each contraction."""
    own_cache(monkeypatch, cache)
    monkeypatch.setenv("WEFT_TIERS", tiers)
    monkeypatch.setattr(many, "FEW", QUICK)
    monkeypatch.setattr(tuner, "Effort", lambda: QUICK)  # of one contraction
    validity.outdate()


def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The descriptions that are tuned from now on."""
    seen: list[Any] = []
    original: Callable[..., Any] = tuner.tune

    def noted(choice: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(choice.description)
        return original(choice, *arguments, **options)

    monkeypatch.setattr(tuner, "tune", noted)
    return seen
