"""Calls of which a checkpoint is kept, and calls whose slices the ranks of a process group share.

    agree        every rank has read its operands; network, path, slices and types are the same
    share        slices that no earlier run has done go to ranks by predicted time, a stretch to each
    contract     each rank adds its slices up
    exchange     parts that several ranks have sums of are added up in the order of ranks, others are broadcast

A rank that fails tells the others, which stop between two slices. Before anything is taken for a result all ranks say
that they have come so far, so no rank returns where another has failed.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from weft.base.figures import digest
from weft.distributed.link import broadcast
from weft.distributed.moves import reduced
from weft.distributed.ranks import Ranks, ranks_of, shape_of
from weft.errors import ArgumentError, RankError, ShapeError
from weft.networks.checkpoint import Checkpoint, Saved, done, identity_of, values_of
from weft.networks.plan import NetworkPlan
from weft.networks.work import Scaling, Slices, SliceWork, Summing
from weft.plans.intermediates import WIDER

LOOK = 0.5  # seconds between looks at the sign: each reads the store
_counts: dict[str, int] = {}  # of signs by group: every rank of a group counts alike
PATIENCE = 10  # times as long as its own slices took a rank waits for the others


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
    return [list(numbers[stop - count : stop]) for count, stop in zip(counts, accumulate(counts), strict=True)]


class ResultPart(NamedTuple):
    """A part of a result, and the ranks that have sums of it."""

    number: int
    ranks: tuple[int, ...]  # that have sums of it, in order
    dtype: torch.dtype


@dataclass(frozen=True)
class SharedPlan:
    """The division of a network's slices among ranks: equal on every rank but for `ranks`, which know who they are."""

    ranks: Ranks
    share: Sequence[Sequence[int]]  # the slices of each rank
    files: Sequence[Saved]  # of a checkpoint: what the run begins with
    run: int  # of the checkpoint; 0 where there is none
    parts: Sequence[ResultPart]  # of the result
    whole: frozenset[int]  # parts of which one rank does all slices, and so finishes them
    end: str = ""  # what ranks are at once their slices are done: of this network, and of no other

    @classmethod
    def of(cls, network: NetworkPlan, ranks: Ranks, files: Sequence[Saved] = (), run: int = 0) -> SharedPlan:
        """Ranks say how long a slice takes them; all make the same plan of it."""
        each, once = network.model.of_slice(network.tree)
        mine = [max(each, network.model.launch), once]
        paces = [Pace(*said) for said in ranks.exchanged("predicted times of slices", mine)]
        share = shares(left(network.tree.slices, files), paces)
        held = [_held(network, numbers, files[rank :: ranks.size]) for rank, numbers in enumerate(share)]
        holders = {
            part: tuple([rank for rank, parts in enumerate(held) if part in parts])
            for part in sorted(set[int]().union(*held))
        }
        scaled, dtype = network.settings.strip_exponent, network.dtype
        whole = frozenset(part for part, who in holders.items() if len(who) == 1 and not (run or scaled))
        sums = network.result_memory.sum_type(network.tree) if scaled else WIDER.get(dtype, dtype)
        parts = [ResultPart(part, who, dtype if part in whole else sums) for part, who in holders.items()]
        end = f"the end of the slices of {network!r} ({digest(identity_of(network), 4)})"
        return cls(ranks, share, files, run, parts if network.result_bytes else (), whole, end)

    def has(self, part: ResultPart) -> bool:
        """Whether this rank has a sum of a part."""
        return self.ranks.rank in part.ranks


def _held(network: NetworkPlan, numbers: Sequence[int], files: Sequence[Saved]) -> set[int]:
    """The parts that a rank has sums of, which does these slices and begins with these files."""
    if network.settings.strip_exponent:  # one sum: all elements share an exponent
        return {0} if numbers or any(file.done for file in files) else set()
    return {part for file in files for part in file.parts} | {number // network.tree.summed for number in numbers}


def left(slices: int, files: Sequence[Saved]) -> list[int]:
    """The slices that stand in none."""
    gone = set(done(files))
    return [number for number in range(slices) if number not in gone]


Identity = dict[str, str]  # what must be equal on all ranks, by name


@dataclass(frozen=True)
class NetworkCall:
    """A call of a network: how its operands are read, what its slices are, and where what is done of it is kept."""

    network: NetworkPlan
    read: Callable[[], tuple[list[torch.Tensor], torch.Tensor]]  # the operands and the place of the result, checked
    work: Callable[[Sequence[torch.Tensor], torch.Tensor, Collection[int]], SliceWork]  # of these, and of partial sums
    plans: dict[str, Any]  # of the network, by the name of a process group, or by how it is distributed over one
    folder: Any  # of a checkpoint, where there is one
    every: float  # seconds between its states

    @property
    def name(self) -> str:
        return f"a call of {self.network!r}"

    def agreed(
        self, ranks: Ranks, identity: Callable[[list[torch.Tensor]], Identity], about: Identity
    ) -> tuple[list[torch.Tensor], torch.Tensor, Identity]:
        """Operands, place and identity, read on every rank; of paths that differ the error says what helps.

        `identity` is of operands, `about` is what is said of the call besides.
        """
        device = self.network.settings.device

        def read() -> tuple[list[torch.Tensor], torch.Tensor, Identity]:
            operands, place = self.read()
            ranks.backend(device)
            return operands, place, identity(operands)

        try:
            return ranks.agreed(self.name, read, lambda found: found[2] | about | {"kind of device": device.type})
        except ShapeError as error:
            if str(error).startswith(("path differs", "slices differs")):
                raise ShapeError(
                    f"{error}. Searches for paths may end differently: give every rank the path of one, optimize=..."
                ) from error
            raise


def call_with_checkpoint(given: NetworkCall) -> tuple[Slices, torch.Tensor]:
    """A call of this process alone, that goes on from what the checkpoint has; and where its result goes."""
    network, slices = given.network, given.network.tree.slices
    operands, place = given.read()
    checkpoint = Checkpoint(given.folder, identity_of(network) | values_of(network, operands), slices)
    files = checkpoint.found()
    work = given.work(operands, place, range(slices // network.tree.summed))
    remaining = left(slices, files)
    call = Slices(work, remaining, before=slices - len(remaining))
    if remaining or len(files) != 1:  # else all is in one file already
        call.take_up(checkpoint, 0, checkpoint.next_run(), files, given.every)
    else:
        work.absorb(checkpoint.read(files[0].name))
    return call, place


def call_with_group(given: NetworkCall, group: Any) -> tuple[SlicesOverRanks, torch.Tensor]:
    """This rank's side of a call of all ranks of a group; and where its result goes.

    Ranks agree at a network's first call with a group, and where there is a checkpoint. From then on only its operands
    may be wrong, on some ranks: that is said at the end of the slices, as what goes wrong in them is.
    """
    network, folder, plan = given.network, given.folder, given.plans.get(str(getattr(group, "group_name", "")))
    if plan is not None and plan.ranks.group is group and folder is None:
        return _known_call(given, plan)
    ranks = ranks_of(group, None)
    shape_of(group, None, ranks)  # a mesh is all ranks of it

    def identity(operands: list[torch.Tensor]) -> Identity:
        return identity_of(network) | ({} if folder is None else values_of(network, operands))

    operands, place, found = given.agreed(ranks, identity, {"checkpoint": str(folder)})
    checkpoint = None if folder is None else Checkpoint(folder, found, network.tree.slices)
    plan = SharedPlan.of(network, ranks, *_looked(ranks, checkpoint, given.name))

    def begin() -> SlicesOverRanks:
        made = SlicesOverRanks(given, plan, operands, place)
        if checkpoint is not None:
            made.take_up(checkpoint, ranks.rank, plan.run, plan.files[ranks.rank :: ranks.size], given.every)
        return made

    call = ranks.agreed(f"the begin of {given.name}", begin)
    if checkpoint is None:
        given.plans[str(ranks.group.group_name)] = plan
    return call, place


def _known_call(given: NetworkCall, plan: SharedPlan) -> tuple[SlicesOverRanks, torch.Tensor]:
    try:
        operands, place = given.read()
        return SlicesOverRanks(given, plan, operands, place), place
    except Exception as error:
        StopSign(plan.ranks).put_up()  # the others are at their slices
        end_together("failed", error, plan.ranks, plan.end)
        raise


class SlicesOverRanks(Slices):
    """A call whose slices the ranks of a group share, as one of them sees it."""

    def __init__(
        self, given: NetworkCall, plan: SharedPlan, operands: Sequence[torch.Tensor], place: torch.Tensor
    ) -> None:
        tree = given.network.tree
        finished = {part.number for part in plan.parts if part.number in plan.whole and plan.has(part)}
        work = given.work(operands, place, {*range(tree.slices // tree.summed)} - finished)
        super().__init__(work, plan.share[plan.ranks.rank], before=tree.slices - sum(map(len, plan.share)))
        self.visible = plan.ranks.rank == 0
        self._plan = plan

    def go_on(self, report: Callable[[int], None]) -> Any:
        """This rank's slices, and the result."""
        ranks, begun = self._plan.ranks, time.monotonic()
        self._sign = StopSign(ranks)
        outcome, error = self._outcome(lambda: self.run(report))
        if outcome != "done":
            self._sign.put_up()
        ranks.timeout = max(ranks.timeout, PATIENCE * (time.monotonic() - begun))
        end_together(outcome, error, ranks, self._plan.end)
        if isinstance(self.work, Scaling):
            self.work.scaled_to(max(ranks.exchanged("exponents", float(self.work.exponent))))
        for part in self._plan.parts:
            self._complete(part)
        return self.work.result

    def look(self) -> None:
        if self._sign.seen():
            raise _Stopped

    @staticmethod
    def _outcome(run: Callable[[], None]) -> tuple[str, BaseException | None]:
        try:
            run()
        except _Stopped:
            return "stopped", None
        except KeyboardInterrupt as interrupt:
            return "interrupted", interrupt
        except RankError:
            raise  # a rank has ended: there is nobody to agree with
        except Exception as error:
            return "failed", error
        return "done", None

    def _complete(self, part: ResultPart) -> None:
        """A part of the result, from the sums of all ranks that have some."""
        work, ranks, number = self.work, self._plan.ranks, part.number
        whole = number in self._plan.whole
        if isinstance(work, Scaling):
            place = total = work.sums
        else:
            place = total = work.part(number)
            if not self._plan.has(part):
                total = torch.empty(place.shape, dtype=part.dtype, device=place.device)
            elif not whole:
                total = work.sums[number]
        what = f"part {number} of the result"
        with ranks.during(what):
            total = total.contiguous()
            if len(part.ranks) == 1:
                ranks.wait(broadcast(ranks, total, part.ranks[0]), what)
            else:
                combine = work.combine if isinstance(work, Summing) else torch.Tensor.add_
                total = reduced(total, None, ranks, combine, what, part.ranks)
        if isinstance(work, Summing) and not whole:
            work.complete(number, total)
        elif total is not place:
            place.copy_(total)


class _Stopped(Exception):
    """Another rank has stopped."""


def end_together(outcome: str, error: BaseException | None, ranks: Ranks, end: str) -> None:
    """Go on where all ranks are done; else raise what has kept one from it, on every rank. `end` names the place."""
    every = ranks.exchanged(end, outcome)
    if all(said == "done" for said in every):
        return

    def check() -> None:  # what made others stop comes first
        if isinstance(error, Exception) and (outcome == "failed" or "failed" not in every):
            raise error

    ranks.agreed(end, check)
    stopped = ", ".join(str(rank) for rank, said in enumerate(every) if said == "interrupted")
    raise KeyboardInterrupt(f"rank {stopped} of {ranks.size} was interrupted")


def _looked(ranks: Ranks, checkpoint: Checkpoint | None, name: str) -> tuple[list[Saved], int]:
    """The files that rank 0 finds in the checkpoint, on every rank; and this run's number, 0 without a checkpoint."""
    if checkpoint is None:
        return [], 0

    def look() -> tuple[list[Saved], int] | None:
        return (checkpoint.found(), checkpoint.next_run()) if ranks.rank == 0 else None

    mine = ranks.agreed(f"reading the checkpoint of {name}", look)
    files, run = ranks.exchanged("the files of the checkpoint", mine)[0]
    return [Saved(*file) for file in files], run


def check_interval(every: Any) -> None:
    """`ArgumentError` for a `checkpoint_every` that is no number of seconds."""
    if isinstance(every, bool) or not isinstance(every, (int, float)) or not every >= 0:
        raise ArgumentError(f"checkpoint_every is a number of seconds, not {every!r}")
