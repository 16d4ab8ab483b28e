"""By which modes intermediates are distributed: dynamic programming over the tree, a dimension of the mesh at a time.

For one dimension each step has a label whose indices its ranks share out, or none. Of every node the least that the
steps under it cost is kept for each label that may split it there: the step's own time on a share, what its operands
travel to where it needs them, and a sum over ranks where the shared label is summed. The best is read back from the
root. The next dimension begins with what the ones before it have left of every extent, and takes other labels.

Of the meshes that the ranks may form, and of the slices that remain where all of a rank's memory does not hold its
parts, the fastest is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from weft.base.figures import counted, si
from weft.distributed.group.link import Link
from weft.errors import WorkspaceError
from weft.networks.by_modes.plan import Modes, ModesPlan, Prices
from weft.networks.cost import Model
from weft.networks.order import Orders, orders_of
from weft.networks.plan import NetworkPlan
from weft.networks.settings import kept_whole
from weft.networks.slicing import fitted_slices
from weft.networks.tree import Tree, TreeStep
from weft.plans.intermediates import WIDER

_SMALL = 1 << 12  # a step whose tensors are all smaller than the largest by so much is made by every rank
NEVER = math.inf
Mode = int | None  # the label that one dimension of the mesh splits


def distributed(
    tree: Tree, orders: Orders, mesh: tuple[int, ...], prices: Prices, most: float = NEVER
) -> ModesPlan | None:
    """The plan of a tree over a mesh, with no tensor above `most` bytes on a rank; None where there is none."""
    nothing: dict[int, Modes] = {step.node: () for step in tree.steps}
    plan = ModesPlan(tree, orders, mesh, prices, dict(nothing), dict(nothing))
    for line in range(len(mesh)):
        found = _Line(plan, line, most).solved()
        if found is None:
            return None
        for node, (mode, place) in found.items():
            plan.split[node], plan.places[node] = (*plan.split[node], mode), (*plan.places[node], place)
    return plan


class _Line:
    """One dimension of a mesh; `plan` has what was found for those before it."""

    def __init__(self, plan: ModesPlan, line: int, most: float) -> None:
        self.plan, self.line = plan, line
        self.tree, self.prices, self.split, self.places = plan.tree, plan.prices, plan.split, plan.places
        # Of a tensor here: what it is split by along the dimensions to come is not known yet.
        self.room = most * math.prod(plan.mesh[line + 1 :])
        self.best: dict[int, dict[Mode, tuple[float, Mode]]] = {}  # of a node, by its place: with split
        self.arrivals: dict[tuple[int, Mode], tuple[float, Mode]] = {}
        self.largest = max(self.tree.size(node) * self.prices.items[node] for node in self.tree.nodes)

    def solved(self) -> dict[int, tuple[Mode, Mode]] | None:
        """For each step the label that is shared out, and that which splits its result."""
        tree = self.tree
        for step in sorted(tree.steps, key=lambda step: step.node):
            self.best[step.node] = self._of(step)
            if not self.best[step.node]:
                return None
        item = self.prices.items[tree.root]
        size = self.plan.size(tree.nodes[tree.root], self.places[tree.root]) * item

        def ended(place: Mode) -> float:
            gathered = 0.0 if place is None else self.plan.message("all-gather", size, self.line)
            return self.best[tree.root][place][0] + gathered

        wanted: dict[int, Mode] = {tree.root: min(self.best[tree.root], key=ended)}
        found: dict[int, tuple[Mode, Mode]] = {}
        for step in sorted(tree.steps, key=lambda step: -step.node):
            place = wanted[step.node]
            mode = self.best[step.node][place][1]
            found[step.node] = mode, place
            for child in (step.left, step.right):
                if child >= tree.leaves:
                    wanted[child] = self._arrival(step, child, self._target(child, mode))[1]
        return found

    def _of(self, step: TreeStep) -> dict[Mode, tuple[float, Mode]]:
        """The least cost for each place of a step's result."""
        tree, prices, node = self.tree, self.prices, step.node
        kept: dict[Mode, tuple[float, Mode]] = {}
        times = self.plan.times(node)
        before = self.split[node]
        for mode in self._modes(step):
            arrivals = [self._arrival(step, child, self._target(child, mode))[0] for child in (step.left, step.right)]
            own = prices.model.seconds(tree, step, partial(self.plan.size, places=(*before, mode)))
            cost = sum(arrivals) + times * own
            whole = self.plan.size(tree.nodes[node], before) * prices.sums[node]
            if mode is None or mode in tree.nodes[node]:
                self._keep(kept, node, mode, cost, mode)
            elif whole <= self.room:
                for place in (None, *self._free(tree.nodes[node], node)):
                    kind = "all-reduce" if place is None else "reduce-scatter"
                    message = self.plan.message(kind, whole, self.line)
                    self._keep(kept, node, place, cost + times * message, mode)
        return kept

    def _keep(
        self, kept: dict[Mode, tuple[float, Mode]], node: int, place: Mode, cost: float, mode: Mode
    ) -> None:
        size = self.plan.size(self.tree.nodes[node], (*self.places[node], place)) * self.prices.items[node]
        if size <= self.room and cost < kept.get(place, (NEVER, None))[0]:
            kept[place] = cost, mode

    def _modes(self, step: TreeStep) -> list[Mode]:
        """Labels that the ranks may share out of a step."""
        tree, nodes = self.tree, self.tree.nodes
        sizes = [tree.size(node) * self.prices.items[node] for node in (step.left, step.right, step.node)]
        if max(sizes) * _SMALL < self.largest:
            return [None]
        labels = nodes[step.left] | nodes[step.right]
        if step.node in self.prices.functions:
            labels &= nodes[step.node]
        return [None, *self._free(labels, step.node)]

    def _free(self, labels: Collection[int], node: int) -> Iterable[int]:
        """Labels that may be split along this dimension, too: no other has them in this step, or in its result.

        Those that lie outermost come first, so of equal ones they are taken: what travels is copied in long runs.
        """
        extents, taken = self.tree.graph.extents, {*self.split[node], *self.places[node]}
        outermost = {label: at for at, label in enumerate(self.plan.orders[node])}
        found = [label for label in labels if extents[label] > 1 and label not in taken]
        return sorted(found, key=lambda label: (outermost.get(label, len(outermost)), label))

    def _target(self, child: int, mode: Mode) -> Mode:
        return mode if mode is not None and mode in self.tree.nodes[child] else None

    def _arrival(self, step: TreeStep, child: int, target: Mode) -> tuple[float, Mode]:
        """The least cost of a step's operand where it is to be placed so, and the place that it is made in."""
        if child < self.tree.leaves:
            return 0.0, None
        known = self.arrivals.get((child, target))
        if known is None:
            known = self.arrivals[child, target] = self._arriving(step, child, target)
        return known

    def _arriving(self, step: TreeStep, child: int, target: Mode) -> tuple[float, Mode]:
        labels, before = self.tree.nodes[child], self.places[child]
        size = self.plan.size(labels, before) * self.prices.items[child]
        needed = [label for label in self.split[step.node] if label in labels]
        times = self.plan.times(child)
        found: tuple[float, Mode] = (NEVER, None)
        for place, (cost, _) in self.best[child].items():
            if place is not None and place != target:
                direct = target is not None and place not in needed and target not in before
                if not direct and size > self.room:
                    continue
                kind = "all-to-all" if direct else "all-gather"
                cost += times * self.plan.message(kind, size, self.line)
            if cost < found[0]:
                found = cost, place
        return found


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
