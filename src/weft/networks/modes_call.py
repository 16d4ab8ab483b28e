"""By which modes intermediates are distributed, and calls of all ranks of a group that are distributed so.

Dynamic programming over the tree, a dimension of the mesh at a time. For one dimension each step has a label whose
indices its ranks share out, or none. Of every node the least that the steps under it cost is kept for each label that
may split it there: the step's own time on a share, what its operands travel to where it needs them, and a sum over
ranks where the shared label is summed. The best is read back from the root. The next dimension begins with what the
ones before it have left of every extent, and takes other labels. Of the meshes that the ranks may form, and of the
slices that remain where all of a rank's memory does not hold its parts, the fastest is chosen.

    agree     every rank has read its operands; network, path, types and the plan are the same
    run       the steps; a rank that fails says so, and the others stop at their next collective
    end       every rank says that it has come so far, before anything is taken for a result"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from functools import cache, partial
from typing import Any

import torch

from weft.base.arrays import grad_mode
from weft.base.figures import counted, digest, si
from weft.distributed.lanes import on
from weft.distributed.link import Link, read_link
from weft.distributed.ranks import Ranks, lines_of, ranks_of, shape_of
from weft.distributed.strategy import RankReduction
from weft.errors import ArgumentError, RankError, UnsupportedError, WorkspaceError
from weft.networks.checkpoint import identity_of
from weft.networks.memory import fitted_slices
from weft.networks.modes import Modes, ModesPlan, ModesRun, Prices
from weft.networks.order import Orders, orders_of
from weft.networks.plan import NetworkPlan, kept_whole
from weft.networks.shared import NetworkCall, call_with_checkpoint, call_with_group, end_together
from weft.networks.tree import Model, Tree, TreeStep
from weft.networks.work import Slices
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
        self.arrival = cache(self._arrival)
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
                    wanted[child] = self.arrival(step, child, self._target(child, mode))[1]
        return found

    def _of(self, step: TreeStep) -> dict[Mode, tuple[float, Mode]]:
        """The least cost for each place of a step's result."""
        tree, prices, node = self.tree, self.prices, step.node
        kept: dict[Mode, tuple[float, Mode]] = {}
        times = self.plan.times(node)
        before = self.split[node]
        for mode in self._modes(step):
            arrivals = [self.arrival(step, child, self._target(child, mode))[0] for child in (step.left, step.right)]
            own = prices.model.seconds(tree, step, partial(self.plan.size, places=(*before, mode)))
            cost = sum(arrivals) + times * own
            whole = self.plan.size(tree.nodes[node], before) * prices.sums[node]
            if mode is None or mode in tree.nodes[node]:
                self._keep(kept, node, mode, cost, mode)
            elif whole <= self.room:
                for place in (None, *self._free(tree.nodes[node], node)):
                    message = self.plan.message(RankReduction(self.line, place).kind, whole, self.line)
                    self._keep(kept, node, place, cost + times * message, mode)
        return kept

    def _keep(self, kept: dict[Mode, tuple[float, Mode]], node: int, place: Mode, cost: float, mode: Mode) -> None:
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
    found = [
        tuple(math.prod(factors[begin : begin + together]) for begin in range(0, len(factors), together))
        for together in range(len(factors), 0, -1)
    ]
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


WAYS = ("slices", "modes", "auto")


def call_at_length(
    given: NetworkCall, over: tuple[Any, Any, Any], run: Callable[[Slices], Any]
) -> tuple[Any, torch.Tensor]:
    """The outcome of a call that ranks share or of which a checkpoint is kept, and where its result is.

    `over`: a group, how it is distributed, and a link, as `Network` takes them.
    """
    if not given.network.tree.steps:
        raise UnsupportedError("a network of one operand has no slices: call it without group and checkpoint")
    group, way, link = over
    if way != "slices" and (made := _call_by_modes(given, group, way, link)) is not None:
        return made, made
    call, place = call_with_checkpoint(given) if group is None else call_with_group(given, group)
    return run(call), place


def _call_by_modes(given: NetworkCall, group: Any, way: Any, link: Any) -> torch.Tensor | None:
    """This rank's side of a call; the result. None where `way` is "auto" and slices are what is taken."""
    if _refused(given, group, way):
        return None
    ranks, network = ranks_of(group, None), given.network
    key = f"{way} {ranks.name} {shape_of(group, None, ranks)} {link}"
    known = given.plans.get(key)
    if isinstance(known, ModesRun) and known.ranks.group is not ranks.group:
        known = None  # of a group that is gone, whose name another one has
    new = known is None
    operands, place, _ = given.agreed(ranks, lambda _: identity_of(network) if new else {}, {"distribute": way})
    if new:
        known = given.plans[key] = _planned(network, ranks, group, way, link)
    if not isinstance(known, ModesRun):
        return None
    outcome, failed = "done", None
    try:
        with on(place.device), ranks.failing(), grad_mode(False):
            known.run(operands, place)
    except Exception as error:  # what fails on some ranks is raised on all
        outcome, failed = "stopped" if isinstance(error, RankError) else "failed", error
    end_together(outcome, failed, ranks, f"the end of {given.name}")
    return place


def _refused(given: NetworkCall, group: Any, way: Any) -> bool:
    """Whether the call has what goes with slices alone, which "modes" refuses."""
    if way not in WAYS:
        raise ArgumentError(f"distribute={way!r} is none of {', '.join(map(repr, WAYS))}")
    if group is None:
        raise ArgumentError(f"distribute={way!r} is for the ranks of a group: pass group=")
    settings = given.network.settings
    asked = {
        "checkpoint": given.folder is not None, "strip_exponent": settings.strip_exponent,
        "check_finite": settings.check_finite,
    }  # fmt: skip
    found = [name for name, is_asked in asked.items() if is_asked]
    if found and way == "modes":
        raise UnsupportedError(f"{found[0]} goes with distribute='slices' alone")
    return bool(found)


def _planned(network: NetworkPlan, ranks: Ranks, group: Any, way: str, link: Any) -> ModesRun | str:
    """The plan that follows from the first rank's figures, and what runs it here; "slices" where `way` is "auto" and
    these are faster, or alone fit."""
    device = network.settings.device
    mine = ranks.agreed("the link", lambda: [astuple(network.model), astuple(read_link(link, ranks, device))])
    found = ranks.exchanged("figures of the device and the link", mine)
    model, over = Model(*found[0][0]), _heard(found[0][1])
    shape = shape_of(group, None, ranks)
    meshes = [shape] if len(shape) > 1 else meshes_of(ranks.size)

    def plan() -> ModesPlan | None:
        try:
            found = chosen(network, over, meshes, model)
        except WorkspaceError:
            if way == "auto":
                return None
            raise
        return found if way == "modes" or found.seconds < by_slices(network, ranks.size, over, model) else None

    made = ranks.agreed(f"the plan of {network!r}", plan, lambda plan: {"distribution by modes": _digest(plan)})
    if made is None:
        return "slices"
    return ModesRun(network, made, ranks, lines_of(group, made.mesh, ranks))


def _digest(plan: ModesPlan | None) -> str:
    if plan is None:
        return "by slices"
    steps = [(step.node, plan.split[step.node], plan.places[step.node]) for step in plan.tree.steps]
    return digest((plan.mesh, plan.tree.sliced, plan.tree.graph.extents, plan.orders, steps))


def _heard(said: list[Any]) -> Link:
    found = Link(*said)
    return found if found.inside is None else replace(found, inside=_heard(said[4]))
