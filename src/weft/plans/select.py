"""Which schedule a plan is made of: the cost model's, or what was measured where that is known or asked for."""

from __future__ import annotations

from weft.planner.planner import Choice, choose
from weft.planner.schedule import Description, Target
from weft.planner.tuned import recalled


def select(
    description: Description, backend: str, target: Target, workspace_limit: int | None = None, tune: str | None = None
) -> Choice:
    """The choice that a plan is made of.

    `tune` None: the tuned schedule where one is stored, else the cost model's; nothing is measured. "model": the
    cost model's, whatever is stored. "measure": the stored tuned schedule, else one found now by measuring.
    Raises what `choose` raises.
    """
    choice = choose(description, backend, target, workspace_limit)
    if tune == "model" or len(choice.ranked) == 1:
        return choice
    found = recalled(choice, workspace_limit)
    if found is not None:
        return found
    if tune == "measure":
        from weft.tune.tuner import tuned

        return tuned(choice, workspace_limit)
    return choice
