"""How well a step's tensors lie: whether it is a plain matrix product, and else which of them has to be moved first.

Neighbouring labels that are neighbours in every tensor that has them are one mode. What is left is a matrix product,
perhaps in a batch, if it has one mode of each role; a batch over a second mode of m or n does where there is no other
(Y. Shi, U. N. Niranjan, A. Anandkumar, C. Cecka, "Tensor Contractions with Extended BLAS Kernels", HiPC 2016).
Otherwise a tensor is permuted, which reads and writes it once more. A batch of few may also be unrolled into as many
products, each of tensors with one index of the batch: then it may stand anywhere but last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

Order = tuple[int, ...]
MOST_UNROLLED = 16  # products that a batch is unrolled into


class Roles(NamedTuple):
    """The labels of a step by the tensors they stand in."""

    batch: frozenset[int]
    m: frozenset[int]
    n: frozenset[int]
    k: frozenset[int]

    @classmethod
    def of(cls, left: frozenset[int], right: frozenset[int], out: frozenset[int]) -> Roles:
        return cls(left & right & out, (left & out) - right, (right & out) - left, (left | right) - out)


def moves(orders: Sequence[Order], roles: Roles, costs: Sequence[float], unrolled: bool = False) -> float:
    """The cost of the cheapest set of tensors whose moving makes the step a matrix product; 0 where none has to.

    `orders` are those of A, B and D, `costs` what moving each of them takes.
    """
    for moved in _moved(tuple(costs)):
        lie = [None if away else order for order, away in zip(orders, moved, strict=True)]
        if fits(lie, roles, unrolled):
            return sum(cost for cost, away in zip(costs, moved, strict=True) if away)
    return sum(costs)


@lru_cache(maxsize=256)
def _moved(costs: tuple[float, ...]) -> tuple[tuple[bool, ...], ...]:
    """Sets of tensors to be moved, the cheapest first; those that cost nothing always are."""
    found = [moved for moved in product((False, True), repeat=3)
             if all(away or cost for away, cost in zip(moved, costs, strict=True))]  # fmt: skip
    return tuple(sorted(found, key=lambda moved: sum(cost for cost, away in zip(costs, moved, strict=True) if away)))


def fits(orders: Sequence[Order | None], roles: Roles, unrolled: bool = False) -> bool:
    """Whether A, B and D are a matrix product as they lie; None lies as it is wanted. `unrolled`: for each index of
    the batch."""
    after = [_followers(order) if order is not None else None for order in orders]
    runs = [_runs(labels, [after[at] for at in places]) for labels, places in (
        (roles.batch, (0, 1, 2)), (roles.m, (0, 2)), (roles.n, (1, 2)), (roles.k, (0, 1)),
    )]  # fmt: skip
    batch, m, n, k = runs
    if k > 1 or (roles.batch and _ends_in(orders, roles.batch)):
        return False
    batch = 0 if unrolled else batch
    if max(batch, m, n) <= 1:
        return True
    return batch == 0 and ((m == 2 and n <= 1) or (n == 2 and m <= 1))


def _followers(order: Order) -> dict[int, int]:
    return dict(pairwise(order))


def _runs(labels: frozenset[int], tensors: Sequence[dict[int, int] | None]) -> int:
    """How many modes these labels are once neighbours that are so in all tensors are merged."""
    there = [after for after in tensors if after is not None]
    if not there:
        return min(len(labels), 1)
    count = len(labels)
    for label in labels:
        follower = there[0].get(label)
        if follower in labels and all(after.get(label) == follower for after in there[1:]):
            count -= 1
    return count


def _ends_in(orders: Sequence[Order | None], labels: frozenset[int]) -> bool:
    """Whether some tensor has one of these labels as its fastest: no row or column of it lies together then."""
    return any(order and order[-1] in labels for order in orders)
