"""The fit of layouts to a step: whether it is a plain matrix product, and else which tensors have to be moved first.

Neighbouring labels that are neighbours in every tensor that has them are one mode. What is left is a matrix product,
perhaps in a batch, if it has one mode of each role; a batch over a second mode of m or n does where there is no other
(Y. Shi, U. N. Niranjan, A. Anandkumar, C. Cecka, "Tensor Contractions with Extended BLAS Kernels", HiPC 2016).
Otherwise a tensor is permuted, which reads and writes it once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

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
    m, n = _runs(roles.m, (a, d), shape.extents), _runs(roles.n, (b, d), shape.extents)
    if max(batch, len(m), len(n)) <= 1:
        return _padding((m[0] if m else 1, n[0] if n else 1), shape)
    if batch:
        return None
    if len(m) == 2 and len(n) <= 1:
        return min(_padding((each, n[0] if n else 1), shape) for each in m)
    if len(n) == 2 and len(m) <= 1:
        return min(_padding((m[0] if m else 1, each), shape) for each in n)
    return None


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
