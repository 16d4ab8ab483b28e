"""Who does which slices of a network, and who has sums of which parts of its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from weft.distributed.group.collectives import Pace, shares
from weft.distributed.group.ranks import Ranks
from weft.networks.checkpoint import Saved, digest, done, identity_of
from weft.networks.plan import NetworkPlan
from weft.plans.intermediates import WIDER


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
        return cls(ranks, share, files, run, parts if network.result_bytes else (), whole, end_of(network))

    @property
    def mine_whole(self) -> frozenset[int]:
        """The parts that this rank finishes."""
        return frozenset(part.number for part in self.parts if part.number in self.whole and self.has(part))

    def has(self, part: ResultPart) -> bool:
        """Whether this rank has a sum of a part."""
        return self.ranks.rank in part.ranks

    def loaded(self, rank: int) -> list[Saved]:
        """The files whose sums a rank begins with."""
        return list(self.files[rank :: self.ranks.size])


def _held(network: NetworkPlan, numbers: Sequence[int], files: Sequence[Saved]) -> set[int]:
    """The parts that a rank has sums of, which does these slices and begins with these files."""
    if network.settings.strip_exponent:  # one sum: all elements share an exponent
        return {0} if numbers or any(file.done for file in files) else set()
    return {part for file in files for part in file.parts} | {number // network.tree.summed for number in numbers}


def end_of(network: NetworkPlan) -> str:
    """The end of a network's slices, in words that are those of no other network."""
    return f"the end of the slices of {network!r} ({digest(identity_of(network), 4)})"


def left(slices: int, files: Sequence[Saved]) -> list[int]:
    """The slices that stand in none."""
    gone = set(done(files))
    return [number for number in range(slices) if number not in gone]
