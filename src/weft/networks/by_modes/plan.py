"""The plan of a network whose intermediates are distributed by modes, and what follows from it.

    split    of a step, for each dimension of the mesh: the label whose indices its ranks share out; None: they all
             compute the same
    places   of a step's result, once its sums are complete: the label that each dimension of the mesh splits
    route    of an operand of a step: from its places to where the split needs it
    sums     where a label that ranks share out is summed: over the ranks of that dimension, to all of them or split

Operands of the network are whole on every rank, so their parts are views. Ranks hold parts as `weft.distributed` has
them: those of `torch.chunk`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.base.cached import cached_property
from weft.distributed.group.link import Link
from weft.distributed.planned.moves import PIECE, TensorRoute
from weft.distributed.planned.placement import Places, held
from weft.networks.arena import ResultMemory
from weft.networks.cost import Model
from weft.networks.order import Orders
from weft.networks.tree import Tree, TreeStep

Modes = tuple[int | None, ...]  # the label that each dimension of the mesh splits


@dataclass(frozen=True)
class Prices:
    """Costs of steps and messages; bytes of an element are by node."""

    model: Model
    link: Link
    items: Mapping[int, int]
    sums: Mapping[int, int]  # of sums that are not complete
    result: ResultMemory
    functions: frozenset[int] = frozenset()  # nodes whose function needs complete sums


class StepCost(NamedTuple):
    """Seconds that a step takes on the rank with the largest parts, and the bytes that it sends meanwhile."""

    compute: float
    travel: float
    sent: float


@dataclass(frozen=True)
class ModesPlan:
    """Steps over a mesh of ranks; equal on every rank."""

    tree: Tree
    orders: Orders
    mesh: tuple[int, ...]
    prices: Prices
    split: dict[int, Modes]  # by the node that a step makes
    places: dict[int, Modes]  # of its result

    @property
    def nowhere(self) -> Modes:
        """The places of what is whole on every rank."""
        return (None,) * len(self.mesh)

    def held_as(self, node: int) -> Modes:
        """The places of a node where no step has asked for others."""
        return self.places.get(node, self.nowhere)

    @cached_property
    def routes(self) -> dict[tuple[int, int], TensorRoute]:
        """The way of each step's operands, by its node and theirs, to where the step needs them."""
        pairs = [(step, child) for step in self.tree.steps for child in (step.left, step.right)]
        return {
            (step.node, child): self._route(child, self.held_as(child), self.shared_out(step, child))
            for step, child in pairs
        }

    @cached_property
    def gathering(self) -> TensorRoute:
        """The way of the result, or of a part of it, to every rank."""
        return self._route(self.tree.root, self.held_as(self.tree.root), self.nowhere)

    def _route(self, node: int, source: Places, target: Places) -> TensorRoute:
        order = self.orders[node]
        shape = tuple(self.tree.graph.extents[label] for label in order)
        name = f"operand {node}" if node < self.tree.leaves else f"node {node}"
        return TensorRoute(name, tuple(order), shape, source, target, self.mesh)

    def shared_out(self, step: TreeStep, node: int) -> Modes:
        """The places of a step's tensors while it runs: of its result before it is summed over ranks."""
        labels = self.tree.nodes[node]
        return tuple(label if label in labels else None for label in self.split[step.node])

    def sums(self, step: TreeStep) -> list[tuple[int, int | None]]:
        """Dimensions of the mesh over which a step's result is summed, and the label that splits it there then."""
        labels = self.tree.nodes[step.node]
        split, places = self.split[step.node], self.places[step.node]
        return [
            (line, places[line]) for line, label in enumerate(split) if label is not None and label not in labels
        ]

    def shape(self, node: int, places: Places, at: Sequence[int]) -> tuple[int, ...]:
        """The shape of what the rank at `at` holds of a node."""
        extents = self.tree.graph.extents
        return tuple(held(label, extents[label], places, self.mesh, at).extent for label in self.orders[node])

    def size(self, labels: Iterable[int], places: Places) -> int:
        """Elements of a tensor of these labels on the rank that has most; each label is split once at most."""
        found, extents = 1, self.tree.graph.extents
        ranks = {mode: self.mesh[line] for line, mode in enumerate(places) if mode is not None}
        for label in labels:
            found *= -(-extents[label] // ranks[label]) if label in ranks else extents[label]
        return found

    # -- time ----------------------------------------------------------------------------------------------------------

    def message(self, kind: str, size: float, line: int) -> float:
        """Seconds of a collective along one dimension of the mesh, with the copies to and from where it works.

        `size`: bytes of the whole tensor, on one rank.
        """
        ranks = self.mesh[line]
        copied = 2 * size * (1 if kind == "all-gather" else 2 if kind == "all-reduce" else 2 / ranks)
        return self._links[line].seconds(kind, size, ranks) + copied / self.prices.model.memory

    def load(self, kind: str, size: float, line: int) -> float:
        """Bytes that a rank sends then."""
        return sum(self._links[line].loads(kind, size, self.mesh[line]).values())

    @cached_property
    def _links(self) -> list[Link]:
        """The link between neighbours of each dimension: the last ones are on one machine first."""
        link, mesh = self.prices.link, self.mesh
        return [
            replace(link, per_host=max(1, link.per_host // math.prod(mesh[line + 1 :]))) for line in range(len(mesh))
        ]

    @cached_property
    def shared(self) -> frozenset[tuple[TreeStep, int]]:
        """Steps of a slice with the operands that are the same in every slice."""
        return frozenset(
            (step, child)
            for step in self.tree.steps if step.node not in self.tree.once
            for child in (step.left, step.right) if child in self.tree.once and child >= self.tree.leaves
        )  # fmt: skip

    def times(self, node: int) -> int:
        """How often a call makes a node."""
        return 1 if node in self.tree.once else self.tree.slices

    @cached_property
    def costs(self) -> dict[int, StepCost]:
        """The cost of each step, with what its operands and its sums take to travel, made once."""
        return {step.node: self._cost(step) for step in self.tree.steps}

    def _cost(self, step: TreeStep) -> StepCost:
        prices, split = self.prices, self.split[step.node]
        compute = prices.model.seconds(self.tree, step, lambda labels: self.size(labels, split))
        travel = sent = 0.0
        for child in (step.left, step.right):
            if child >= self.tree.leaves:
                share = self.times(child) / self.times(step.node)
                seconds, load = self._travel(self.routes[step.node, child], prices.items[child])
                travel, sent = travel + share * seconds, sent + share * load
        size = float(self.size(self.tree.nodes[step.node], self.split[step.node]) * prices.sums[step.node])
        for line, target in self.sums(step):
            kind = "all-reduce" if target is None else "reduce-scatter"
            travel, sent = travel + self.message(kind, size, line), sent + self.load(kind, size, line)
            size /= 1 if target is None else self.mesh[line]
        return StepCost(compute, travel, sent)

    def _travel(self, route: TensorRoute, item: int) -> tuple[float, float]:
        """Seconds of a way, and the bytes that a rank sends on it."""
        steps = route.steps(item)
        seconds = sum(self.message(move.kind, size, move.line) for move, size, _ in steps)
        return seconds, sum(self.load(move.kind, size, move.line) for move, size, _ in steps)

    @cached_property
    def _gathered(self) -> tuple[float, float]:
        """Seconds and bytes of gathering the result, part by part."""
        seconds, sent = self._travel(self.gathering, self.prices.items[self.tree.root])
        parts = self.tree.slices // self.tree.summed
        return parts * seconds, parts * sent

    @cached_property
    def seconds(self) -> float:
        """Predicted seconds of a call."""
        found = sum(self.times(node) * (cost.compute + cost.travel) for node, cost in self.costs.items())
        return found + self._gathered[0]

    @property
    def sent(self) -> float:
        """Bytes that the rank with the largest parts sends in a call."""
        return sum(self.times(node) * cost.sent for node, cost in self.costs.items()) + self._gathered[1]

    # -- memory --------------------------------------------------------------------------------------------------------

    @cached_property
    def memory(self) -> int:
        """Bytes that a call holds at once on a rank, besides operands: intermediates, what travels, the result.

        It is that of the rank with the largest parts, in the order in which `run` makes and drops tensors.
        """
        tree, live, most = self.tree, dict[int, int](), 0
        result = self.prices.result.bytes(tree)
        if tree.slices > 1:
            result += self._bytes(tree.root, self.held_as(tree.root), self.prices.sums[tree.root])
        order, bringing = tree.ordered, list(self.shared)
        for step in order:
            moving = [(step, child) for child in (step.left, step.right) if (step, child) not in self.shared]
            if step.node not in self.tree.once:
                moving, bringing = bringing + moving, []
            for taker, child in moving:
                if child >= tree.leaves:
                    most = max(most, sum(live.values()) + self._moving(taker, child, live))
            now, made = self._making(step)
            most = max(most, sum(live.values()) + now)
            for child in (step.left, step.right):
                if (step, child) not in self.shared:
                    live.pop(child, None)
            live[step.node] = made
        return result + max(most, live[tree.root] + self._ending())

    def _ending(self) -> int:
        """Bytes of the result's parts while they are gathered."""
        item = self.prices.items[self.tree.root]
        return max((2 * int(size) for _, size, _ in self.gathering.steps(item)), default=0)

    def _moving(self, step: TreeStep, child: int, live: dict[int, int]) -> int:
        """Bytes besides a step's operand while it travels; `live` has what stays of it."""
        extra = now = 0
        for move, size, ranks in self.routes[step.node, child].steps(self.prices.items[child]):
            part = math.ceil(size / ranks)
            after = part if move.kind == "all-to-all" else int(size)
            extra = max(extra, now + after + min(part, 4 * PIECE))  # two pieces, packed and as they come
            now = after
        live[child] = now or live[child]
        return extra

    def _making(self, step: TreeStep) -> tuple[int, int]:
        """Bytes of a step's result until it is summed, at most, and of what stays of it."""
        wide = self.prices.sums[step.node]
        size = most = self._bytes(step.node, self.split[step.node], wide)
        for line, target in self.sums(step):
            piece = -(-size // self.mesh[line])
            most = max(most, size + piece + (2 * size if target is None else min(2 * size, 5 * PIECE)))
            size = size if target is None else piece
        made = self._bytes(step.node, self.held_as(step.node), self.prices.items[step.node])
        return max(most, made + (size if self.sums(step) else 0)), made

    def _bytes(self, node: int, places: Places, item: int) -> int:
        return self.size(self.tree.nodes[node], places) * item
