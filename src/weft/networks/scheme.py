"""The scheme of a network: its slices, the places of intermediates in its arena, and the options of every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from weft.base.figures import counted
from weft.errors import UnsupportedError, WorkspaceError
from weft.networks.arena import SMALL, arena
from weft.networks.cost import invariant
from weft.networks.memory import gathered_bytes
from weft.networks.order import orders_of
from weft.networks.planned import Planned
from weft.networks.program import NetworkScheme
from weft.networks.replay import may_replay
from weft.networks.settings import kept_whole
from weft.networks.slicing import apart_within, fitted_slices
from weft.networks.steps import StepOptions
from weft.networks.tree import Tree
from weft.plans.intermediates import is_of_halves

WORKSPACE = 4 << 20  # bytes that a kernel may take for packing whatever the limit: they stay in the caches


def sliced_tree(network: Planned, slices: Iterable[int]) -> Tree:
    """The tree of a call, with the slices that are requested or that the limit needs."""
    tree, limit = network.folded.tree, network.settings.memory_limit
    there = {label for term in tree.graph.terms for label in term}
    functions = network.ours(network.functions)
    kept = kept_whole(tree, functions)
    asked = [label for label in slices if label in there]
    if wrong := kept & set(asked):
        raise UnsupportedError(
            f"'{tree.graph.text(sorted(wrong))}' cannot be sliced: a function is applied to sums over it, "
            "which are not complete in a slice"
        )
    if network.settings.reuse and asked:
        raise UnsupportedError("reuse keeps every intermediate, of which each slice has its own: do without slices")
    tree = tree.with_slices(asked)
    if limit is None or not tree.steps:
        return tree
    items = {node: dtype.itemsize for node, dtype in network.ours(network.dtypes).items()}
    if network.settings.reuse:
        return tree
    return fitted_slices(tree, items, network.result_memory, limit, network.model, kept)


def scheme_of(network: Planned, leaves: Sequence[torch.dtype]) -> NetworkScheme:
    """The arena, the orders of modes and the options of steps of a network; `WorkspaceError` past its limit."""
    tree, settings = network.tree, network.settings
    dtypes = network.ours(network.dtypes)
    items = {node: dtype.itemsize for node, dtype in dtypes.items()}
    once = invariant(tree) if tree.sliced else frozenset()
    options = settings.of_steps
    limit = settings.memory_limit
    result_memory = network.result_memory.bytes(tree)
    apart = SMALL if limit is None else apart_within(limit - result_memory)
    place = arena(tree, items, once, keep=settings.reuse, apart=apart)
    gathered = 0
    replays = settings.device.type == "cuda" and not (settings.strip_exponent or settings.check_finite)
    if replays and may_replay(tree, once, network.model, settings.cuda_graph):
        gathered = gathered_bytes(tree, once, dtypes)
    if limit is not None:
        total = place.size + result_memory
        if total > limit:
            holds = "with every intermediate kept (reuse=True) the network" if tree.steps else "the result"
            raise WorkspaceError(
                f"memory_limit is {counted(limit, 'byte')}; {holds} still needs {counted(total, 'byte')}"
            )
        gathered = gathered if total + gathered <= limit else 0  # steps are launched one by one then
        options = replace(options, workspace_limit=max(limit - total - gathered, WORKSPACE))
    orders = orders_of(tree, items, network.model)
    asked = StepOptions(options, is_of_halves(leaves))
    return NetworkScheme(tree, orders, dtypes, place, once, asked, network.ours(network.functions), gathered)
