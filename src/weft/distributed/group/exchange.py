"""Parts of a result, from the ranks that have sums of them to all ranks.

    one rank has it      it broadcasts it
    several, small       all ranks gather all sums, and each adds them up
    several, large       each rank gets a piece of every sum and adds them up; then all gather the pieces

Sums are added up in the order of ranks, so a result has the same bits on every rank and from run to run: what NCCL's
own reductions do with the order depends on their algorithm, which they choose. The bytes that travel are those of a
reduction in a ring: nearly twice the part. What is added is any operation of two tensors, so any algebra's.

Everything is begun without waiting. On a GPU the adding up stands on a stream of its own behind what it needs, so that
parts travel and are added up while others are computed; on a CPU it waits for `finish`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from weft.base.arrays import as_bytes
from weft.distributed.group.ranks import Ranks

SMALL = 1 << 18  # bytes of a part up to which every rank gets every sum: one message in the place of two

# Renamed by torch 2.13, which warns of the older name.
_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Combine = Callable[[torch.Tensor, torch.Tensor], None]  # adds the second to the first, in place


class ResultPart(NamedTuple):
    """A part of a result that travels as one."""

    number: int
    ranks: tuple[int, ...]  # that have sums of it, in order
    after: int  # how many slices the last of them does until it has its own
    size: int  # elements
    dtype: torch.dtype
    rows: tuple[int, int] | None = None  # first index and length along the first mode, where it is a strip of a part


class Exchange:
    """The parts of one call. Every rank posts them in the same order, that of `parts`."""

    def __init__(
        self, ranks: Ranks, parts: Sequence[ResultPart], device: torch.device, combine: Combine,
        supply: Callable[[ResultPart], torch.Tensor],
    ) -> None:  # fmt: skip
        """`supply` gives this rank's sum of a part, for parts that name this rank."""
        self.parts = parts
        self.posted = 0
        self._ranks, self._device, self._combine, self._supply = ranks, device, combine, supply
        self._moving: list[_Moving] = []
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def post(self, done: int) -> None:
        """Begin with the parts that are there when this rank has done so many slices."""
        while self.posted < len(self.parts) and self.parts[self.posted].after <= done:
            self._post()

    def post_next(self) -> None:
        """Begin with the next part, which is there."""
        self._post()

    def finish(self) -> list[torch.Tensor]:
        """All parts, flat, in their order: on a GPU behind the current stream's work, on a CPU once they are there."""
        while self.posted < len(self.parts):
            self._post()
        if self._side is None:
            for moving in self._moving:
                self._add_up(moving)
        else:
            torch.cuda.current_stream(self._device).wait_stream(self._side)
        for moving in self._moving:
            if moving.last is not None:
                self._ranks.wait(moving.last, moving.words)
            if self._side is not None:
                moving.result.record_stream(torch.cuda.current_stream(self._device))
        return [moving.result for moving in self._moving]

    def abandon(self, posted: int) -> None:
        """End what was begun, where a call failed: the most parts that some rank had posted are `posted`."""
        while self.posted < posted:
            self._post(empty=True)
        for moving in self._moving:
            for work in (moving.first, moving.last):
                if work is not None:
                    self._ranks.wait(work, moving.words)

    def _post(self, *, empty: bool = False) -> None:
        part = self.parts[self.posted]
        self.posted += 1
        mine = self._ranks.rank in part.ranks
        if self._side is None:
            self._moving.append(self._begun(part, self._flat(part, mine and not empty)))
            return
        flat = self._flat(part, mine and not empty)
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            flat.record_stream(self._side)
            moving = self._begun(part, flat)
            self._moving.append(moving)
            self._add_up(moving)

    def _flat(self, part: ResultPart, mine: bool) -> torch.Tensor:
        """This rank's sum without gaps, or room for what comes."""
        if mine:
            return self._supply(part).contiguous().reshape(-1)
        return torch.zeros(part.size, dtype=part.dtype, device=self._device)

    def _begun(self, part: ResultPart, flat: torch.Tensor) -> _Moving:
        """The first message of a part."""
        ranks, group = self._ranks, self._ranks.group
        what = f"part {part.number} of the result, from {_listed(part.ranks)}"
        if len(part.ranks) == 1:
            with ranks.during(f"the broadcast of {what}"):
                source = dist.get_global_rank(group, part.ranks[0])
                work = dist.broadcast(_bytes(flat), source, group=group, async_op=True)
            return _Moving(part, flat, None, None, work, f"the broadcast of {what}")
        if part.size * part.dtype.itemsize <= SMALL:
            every = flat.new_empty(ranks.size, part.size)
            with ranks.during(f"the gathering of {what}"):
                work = _gather(_bytes(every), _bytes(flat), group=group, async_op=True)
            return _Moving(part, flat, every, work, None, f"the gathering of {what}")
        size = -(-part.size // ranks.size)
        item = part.dtype.itemsize
        bounds = [min(at * size, part.size) for at in range(ranks.size + 1)]
        lengths = [stop - first for first, stop in itertools.pairwise(bounds)]
        mine = lengths[ranks.rank]
        brought = [mine * item if rank in part.ranks else 0 for rank in range(ranks.size)]
        sent = [length * item if ranks.rank in part.ranks else 0 for length in lengths]
        every = flat.new_empty(len(part.ranks), mine)
        source_bytes = _bytes(flat) if ranks.rank in part.ranks else _bytes(flat)[:0]
        with ranks.during(f"the exchange of {what}"):
            work = dist.all_to_all_single(_bytes(every), source_bytes, brought, sent, group=group, async_op=True)
        return _Moving(part, flat, every, work, None, f"the exchange of {what}", size)

    def _add_up(self, moving: _Moving) -> None:
        """Add up what has come; pieces are gathered again."""
        if moving.first is None or moving.every is None:
            return
        self._ranks.wait(moving.first, moving.words)
        part, every = moving.part, moving.every
        rows = [every[rank] for rank in part.ranks] if moving.piece == 0 else list(every)
        total = rows[0]
        for row in rows[1:]:
            self._combine(total, row)
        if moving.piece == 0:
            moving.result = total
            return
        ranks = self._ranks
        mine = total.new_zeros(moving.piece)
        mine[: total.numel()] = total
        gathered = total.new_empty(ranks.size * moving.piece)
        moving.words = f"the gathering of the sums of part {part.number} of the result"
        with ranks.during(moving.words):
            moving.last = _gather(_bytes(gathered), _bytes(mine), group=ranks.group, async_op=True)
        moving.kept = mine
        moving.result = gathered[: part.size]


class _Moving:
    """A part on its way. What travels is held here until it is there."""

    def __init__(
        self, part: ResultPart, flat: torch.Tensor, every: torch.Tensor | None, first: Any, last: Any, words: str,
        piece: int = 0,
    ) -> None:  # fmt: skip
        self.part, self.flat, self.every = part, flat, every
        self.first, self.last = first, last  # messages that what is added up, and what is returned, wait for
        self.words, self.piece = words, piece
        self.result = flat
        self.kept: torch.Tensor | None = None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's memory as it is stored: transports know fewer types than torch."""
    return as_bytes(tensor.contiguous())


def _listed(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
