"""The order of the modes of every intermediate, chosen so that the next step reads them well.

Neighbouring labels that are neighbours in every tensor that has them are one mode. A step is a plain matrix product,
perhaps in a batch, if it has one mode of each role; a batch over a second mode of m or n does where there is no other
(Y. Shi, U. N. Niranjan, A. Anandkumar, C. Cecka, "Tensor Contractions with Extended BLAS Kernels", HiPC 2016). It costs
nothing beyond the product then; otherwise tensors are permuted for it, which reads and writes them once more.

Dynamic programming over the tree, from the operands to the result: of every large node some orders are kept, each with
the least that the steps under it pay in permutations, and the best chain is read back from the root. Small tensors are
free: they are made as their step wants them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

import torch

from weft.networks.tree import Labels, Model, Tree, TreeStep

Order = tuple[int, ...]
FEW_RESULTS = 64  # of each index of the batch


class StepRoles(NamedTuple):
    """The labels of a step by the tensors they stand in."""

    batch: frozenset[int]
    m: frozenset[int]
    n: frozenset[int]
    k: frozenset[int]

    @classmethod
    def of(cls, left: frozenset[int], right: frozenset[int], out: frozenset[int]) -> StepRoles:
        return cls(left & right & out, (left & out) - right, (right & out) - left, (left | right) - out)


class StepCosts(NamedTuple):
    """The costs of a step before layouts are known: seconds of its products, and of permuting each tensor."""

    roles: StepRoles
    extents: Sequence[int]  # by label
    products: float
    moving: tuple[float, float, float]  # of A, B and D; 0 for one whose layout is free
    tile: int  # rows and columns that the library computes at once


def cost(orders: Sequence[Order], shape: StepCosts) -> float:
    """Seconds that the layouts of A, B and D cost: for tensors to be moved, or for tiles that are not full."""
    sides = _extent(shape, shape.roles.m), _extent(shape, shape.roles.n)
    best = sum(shape.moving) + shape.products * _padding(sides, shape)
    for moved in _moved(shape.moving):
        paid = sum(each for each, away in zip(shape.moving, moved, strict=True) if away)
        if paid >= best:
            break
        share = waste([None if away else order for order, away in zip(orders, moved, strict=True)], shape)
        if share is not None:
            best = min(best, paid + share * shape.products)
    return best


def is_reduction(shape: StepCosts) -> bool:
    """Whether a step is a long sum for a few results, so that it is bound by how its operands are read."""
    return bool(shape.roles.k) and _extent(shape, shape.roles.m) * _extent(shape, shape.roles.n) <= FEW_RESULTS


def waste(orders: Sequence[Order | None], shape: StepCosts) -> float | None:
    """The share of padding in the tiles of the products of A, B and D; None where they are no matrix product."""
    roles = shape.roles
    if roles.batch and any(order and order[-1] in roles.batch for order in orders):
        return None  # none of its rows or columns is contiguous
    if is_reduction(shape) and any(order and order[-1] not in roles.k for order in orders[:2]):
        return None  # both are read once: along the sum, or in pieces
    a, b, d = orders
    if len(_chains(roles.k, (a, b))) > 1:
        return None
    batch = len(_chains(roles.batch, (a, b, d)))
    m, n = _runs(roles.m, (a, d), shape.extents) or [1], _runs(roles.n, (b, d), shape.extents) or [1]
    if batch + len(m) + len(n) > 3:  # a second mode is a batch, of which there is one at most
        return None
    return min(_padding((rows, columns), shape) for rows in m for columns in n)


@lru_cache(maxsize=256)
def _moved(costs: tuple[float, ...]) -> tuple[tuple[bool, ...], ...]:
    """Sets of tensors to be moved, the cheapest first; those that cost nothing always are."""
    found = [moved for moved in product((False, True), repeat=3)
             if all(away or cost for away, cost in zip(moved, costs, strict=True))]  # fmt: skip
    return tuple(sorted(found, key=lambda moved: sum(cost for cost, away in zip(costs, moved, strict=True) if away)))


def _extent(shape: StepCosts, labels: frozenset[int]) -> int:
    return math.prod([shape.extents[label] for label in labels])


def _padding(sides: tuple[int, int], shape: StepCosts) -> float:
    """How much more than the product of its sides a matrix product computes."""
    found = 1.0
    for side in sides:
        tiles = -(-side // shape.tile)
        found *= tiles * shape.tile / max(side, 1) if side * 4 >= shape.tile else 4.0
    return found - 1.0


def _runs(labels: frozenset[int], orders: tuple[Order | None, ...], extents: Sequence[int]) -> list[int]:
    """The extents of the modes that these labels are once neighbours that are so in all tensors are merged."""
    return [math.prod([extents[label] for label in chain]) for chain in _chains(labels, orders)]


@lru_cache(maxsize=1 << 16)
def _chains(labels: frozenset[int], orders: tuple[Order | None, ...]) -> tuple[tuple[int, ...], ...]:
    """Labels in runs that are neighbours in all tensors; None stands for a free layout."""
    there = [_followers(order) for order in orders if order is not None]
    if not there or not labels:
        return (tuple(labels),) if labels else ()
    first, *others = there
    joined = {}
    for label in labels:
        follower = first.get(label)
        if follower in labels:
            for after in others:
                if after.get(label) != follower:
                    break
            else:
                joined[label] = follower
    found = []
    for label in labels.difference(joined.values()):
        chain = [label]
        while (follower := joined.get(chain[-1])) is not None:
            chain.append(follower)
        found.append(tuple(chain))
    return tuple(found)


@lru_cache(maxsize=1 << 14)
def _followers(order: Order) -> dict[int, int]:
    """The label after each label."""
    return dict(pairwise(order))


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
    for m in rows:
        for n in columns:
            for long, short in ((m, n), (n, m)):
                for at in _places(long, ends) if not batch else (0,):
                    yield (*batch, *long[:at], *short, *long[at:])


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
        found[node] = wanted.get(node, found[node])
        if state is not None and node not in forced and (node in large or node not in wanted):
            found[node] = state.order
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


def _suit(tree: Tree, step: TreeStep, roles: StepRoles, large: Labels, found: Orders, wanted: dict[int, Order]) -> None:
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
