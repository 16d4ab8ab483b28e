"""Which schedule a plan is made of: the cost model's, or the measured one where that is known or requested."""

from __future__ import annotations

import difflib
from dataclasses import replace
from itertools import chain

from weft.errors import UnsupportedError
from weft.planner.planner import Choice, choose
from weft.planner.schedule import Description, Origin, Schedule, Target, in_every_order
from weft.planner.tuned import recalled


def select(
    description: Description,
    backend: str,
    target: Target,
    workspace_limit: int | None = None,
    tune: str | None = None,
    schedule: Schedule | str | None = None,
) -> Choice:
    """The choice that a plan is made of.

    `tune` None: the tuned schedule where one is stored, else the cost model's; nothing is measured. "model": the
    cost model's, whatever is stored. "measure": the stored tuned schedule, else one found now by measuring.
    `schedule` forces one, by the object or its printed form. Raises what `choose` raises.
    """
    choice = choose(description, backend, target, workspace_limit)
    if schedule is not None:
        return _forced(choice, schedule)
    if tune == "model":
        return choice
    found = recalled(choice, workspace_limit)
    if found is not None:
        return found
    if tune == "measure":
        from weft.tune.tuner import tuned

        return tuned(choice, workspace_limit)
    return choice


def _forced(choice: Choice, schedule: Schedule | str) -> Choice:
    """The choice of that schedule alone; `UnsupportedError` with the nearest where it is not legal here."""
    others = (other for each in choice.ranked for other in in_every_order(each)[1:])
    for rank in chain(choice.ranked, others):
        if schedule in (rank.schedule, str(rank.schedule)):
            return replace(choice, best=rank, ranked=(rank,), origin=Origin("forced"))
    texts = [str(rank.schedule) for rank in choice.ranked]
    near = difflib.get_close_matches(str(schedule), texts, n=1, cutoff=0.0)
    raise UnsupportedError(
        f"schedule {str(schedule)!r} is none of the {len(texts)} that can compute this: the nearest is {near[0]!r}"
    )
