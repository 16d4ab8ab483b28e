"""Collectives of a group, the shares of its ranks, and how a call stops on all of them."""

from __future__ import annotations

import heapq
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from weft.algebra import Algebra
from weft.base.arrays import as_bytes, flat
from weft.distributed.group.ranks import Ranks
from weft.errors import RankError

LOOK = 0.5  # seconds between looks at the sign: each reads the store
_counts: dict[str, int] = {}  # of signs by group: every rank of a group counts alike


class StopSign:
    """One sign for one call on all ranks; every rank makes it at the same place."""

    def __init__(self, ranks: Ranks) -> None:
        ranks.hosts()  # who they are is known from here on: to look whether they run needs no message
        name = str(ranks.group.group_name)
        _counts[name] = _counts.get(name, -1) + 1
        self._ranks, self._key = ranks, f"stop/{_counts[name]}"
        self._looked = time.monotonic()

    def put_up(self) -> None:
        """Let the other ranks stop at their next look."""
        self._ranks._store.set(self._key, str(self._ranks.rank))

    def seen(self) -> bool:
        """Whether a rank has put it up, looked at now and then; `RankError` where one has ended."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return False
        self._looked = now
        if ended := self._ranks._ended(range(self._ranks.size)):
            raise RankError(f"{self._ranks._listed(ended)} ended amid the slices")
        return bool(self._ranks._store.check([self._key]))


class Pace(NamedTuple):
    """Predicted seconds of a rank: for a slice, and once for the work that all slices share."""

    slice: float
    once: float = 0.0


def shares(numbers: Sequence[int], paces: Sequence[Pace]) -> list[list[int]]:
    """The numbers for each rank, in order and without gaps; `paces` are those of the ranks.

    Each next one goes to the rank that would be done with it first, the lower rank where that is a tie; so the last
    rank to end ends as early as possible. Slices that follow one another add to the same part of a result: a rank's
    share is therefore one stretch of them. A rank to which nothing goes does not pay `once`.
    """
    counts = [0] * len(paces)
    turns = [(pace.once + pace.slice, rank) for rank, pace in enumerate(paces)]
    heapq.heapify(turns)
    for _ in numbers:
        _, rank = turns[0]
        counts[rank] += 1
        pace = paces[rank]
        heapq.heapreplace(turns, (pace.once + (counts[rank] + 1) * pace.slice, rank))
    found, at = [], 0
    for count in counts:
        found.append(list(numbers[at : at + count]))
        at += count
    return found


def all_gather(ranks: Ranks, whole: torch.Tensor, part: torch.Tensor) -> Any:
    """`part` of every rank into `whole`, one after the other; both are contiguous."""
    return _named("all_gather_single", "all_gather_into_tensor")(
        as_bytes(whole), as_bytes(part), group=ranks.group, async_op=True
    )


def all_to_all(ranks: Ranks, received: torch.Tensor, sent: torch.Tensor) -> Any:
    """Piece i of `sent` to rank i; pieces are equally long."""
    return dist.all_to_all_single(as_bytes(received), as_bytes(sent), group=ranks.group, async_op=True)


def reduce_scatter(ranks: Ranks, part: torch.Tensor, whole: torch.Tensor, op: Any) -> Any:
    """Piece i of `whole`, reduced over all ranks, to rank i."""
    return _named("reduce_scatter_single", "reduce_scatter_tensor")(
        _numbers(part), _numbers(whole), op=op, group=ranks.group, async_op=True
    )


def all_reduce(ranks: Ranks, whole: torch.Tensor, op: Any) -> Any:
    return dist.all_reduce(_numbers(whole), op=op, group=ranks.group, async_op=True)


def broadcast(ranks: Ranks, tensor: torch.Tensor, source: int = 0) -> Any:
    """The `tensor` of one rank, which is contiguous, to all others."""
    first = dist.get_global_rank(ranks.group, source)
    return dist.broadcast(as_bytes(tensor), first, group=ranks.group, async_op=True)


def own_operation(algebra: Algebra | None, dtype: torch.dtype) -> Any | None:
    """The collectives' own operation for an algebra's reduction; None where they have none."""
    if algebra is None:
        return dist.ReduceOp.SUM
    if dtype.is_complex:
        return None
    ordered: dict[Any, Any] = {torch.maximum: dist.ReduceOp.MAX, torch.minimum: dist.ReduceOp.MIN}
    if dtype is torch.bool:  # travels as bytes of 0 and 1
        return ordered.get(algebra.reduce)
    known: dict[Any, Any] = {torch.add: dist.ReduceOp.SUM, torch.mul: dist.ReduceOp.PRODUCT}
    # Of floating types gloo and NCCL drop a NaN from a maximum (`<`, fmax); torch.maximum, and so weft, keeps it.
    return (known if dtype.is_floating_point else known | ordered).get(algebra.reduce)


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        return torch.view_as_real(flat(tensor)).view(-1)
    return as_bytes(tensor) if tensor.dtype is torch.bool else flat(tensor)


def _named(new: str, old: str) -> Callable[..., Any]:
    """A collective by the name that this torch has for it."""
    found = getattr(dist, new, None)
    if found is not None:
        return found

    def quiet(*args: Any, **keywords: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return getattr(dist, old)(*args, **keywords)

    return quiet
