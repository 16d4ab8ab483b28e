"""The slices that a network's path is judged with: those that are requested, and those that its memory limit needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.networks.cost import Model
from weft.networks.fastest import Fit
from weft.networks.memory import ResultMemory
from weft.networks.settings import Settings, node_dtypes
from weft.networks.slicing import fitted_slices, read_slices
from weft.networks.tree import Tree
from weft.plans.intermediates import WIDER


def fit_of(settings: Settings, leaves: Sequence[torch.dtype], model: Model, slices: Any = ()) -> Fit:
    """A function that gives a tree its slices: the labels `slices`, and as many as the limit of these settings needs.

    `leaves` are the operands' types.
    """

    def fit(tree: Tree) -> Tree:
        named = read_slices(tree, slices)
        tree = tree.with_slices(named) if named else tree
        if settings.memory_limit is None or settings.reuse:
            return tree
        dtypes = node_dtypes(tree, leaves, settings)
        dtype = dtypes[tree.root]
        item = {step.node: dtypes[step.node].itemsize for step in tree.steps}
        result_memory = ResultMemory(dtype, WIDER.get(dtype), settings.strip_exponent)
        return fitted_slices(tree, item, result_memory, settings.memory_limit, model)

    return fit
