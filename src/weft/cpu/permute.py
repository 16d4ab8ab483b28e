"""Permutations on the CPU: a family with the four doors of `weft.planner.schedule`.

Three ways, and which pays depends on how far apart neighbours of D lie in X:

    straight   one strided copy, in D's order
    gather     block by block: read in X's order into a buffer, written to D from there
    shuffle    the same, the block transposed in between, so that both copies move whole rows

A straight copy is spread over its threads by torch, blocks are shared among a few workers. The workspace does not grow
with the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.cpu.permute_blocks import Blocks, Units, cut, read_type, stored_type, units
from weft.cpu.permute_launch import BlockedLaunch, StraightLaunch
from weft.cpu.permute_model import block_count, blocked_seconds, exchanges, straight_seconds
from weft.cpu.workers import split
from weft.fn.pointwise import TritonFunction
from weft.planner.schedule import Candidates, PermutationLaunch, Target
from weft.spec.permutation import Permutation

NAME = "cpu"

# Knobs, in bytes: what a block's runs in X and in D reach, and what a block holds.
RUNS = ((256, 1024), (256, 4096), (512, 2048), (1024, 1024))
BLOCKS = (1 << 18, 1 << 19, 1 << 20)
WORTH_SHARING = 1 << 20  # from which several workers save more than waking them costs


@dataclass(frozen=True, slots=True)
class PermuteSchedule:
    """One way to carry a permutation out, and the blocks that it takes (None for a straight copy)."""

    way: Literal["straight", "gather", "shuffle"]
    blocks: Blocks | None = None
    workers: int = 1
    threads: int = 1  # of torch, for each worker
    workspace_bytes: int = 0
    family: str = NAME

    def __str__(self) -> str:
        if self.blocks is None:
            return "cpu: one strided copy"
        return (
            f"cpu: {self.way} in blocks of {self.blocks} by {self.workers} workers; "
            f"workspace {self.workspace_bytes / 1024:.0f} KiB"
        )


def supports(permutation: Permutation, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if target.kind != "cpu":
        return f"it runs on the CPU, the tensors are on a {target.kind} device"
    if isinstance(permutation.fn, TritonFunction):
        return f"{permutation.fn.jit.__name__} is a Triton function; the CPU needs it written with torch operations"
    return None


def schedules(permutation: Permutation, target: Target) -> Candidates:
    moved = units(permutation)
    found: dict[PermuteSchedule, None] = {}
    excluded: dict[str, None] = {}
    if permutation.fn is None and not permutation.scaled:
        found[PermuteSchedule("straight")] = None
    else:
        excluded["straight: values are computed in blocks"] = None
    repeats = permutation.c is None
    for runs in RUNS:
        for size in BLOCKS:
            blocks = cut(moved.modes, moved.dtype.itemsize, runs, size, repeats=repeats)
            cores = max(target.processors, 1)
            found[_schedule(permutation, moved, "gather", blocks, cores)] = None
            if reason := _no_shuffle(permutation, moved, blocks):
                excluded[f"shuffle: {reason}"] = None
            else:
                found[_schedule(permutation, moved, "shuffle", blocks, cores)] = None
    return Candidates(tuple(found), tuple(excluded))


def predict(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> float:
    """Seconds on `target`."""
    moved = units(permutation)
    if schedule.blocks is None:
        return straight_seconds(moved, max(target.processors, 1))
    shuffle = schedule.way == "shuffle"
    return blocked_seconds(permutation, moved, schedule.blocks, schedule.workers, schedule.threads, shuffle=shuffle)


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> PermutationLaunch:
    """The launch of a schedule; it keeps no state between calls and may run in several threads at once."""
    moved = units(permutation)
    if schedule.blocks is None:
        return StraightLaunch(permutation, moved)
    return BlockedLaunch(
        permutation,
        moved,
        schedule.blocks,
        shuffle=schedule.way == "shuffle",
        workers=schedule.workers,
        threads=schedule.threads,
    )


def _schedule(
    permutation: Permutation, moved: Units, way: Literal["gather", "shuffle"], blocks: Blocks, cores: int
) -> PermuteSchedule:
    """With what it allocates: the buffer, another where a function changes the type, and what transposing makes."""
    first, stored = read_type(permutation, moved), stored_type(permutation, moved)
    made = (first != stored) + (exchanges(stored.itemsize, blocks) if way == "shuffle" else 0)
    block_bytes = blocks.size(blocks.read_order) * (first.itemsize + made * stored.itemsize)
    workers, threads = split(cores)
    if permutation.size * moved.dtype.itemsize < WORTH_SHARING:
        workers, threads = 1, cores
    workers = min(workers, block_count(moved, blocks))
    return PermuteSchedule(way, blocks, workers, threads, workers * block_bytes)


def _no_shuffle(permutation: Permutation, moved: Units, blocks: Blocks) -> str | None:
    if stored_type(permutation, moved).itemsize == 1:
        return "single bytes are not transposed faster than they are copied"
    if blocks.size(blocks.rows) == 1 or blocks.size(blocks.columns) == 1:
        return "a block's rows lie in X as they do in D"
    return None
