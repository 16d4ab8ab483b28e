"""The order of the modes of every intermediate, chosen so that the next step reads them well.

A step whose tensors have the layouts of a matrix product costs nothing beyond the product; otherwise tensors are
permuted for it (`weft.networks.fit`). Dynamic programming over the tree, from the operands to the result: of every
large node some orders are kept, each with the least that the steps under it pay in permutations, and the best chain is
read back from the root. Small tensors are free: they are made as their step wants them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch

from weft.networks.cost import Model
from weft.networks.fit import Order, StepCosts, StepRoles, cost, is_reduction
from weft.networks.tree import Labels, Tree, TreeStep

LARGE = 1 << 20  # bytes from which moving a tensor costs more than a launch
KEPT = 12  # orders of a node
NEVER = 1 << 20  # steps until a label of the result is summed
_LESS = 0.8  # of what a step pays, what the one before it is to reckon with
_PAIRS = 4  # orders of each of two large nodes that are tried with one another
_PASSES = 2.6  # times that permuting a tensor takes of reading it: it is read and written, not all in line
Orders = dict[int, Order]


class OrderState(NamedTuple):
    """One order of a node, what was paid for it, and the orders of its two children that go with it."""

    cost: float
    order: Order
    left: Order = ()
    right: Order = ()


def orders_of(tree: Tree, dtypes: Mapping[int, torch.dtype], price: Model) -> Orders:
    """The order of every node's labels; nodes have these types."""
    found = natural_orders(tree)
    size = {node: tree.size(node) * dtypes[node].itemsize for node in tree.nodes}
    large = frozenset(node for node, count in size.items() if count >= LARGE)
    if not any(step.node in large for step in tree.steps):
        return found
    ends = _ends(tree)
    states: dict[int, list[OrderState]] = {}
    shapes: dict[int, StepCosts] = {}
    for step in sorted(tree.steps, key=lambda step: step.node):
        for child in (step.left, step.right):
            if child not in states:
                states[child] = [OrderState(0.0, found[child])]
        if large & {step.node, step.left, step.right}:
            shapes[step.node] = shape_of(tree, step, size, price)
            given = _Given(tree, step, large, ends[step.node], shapes[step.node])
            states[step.node] = _kept(given, states, found)
    _read_back(tree, states, large, found, shapes)
    return found


def shape_of(tree: Tree, step: TreeStep, size: Mapping[int, int], price: Model) -> StepCosts:
    """The costs of a step before layouts are known."""
    nodes = (step.left, step.right, step.node)
    roles = StepRoles.of(*(tree.nodes[node] for node in nodes))
    a, b, d = (_PASSES * size[node] / price.memory if size[node] >= LARGE else 0.0 for node in nodes)
    products = price.factor * tree.macs(step) / price.rate
    return StepCosts(roles, tree.graph.extents, products, (a, b, d), price.tile)


def natural_orders(tree: Tree) -> Orders:
    """Orders that copy the operands': the labels of one operand first, then the other's; the result as requested."""
    sliced = frozenset(tree.sliced)
    found: Orders = {
        leaf: tuple(label for label in term if label not in sliced) for leaf, term in enumerate(tree.graph.terms)
    }
    for step in sorted(tree.steps, key=lambda step: step.node):
        kept = tree.nodes[step.node]
        found[step.node] = tuple(dict.fromkeys(
            label for child in (step.left, step.right) for label in found[child] if label in kept
        ))  # fmt: skip
    if tree.steps:
        found[tree.root] = tuple(label for label in tree.graph.output if label not in sliced)
    return found


def _ends(tree: Tree) -> dict[int, dict[int, int]]:
    """For each node, how many steps away each of its labels is summed; a label of the result is never."""
    taken = tree.consumers()
    ends: dict[int, dict[int, int]] = {tree.root: dict.fromkeys(tree.nodes[tree.root], NEVER)}
    for step in sorted(tree.steps, key=lambda step: -step.node):
        for child in (step.left, step.right):
            above = ends[taken[child].node]
            ends[child] = {label: above[label] + 1 if label in above else 0 for label in tree.nodes[child]}
    return ends


def _kept(given: _Given, states: Mapping[int, list[OrderState]], natural: Orders) -> list[OrderState]:
    """The best orders of a step's result, the cheapest first."""
    step, large = given.step, given.large
    forced = natural[step.node] if step.node == given.tree.root else None
    best: dict[Order, OrderState] = {}
    few = _PAIRS if step.left in large and step.right in large else KEPT
    for one in states[step.left][: few if step.left in large else 1]:
        for two in states[step.right][: few if step.right in large else 1]:
            paid = one.cost + two.cost
            for order in given.results(one.order, two.order, forced):
                total = paid + cost((one.order, two.order, order), given.shape)
                known = best.get(order)
                if known is None or total < known.cost:
                    best[order] = OrderState(total, order, one.order, two.order)
    moving = given.shape.moving[2]
    ranked = [(state.cost + _ahead(state.order, given.ends, moving), state) for state in best.values()]
    return [state for _, state in sorted(ranked)[:KEPT]]


def _ahead(order: Order, ends: Mapping[int, int], moving: float) -> float:
    """Seconds that later steps may pay: labels that are summed together must be neighbours once all that are summed
    before them are gone. The next step counts in full, later ones less and less."""
    found, weight = 0.0, moving
    for when in sorted({ends[label] for label in order if ends[label] < NEVER}):
        places = [ends[label] == when for label in order if ends[label] >= when]
        first, last = places.index(True), len(places) - 1 - places[::-1].index(True)
        if not all(places[first : last + 1]):
            found += weight
        weight *= _LESS
    return found


class _Given(NamedTuple):
    """A step with at least one large tensor."""

    tree: Tree
    step: TreeStep
    large: Labels
    ends: Mapping[int, int]  # of its result's labels
    shape: StepCosts

    def results(self, left: Order, right: Order, forced: Order | None) -> Iterable[Order]:
        """Orders of the result that are worth trying where the operands have these orders."""
        if forced is not None:
            return (forced,)
        roles = self.shape.roles
        both = (self.step.left in self.large, self.step.right in self.large)
        found = dict.fromkeys(_proposed(left, right, roles, self.ends, both))
        if both[0] is not both[1] and not roles.batch:
            sides = (left, roles.m, roles.n) if both[0] else (right, roles.n, roles.m)
            found |= dict.fromkeys(self._next_to_small(sides[0], sides[1], sides[2]))
        return found

    def _next_to_small(self, order: Order, own: Labels, other: Labels) -> Iterator[Order]:
        """A large operand against a small one, whose layout is free: the new block goes where the step sums, to
        an end, or between labels that are not summed together."""
        k = self.shape.roles.k
        kept = tuple(label for label in order if label in own)
        summed = [at for at, label in enumerate(order) if label in k]
        gap = summed[0] if summed else 0
        inside = bool(summed) and gap > 0 and summed[-1] + 1 < len(order)
        places = {0, gap, len(kept)} if inside else {*_places(kept, self.ends), gap}
        blocks = (_by_end(other, self.ends), _by_end(other, self.ends)[::-1])
        for block in blocks:
            for at in sorted(places):
                yield (*kept[:at], *block, *kept[at:])
        free = _by_end(own, self.ends)
        for rows in (free, free[::-1]):
            for block in blocks:
                for at in (0, len(rows)):
                    yield (*rows[:at], *block, *rows[at:])


def _proposed(
    left: Order, right: Order, roles: StepRoles, ends: Mapping[int, int], large: tuple[bool, bool]
) -> Iterator[Order]:
    """Orders of a result that a matrix product can make, or that suit the steps to come."""
    batch = tuple(label for label in left if label in roles.batch)
    rows = [tuple(label for label in left if label in roles.m)]
    columns = [tuple(label for label in right if label in roles.n)]
    for sides, own, is_large in ((rows, roles.m, large[0]), (columns, roles.n, large[1])):
        free = _by_end(own, ends)
        sides += [free, free[::-1]] if not is_large else [free]
    seen = set()
    for m in rows:
        for n in columns:
            for long, short in ((m, n), (n, m)):
                for at in _places(long, ends) if not batch else (0,):
                    order = (*batch, *long[:at], *short, *long[at:])
                    if order not in seen:
                        seen.add(order)
                        yield order


def _by_end(labels: Labels, ends: Mapping[int, int]) -> Order:
    """Labels that live longest first."""
    return tuple(sorted(labels, key=lambda label: (-ends[label], label)))


def _places(order: Order, ends: Mapping[int, int]) -> list[int]:
    """Where another block may stand among these labels: not amid those that are summed together."""
    inner = [at for at in range(1, len(order)) if ends[order[at - 1]] != ends[order[at]]]
    return [0, *inner, len(order)] if order else [0]


def _read_back(
    tree: Tree, states: Mapping[int, list[OrderState]], large: Labels, found: Orders, shapes: Mapping[int, StepCosts]
) -> None:
    """From the root to the operands, the orders that the cheapest state of the root was made of."""
    wanted: dict[int, Order] = {}
    forced: set[int] = set()
    for step in sorted(tree.steps, key=lambda step: -step.node):
        node = step.node
        state = None
        if node in states and len(states[node][0].left):
            order = wanted.get(node)
            state = next((each for each in states[node] if each.order == order), states[node][0])
        if node in forced:
            found[node] = wanted[node]
        elif state is not None and (node in large or node not in wanted):
            found[node] = state.order
        elif node in wanted:
            found[node] = wanted[node]
        roles = StepRoles.of(*(tree.nodes[each] for each in (step.left, step.right, node)))
        for child, order in ((step.left, state.left if state else ()), (step.right, state.right if state else ())):
            if child >= tree.leaves and child in large and order:
                wanted[child] = order
        _suit(tree, step, roles, large, found, wanted)
        if node in shapes and is_reduction(shapes[node]) and {step.left, step.right} <= large:
            _match(tree, step, roles, found, wanted, forced)


def _match(
    tree: Tree, step: TreeStep, roles: StepRoles, found: Orders, wanted: dict[int, Order], forced: set[int]
) -> None:
    """The smaller operand of a long sum is made in the order in which the sum runs through the larger one."""
    small, other = sorted((step.left, step.right), key=tree.size)
    if small < tree.leaves:
        return
    like = wanted.get(other, found[other])
    summed = tuple(label for label in like if label in roles.k and label in tree.nodes[small])
    rest = tuple(label for label in found[small] if label not in summed)
    wanted[small] = (*rest, *summed)
    forced.add(small)


def _suit(
    tree: Tree, step: TreeStep, roles: StepRoles, large: Labels, found: Orders, wanted: dict[int, Order]
) -> None:
    """The order of a small intermediate next to a large one: summed labels as in that, the rest as in the result."""
    for child, other, own in ((step.left, step.right, roles.m), (step.right, step.left, roles.n)):
        if child in large or child < tree.leaves or child in wanted:
            continue
        if other not in large and step.node not in large:
            continue
        like = wanted.get(other, found[other])
        summed = tuple(label for label in like if label in roles.k and label in tree.nodes[child])
        alone = tuple(label for label in found[child] if label in roles.k and label not in summed)
        batch = tuple(label for label in found[step.node] if label in roles.batch)
        kept = tuple(label for label in found[step.node] if label in own)
        wanted[child] = (*batch, *kept, *alone, *summed)
