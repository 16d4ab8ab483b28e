"""Values of what is made of constants alone, contracted once when a network is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from weft.base.kept import await_making, is_capturing
from weft.errors import call_context
from weft.networks.folding import Folded
from weft.networks.order import orders_of
from weft.networks.planned import Planned
from weft.networks.steps import StepOptions, as_launched, prepared
from weft.networks.tree import Tree
from weft.plans.intermediates import is_of_halves


def made_constants(
    network: Planned, whole: Tree, parts: Folded, given: Mapping[int, torch.Tensor]
) -> list[torch.Tensor]:
    """Operands of the folded tree after the caller's: constants as they are, and nodes made of them."""
    items = {step.node: network.dtypes[step.node].itemsize for step in whole.steps}
    orders = orders_of(whole, items, network.model)
    halves = is_of_halves([network.dtypes[leaf] for leaf in range(whole.leaves)])
    extents, asked = whole.graph.extents, StepOptions(network.settings.of_steps, halves)
    values: dict[int, Any] = {at: whole.graph.operands[at].view(tensor) for at, tensor in given.items()}
    with call_context(lambda: "the constants of a network"):
        for step in parts.steps:
            shape = [extents[label] for label in orders[step.node]]
            values[step.node] = torch.empty(shape, dtype=network.dtypes[step.node], device=network.settings.device)
            function = network.functions.get(step.node)
            call = prepared(
                (step.left, step.right, step.node), (orders[step.left], orders[step.right], orders[step.node]),
                (values[step.left], values[step.right], None, values[step.node]),
                asked.having(epilogue=function) if function is not None else asked,
            )  # fmt: skip
            ready = [as_launched(values[node]) for node in (step.left, step.right, step.node)]
            call.launch(ready[0], ready[1], None, ready[2], call.one, call.zero, call.aux)
    if parts.steps and not is_capturing(network.settings.device):
        await_making(network.settings.device)
    return [given[node] if node in given else values[node] for node in parts.made]
