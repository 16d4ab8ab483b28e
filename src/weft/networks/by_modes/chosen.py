"""Which mesh the ranks form, and which slices remain where all of a rank's memory does not hold its parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.base.figures import counted, si
from weft.distributed.group.link import Link
from weft.errors import WorkspaceError
from weft.networks.by_modes.plan import ModesPlan, Prices
from weft.networks.by_modes.search import NEVER, distributed
from weft.networks.cost import Model
from weft.networks.order import orders_of
from weft.networks.plan import NetworkPlan
from weft.networks.settings import kept_whole
from weft.networks.slicing import fitted_slices
from weft.networks.tree import Tree
from weft.plans.intermediates import WIDER


def meshes_of(ranks: int) -> list[tuple[int, ...]]:
    """Meshes of so many ranks that are looked at: one dimension, then products of their prime factors, then these.

    A dimension splits one label: labels of small extents need dimensions of few ranks.
    """
    factors, rest = [], ranks
    for number in range(2, ranks + 1):
        while rest % number == 0:
            factors.append(number)
            rest //= number
    found = []
    for together in range(len(factors), 0, -1):
        begins = range(0, len(factors), together)
        found.append(tuple(math.prod(factors[begin : begin + together]) for begin in begins))
    return list(dict.fromkeys(found)) or [(1,)]


def chosen(
    network: NetworkPlan, link: Link, meshes: Sequence[tuple[int, ...]], model: Model | None = None
) -> ModesPlan:
    """The fastest plan by prediction whose memory is within the network's limit on every rank.

    Of the trees that are looked at, the one with the fewest slices that fits: the limit of each is that of all ranks
    together, then three quarters of that, down to one rank's. `WorkspaceError` says the least that would do.
    """
    prices = prices_of(network, link, model or network.model)
    limit = network.settings.memory_limit
    least = NEVER
    for tree in _trees(network, max(map(math.prod, meshes))):
        orders = orders_of(tree, network.dtypes, prices.model)
        fitting = []
        for mesh in meshes:
            for plan in _smaller(tree, orders, mesh, prices, limit):
                least = min(least, plan.memory)
                if limit is None or plan.memory <= limit:
                    fitting.append(plan)
                    break
        if fitting:
            return min(fitting, key=lambda plan: plan.seconds)
    assert limit is not None
    raise WorkspaceError(
        f"memory_limit is {counted(limit, 'byte')} ({si(limit, 'B')}); distributed by modes over "
        f"{counted(math.prod(meshes[0]), 'rank')} the network still needs {si(least, 'B')} on each"
    )


def prices_of(network: NetworkPlan, link: Link, model: Model) -> Prices:
    """Prices of a network's steps on such a device, and of its messages over such a link."""
    dtypes = network.dtypes
    items = {node: dtype.itemsize for node, dtype in dtypes.items()}
    sums = {node: WIDER.get(dtype, dtype).itemsize for node, dtype in dtypes.items()}
    return Prices(model, link, items, sums, network.result_memory, frozenset(network.functions))


def _trees(network: NetworkPlan, ranks: int) -> Iterator[Tree]:
    """The network's tree with ever more slices; its own where there is no limit."""
    tree, limit = network.tree, network.settings.memory_limit
    if limit is None:
        yield tree
        return
    kept = kept_whole(tree, network.functions)
    seen = set()
    room = limit * ranks
    while room > limit:
        found = fitted_slices(tree, network.dtypes, network.result_memory, room, network.model, kept)
        if (key := (found.sliced_labels, found.stretches)) not in seen:
            seen.add(key)
            yield found
        room = room * 3 // 4
    if (tree.sliced_labels, tree.stretches) not in seen:
        yield tree


def _smaller(
    tree: Tree, orders: dict[int, tuple[int, ...]], mesh: tuple[int, ...], prices: Prices, limit: int | None
) -> Iterator[ModesPlan]:
    """Plans over one mesh, whose tensors take ever less on a rank; of each size last one in which little travels, as
    what travels takes memory, too."""
    most, rarely = NEVER, replace(prices, link=replace(prices.link, latency=1.0, bandwidth=1.0, inside=None))
    while (plan := distributed(tree, orders, mesh, prices, most)) is not None:
        yield plan
        if limit is None:
            return
        still = distributed(tree, orders, mesh, rarely, most)
        if still is not None:
            yield replace(still, prices=prices)
        most = min(most, limit) / 2 if most < NEVER else float(limit)
        if most < 1:
            return


def by_slices(network: NetworkPlan, ranks: int, link: Link, model: Model) -> float:
    """Predicted seconds of a call whose slices as many ranks share."""
    tree = network.tree
    each, shared = model.of_slice(tree)
    summed = link.seconds("all-reduce", network.result_bytes, min(ranks, tree.slices))
    return shared + -(-tree.slices // ranks) * each + summed
