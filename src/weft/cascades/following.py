"""The function of a cascade's plan, followed: what it computes may change while the plan is kept."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

from weft.base.bounded_cache import BoundedCache
from weft.cascades.between import recorded
from weft.fn.watched import Watched

_OTHERS = 16  # plans of one whose function changes, kept at once


def followed(plan: Any, function: Any) -> Any:
    """The plan for a caller whose function may compute something else by the time of a call."""
    if function is None:
        return plan
    found = copy(plan)
    found.following = Following(found, function)
    return found


class Following:
    """A plan for each of what a function has computed; the first is the one that it is called by."""

    def __init__(self, plan: Any, function: Any) -> None:
        self._plan, self.function = plan, function
        self._watched: Watched[Any] = Watched(
            (function,), partial(recorded, function, plan.types.accumulate, plan.said.given)
        )
        self._first, self._others = self._watched.now(), BoundedCache(_OTHERS)

    def now(self) -> Any:
        """The plan of what the function computes now."""
        traced = self._watched.now()
        if traced == self._first:
            return self._plan
        plan, found = self._plan, self._others.get(traced)
        if found is None:
            found = type(plan)(plan.said, self.function, plan.options, plan.alpha, plan.planned)
            self._others.put(traced, found)
        return found
