"""Schedules of the family whose warps are specialised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from weft.gpu.common.cost import PROCESSORS, SHARED_MEMORY
from weft.gpu.common.split_k import Stream, most_shares, stream
from weft.gpu.common.tiling import A, B
from weft.gpu.tma.schedule import GROUP, LEAST_STEPS, BoxesSchedule, misfit, parts, side_blocks, splittings
from weft.gpu.tma.views import Reading, extent, readings
from weft.gpu.warp_specialized.results import block_count, result_groups, share_layout, staging_bytes
from weft.gpu.warp_specialized.roles import IN_PLACE, IN_TURNS, SIDE_BY_SIDE, TOGETHER, WARPS, Workers, roles
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Role

NAME = "specialised"
LEAST_STAGES, MOST_STAGES = 2, 8
LEAST_STAGES_IN_PLACE = 3  # a worker reads rows of the next step before it asks for the one after that
SHORT_STEP = 0.75  # of a step's time that one takes whose second worker has no rows: offers TCCG 13 with ELU the shares
# that were the fastest on an H200
BARRIERS = 2048  # bytes of shared memory: barriers, and what the compiler keeps of the roles


@dataclass(frozen=True, slots=True)
class SpecialisedSchedule(BoxesSchedule):
    """The boxes, and how two workers share blocks of D."""

    workers: Workers = TOGETHER
    fewer: int = 0  # shares of the sum of the last block of rows, where those are not `splits` too
    streamed: bool = False  # all sums are cut end to end, see `shares`: `splits` is the most shares that one has
    family: str = NAME

    def __str__(self) -> str:
        m, n, k = self.tile
        names_m, names_n = ("·".join(mode.name for mode in reading.outer) for reading in (self.a, self.b))
        across = "+".join(map(str, parts(n)))
        split = f" splits={self.splits}" if self.splits > 1 else ""
        split += f"/{self.fewer}" if self.fewer else ""
        split += " streamed" if self.streamed else ""
        return (
            f"specialised {m}x{n}x{k} m[{names_m}:{m}] n[{names_n}:{across}] k[{self.k.name}:{k}]"
            f" {self.workers.name} stages={self.stages}{split}"
            f"{' exchanged' if self.exchanged else ''}"
        )

    @property
    def rows(self) -> int:
        """Of a block of D that each worker has."""
        return self.tile[0] // self.workers.shares


# Tiles (M, N, K in bytes), and how workers share them. Boxes of lines under 128 bytes come too slowly.
_TILES = (
    (128, 256, 128, TOGETHER),
    (128, 320, 128, TOGETHER),
    (128, 192, 128, TOGETHER),
    (128, 160, 128, TOGETHER),
    (128, 128, 128, TOGETHER),
    (128, 80, 128, TOGETHER),
    (256, 128, 128, TOGETHER),
    (256, 80, 128, TOGETHER),
    (256, 160, 128, TOGETHER),
    (64, 256, 128, IN_TURNS),
    (64, 320, 128, IN_TURNS),
    (128, 128, 128, IN_TURNS),
    (128, 80, 128, IN_TURNS),
    (128, 160, 128, IN_TURNS),
    (128, 128, 128, SIDE_BY_SIDE),
    (128, 80, 128, SIDE_BY_SIDE),
    (128, 64, 128, SIDE_BY_SIDE),
)
_TILES_IN_PLACE = ((128, 320, 128, IN_PLACE), (128, 256, 128, IN_PLACE))  # for functions of both operands
MOST_SLOTS_IN_PLACE = 6.0  # of such functions: longer ones need registers that workers do not have


def candidates(contraction: Contraction, target: Target, exchanged: bool = False) -> Candidates:
    """Schedules, and why there are no others; `exchanged` tells that the operands already are."""
    found: dict[SpecialisedSchedule, None] = {}
    excluded: dict[str, None] = {}
    size = contraction.arithmetic.product.itemsize
    functions = (contraction.a_fn, contraction.b_fn)
    in_place = all(function is not None and function.issue_slots <= MOST_SLOTS_IN_PLACE for function in functions)
    tiles = (*_TILES, *_TILES_IN_PLACE) if in_place else _TILES
    for k in contraction.of_role(Role.K):
        readings_a, readings_b = (list(readings(contraction, operand, k)) for operand in (A, B))
        for name, ways in (("A", readings_a), ("B", readings_b)):
            if not ways:
                excluded[f"{name} does not lie in boxes along {k.name}"] = None
        for a, b, (tile_m, tile_n, depth, workers) in product(readings_a, readings_b, tiles):
            tile = (tile_m, tile_n, depth // size)
            reason = misfit(a, b, tile) or _not_abreast(b, tile_n, workers)
            if reason is not None:
                excluded[reason] = None
                continue
            if roles(contraction, tile, workers) is None:
                named = f"{tile_m}x{tile_n} {workers.name}"
                excluded[f"{named} leave no registers for warps that apply B's function"] = None
                continue
            stages = _stages(contraction, tile, workers, target)
            if stages < (LEAST_STAGES_IN_PLACE if workers == IN_PLACE else LEAST_STAGES):
                excluded[f"boxes of {tile_m}x{tile_n}x{depth // size} leave no room for others on their way"] = None
                continue
            group = 1 if workers.abreast > 1 else GROUP  # those that are taken at once are of the same rows
            whole = SpecialisedSchedule(a, b, k, tile, WARPS, stages, group=group, exchanged=exchanged, workers=workers)
            offered = [*_split(contraction, whole, target)]
            if result_groups(contraction, a, b) is not None:
                offered.insert(0, whole)
            else:
                excluded["D does not lie in boxes of the rows and columns of its blocks"] = None
            if workers == IN_PLACE:
                offered = [each for each in offered if _has_one_task(contraction, each, target)]
                offered += _with_fewer(contraction, whole, target)
            found.update(dict.fromkeys(offered))
    return Candidates(tuple(found), tuple(excluded))


def _not_abreast(b: Reading, tile_n: int, workers: Workers) -> str | None:
    """Why blocks are not taken two at once, in one sentence."""
    if workers.abreast == 1:
        return None
    if extent(b.outer) > tile_n:
        there = extent(b.outer)
        return f"two tiles of {tile_n} are taken at once only where each holds all of the {there} that lie together"
    if side_blocks(b, tile_n) % workers.abreast:
        return "blocks along n are odd in number: workers cannot take two at once"
    return None


def _split(contraction: Contraction, whole: SpecialisedSchedule, target: Target) -> Iterator[SpecialisedSchedule]:
    """The same with split sums, where D alone cannot fill the device."""
    workers = target.processors * whole.workers.rings
    tasks = task_count(contraction, whole)
    if tasks < workers:
        steps = share_steps(contraction, whole, 1)
        counts = splittings(steps, tasks, workers)
        for splits in counts:
            yield _shared_out(contraction, whole, splits)
        least = min(-(-tasks * splits // workers) * -(-steps // splits) for splits in (1, *counts))
        cut = portions(contraction, whole, target)
        countable = tasks * steps < 1 << 31  # as kernels do
        if whole.workers != IN_PLACE and countable and LEAST_STEPS <= cut.base < least - 1:
            yield _shared_out(contraction, whole, most_shares(tasks, cut), streamed=True)


def portions(contraction: Contraction, schedule: SpecialisedSchedule, target: Target) -> Stream:
    """All sums cut end to end: a portion for each program, or worker with a ring of its own."""
    processors = target.processors if target.processors > 1 else PROCESSORS
    workers = schedule.workers
    steps = share_steps(contraction, schedule, 1)
    return stream(task_count(contraction, schedule), steps, processors * workers.rings, workers.abreast)


def _shared_out(
    contraction: Contraction, whole: SpecialisedSchedule, splits: int, fewer: int = 0, streamed: bool = False
) -> SpecialisedSchedule:
    shared = replace(whole, splits=splits, fewer=fewer, streamed=streamed)
    layout = share_layout(contraction, shared, block_count(contraction, whole))
    return replace(shared, workspace_bytes=math.prod(layout.shape) * layout.dtype.itemsize)


def _with_fewer(contraction: Contraction, whole: SpecialisedSchedule, target: Target) -> Iterator[SpecialisedSchedule]:
    """The same with fewer and longer shares of the last block of rows, and shorter ones of others, as its second worker
    has no rows."""
    processors = target.processors if target.processors > 1 else PROCESSORS
    blocks = block_count(contraction, whole)
    full = blocks - 1
    there = extent(whole.a.outer) - full * whole.tile[0]  # rows of the last block, if all others are of this run too
    if not 0 < there <= whole.rows or not 0 < full < processors:
        return
    before = share_steps(contraction, whole, processors // blocks)
    least = max(LEAST_STEPS, whole.stages)  # boxes of as many are asked for before the first is looked at
    for splits in range(processors // blocks + 1, (processors - 1) // full + 1):
        steps, fewer = share_steps(contraction, whole, splits), processors - full * splits
        longer = share_steps(contraction, whole, fewer)
        if steps < least or longer * SHORT_STEP > steps:
            return
        if steps < before:
            yield _shared_out(contraction, whole, splits, -(-share_steps(contraction, whole, 1) // longer))
        before = steps


def share_steps(contraction: Contraction, schedule: SpecialisedSchedule, shares: int) -> int:
    """Steps along k of the longest of so many shares."""
    steps = -(-schedule.k.extent // schedule.tile[2]) * (contraction.k // schedule.k.extent)
    return -(-steps // shares)


def share_count(contraction: Contraction, schedule: SpecialisedSchedule) -> int:
    """Of all blocks of D; where sums are streamed, no fewer than there are workers."""
    missing = schedule.splits - schedule.fewer if schedule.fewer else 0
    return task_count(contraction, schedule) * schedule.splits - missing


def task_count(contraction: Contraction, schedule: SpecialisedSchedule) -> int:
    """Blocks of D, or pairs of them where workers take two at once."""
    return block_count(contraction, schedule) // schedule.workers.abreast


def _has_one_task(contraction: Contraction, schedule: SpecialisedSchedule, target: Target) -> bool:
    """Whether each program has but one: then pieces of D may leave through slots that boxes came in."""
    processors = target.processors if target.processors > 1 else PROCESSORS
    return share_count(contraction, schedule) <= processors


def _stages(contraction: Contraction, tile: tuple[int, int, int], workers: Workers, target: Target) -> int:
    """Slots of each ring that the device has shared memory for."""
    tile_m, tile_n, tile_k = tile
    slot = workers.rings * (tile_m + workers.abreast * tile_n) * tile_k * contraction.arithmetic.product.itemsize
    room = (target.shared_memory or SHARED_MEMORY) - BARRIERS
    if workers != IN_PLACE:
        room -= staging_bytes(tile_m // workers.shares, workers.buffers)
    return min(MOST_STAGES, room // slot)
