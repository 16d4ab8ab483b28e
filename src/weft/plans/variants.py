"""What plans of all kinds have in common: built variants, one of which stands for the plan."""

from __future__ import annotations

import copy
from typing import Any, Self


class Varied:
    """A plan that has a variant for each way its tensors may lie, built when it first appears.

    Plans are shared by all who ask for them. So that each describes itself as the call that it was made for, a plan has
    likenesses, which share all that it knows and differ in what they stand for.
    """

    _variants: dict[Any, Any]
    _meant: Any = None  # the variant that a likeness stands for; the plan itself stands for its first

    def _first(self) -> Any:
        """The variant that stands for the plan where it describes itself."""
        return self._meant or next(iter(self._variants.values()), None) or self._usual()

    def _usual(self) -> Any:
        """The variant of a call that says nothing special."""
        raise NotImplementedError

    def _standing_for(self, variant: Any) -> Self:
        if variant is self._first():
            return self
        likeness = copy.copy(self)
        likeness._meant = variant
        return likeness
