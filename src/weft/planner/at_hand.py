"""The choice among shape-generic kernels and in the library tier, by a rule instead of a search.

The families named here are few and offer a handful of schedules each; specialised kernels are `planner.choose`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any

from weft.errors import UnsupportedError, WeftError
from weft.planner.planner import Choice, choose_among
from weft.planner.registry import AT_HAND, beside, imported, shape_generic
from weft.planner.schedule import Description, Ranked, Target

SPECIALIZE = ("auto", "now", "never", "library")  # what `specialize=` may be


def check_specialize(specialize: object) -> None:
    """`UnsupportedError` unless `specialize` is one of `SPECIALIZE`."""
    if not isinstance(specialize, str) or specialize not in SPECIALIZE:
        raise UnsupportedError(f"specialize={specialize!r} is none of {', '.join(map(repr, SPECIALIZE))}")


def has_shape_generic(backend: str) -> bool:
    """Whether a backend has shape-generic kernels; the others have one kind of kernel."""
    return backend in AT_HAND


def at_hand(description: Description, backend: str, target: Target, workspace_limit: int | None = None) -> Choice | str:
    """The best shape-generic choice for a description, or why there is none."""
    try:
        return choose_among(families_at_hand(description, backend), description, backend, target, workspace_limit)
    except UnsupportedError as error:
        return str(error)


def with_others(choice: Choice, workspace_limit: int | None, also: Sequence[Ranked] = ()) -> Choice:
    """The choice with schedules behind its own that planning does not compare: the best one of the library tier and of
    each shape-generic family, and those of `also`."""
    description, target = choice.description, choice.target
    found: dict[Ranked, None] = dict.fromkeys(choice.ranked)
    for name in beside(description, target):
        family = imported(name)
        with suppress(WeftError):
            if isinstance(family, ModuleType):
                found[choose_among([family], description, choice.backend, target, workspace_limit).best] = None
    return replace(choice, ranked=tuple(dict.fromkeys((*found, *also))))


def families_at_hand(description: Description, backend: str) -> list[Any]:
    """Importable shape-generic families for this description."""
    names = shape_generic(description, backend)
    return [family for name in names if isinstance(family := imported(name), ModuleType)]
