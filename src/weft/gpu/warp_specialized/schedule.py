"""Schedules of the family whose warps are specialised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from weft.gpu.common.constraints import LEAST_SPLIT_STEPS
from weft.gpu.common.hardware import SHARED_MEMORY, sm_count
from weft.gpu.common.split_k import StreamK, most_splits, stream
from weft.gpu.common.tiling import A, B
from weft.gpu.tma.schedule import GROUP, TmaSchedule, dim_blocks, misfit, parts, splittings
from weft.gpu.tma.views import TmaView, extent, tma_views
from weft.gpu.warp_specialized.results import block_count, result_groups, share_layout, staging_bytes
from weft.gpu.warp_specialized.roles import COOPERATIVE, PAIRED_N, PINGPONG, SMEM_TRANSFORM, WARPS, Consumers, roles
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Role

NAME = "warp_specialized"
LEAST_STAGES, MOST_STAGES = 2, 8
LEAST_STAGES_IN_PLACE = 3  # a worker reads rows of the next step before it asks for the one after that
SHORT_STEP = 0.75  # of a step's time that one takes whose second worker has no rows: offers TCCG 13 with ELU the shares
# that were the fastest on an H200
BARRIERS = 2048  # bytes of shared memory: barriers, and what the compiler keeps of the roles


@dataclass(frozen=True, slots=True)
class WsSchedule(TmaSchedule):
    """The boxes, and how two workers share blocks of D."""

    consumers: Consumers = COOPERATIVE
    fewer: int = 0  # shares of the sum of the last block of rows, where those are not `splits` too
    streamed: bool = False  # all sums are cut end to end, see `shares`: `splits` is the most shares that one has
    family: str = NAME

    def __str__(self) -> str:
        m, n, k = self.tile
        names_m, names_n = ("·".join(mode.name for mode in view.outer) for view in (self.a, self.b))
        across = "+".join(map(str, parts(n)))
        split = f" split_k={self.splits}" if self.splits > 1 else ""
        split += f"/{self.fewer}" if self.fewer else ""
        split += " stream_k" if self.streamed else ""
        return (
            f"ws.{self.consumers.name} {m}x{n}x{k} m[{names_m}:{m}] n[{names_n}:{across}] k[{self.k.name}:{k}]"
            f" stages={self.stages}{split}{' swap_ab' if self.swap_ab else ''}"
        )

    @property
    def rows(self) -> int:
        """Of a block of D that each worker has."""
        return self.tile[0] // self.consumers.shares


# Tiles (M, N, K in bytes), and how workers share them. Boxes of lines under 128 bytes come too slowly.
_TILES = (
    (128, 256, 128, COOPERATIVE),
    (128, 320, 128, COOPERATIVE),
    (128, 192, 128, COOPERATIVE),
    (128, 160, 128, COOPERATIVE),
    (128, 128, 128, COOPERATIVE),
    (128, 80, 128, COOPERATIVE),
    (256, 128, 128, COOPERATIVE),
    (256, 80, 128, COOPERATIVE),
    (256, 160, 128, COOPERATIVE),
    (64, 256, 128, PINGPONG),
    (64, 320, 128, PINGPONG),
    (128, 128, 128, PINGPONG),
    (128, 80, 128, PINGPONG),
    (128, 160, 128, PINGPONG),
    (128, 128, 128, PAIRED_N),
    (128, 80, 128, PAIRED_N),
    (128, 64, 128, PAIRED_N),
)
_TILES_IN_PLACE = ((128, 320, 128, SMEM_TRANSFORM), (128, 256, 128, SMEM_TRANSFORM))  # for functions of both operands
MOST_SLOTS_IN_PLACE = 6.0  # of such functions: longer ones need registers that workers do not have


def candidates(contraction: Contraction, target: Target, swap_ab: bool = False) -> Candidates:
    """Schedules, and why there are no others; `exchanged` tells that the operands already are."""
    found: dict[WsSchedule, None] = {}
    excluded: dict[str, None] = {}
    size = contraction.arithmetic.product.itemsize
    functions = (contraction.a_fn, contraction.b_fn)
    in_place = all(function is not None and function.issue_slots <= MOST_SLOTS_IN_PLACE for function in functions)
    tiles = (*_TILES, *_TILES_IN_PLACE) if in_place else _TILES
    for k in contraction.of_role(Role.K):
        views_a, views_b = (list(tma_views(contraction, operand, k)) for operand in (A, B))
        for name, ways in (("A", views_a), ("B", views_b)):
            if not ways:
                excluded[f"{name} does not lie in boxes along {k.name}"] = None
        for a, b, (tile_m, tile_n, depth, consumers) in product(views_a, views_b, tiles):
            tile = (tile_m, tile_n, depth // size)
            reason = misfit(a, b, tile) or _not_abreast(b, tile_n, consumers)
            if reason is not None:
                excluded[reason] = None
                continue
            if roles(contraction, tile, consumers) is None:
                named = f"{tile_m}x{tile_n} {consumers.name}"
                excluded[f"{named} leave no registers for warps that apply B's function"] = None
                continue
            stages = _stages(contraction, tile, consumers, target)
            if stages < (LEAST_STAGES_IN_PLACE if consumers == SMEM_TRANSFORM else LEAST_STAGES):
                excluded[f"boxes of {tile_m}x{tile_n}x{depth // size} leave no room for others on their way"] = None
                continue
            group = 1 if consumers.abreast > 1 else GROUP  # those that are taken at once are of the same rows
            whole = WsSchedule(a, b, k, tile, WARPS, stages, group=group, swap_ab=swap_ab, consumers=consumers)
            offered = [*_split(contraction, whole, target)]
            if result_groups(contraction, a, b) is not None:
                offered.insert(0, whole)
            else:
                excluded["D does not lie in boxes of the rows and columns of its blocks"] = None
            if consumers == SMEM_TRANSFORM:
                offered = [each for each in offered if _has_one_task(contraction, each, target)]
                offered += _with_fewer(contraction, whole, target)
            found.update(dict.fromkeys(offered))
    return Candidates(tuple(found), tuple(excluded))


def _not_abreast(b: TmaView, tile_n: int, consumers: Consumers) -> str | None:
    """Why blocks are not taken two at once, in one sentence."""
    if consumers.abreast == 1:
        return None
    if extent(b.outer) > tile_n:
        there = extent(b.outer)
        return f"two tiles of {tile_n} are taken at once only where each holds all of the {there} that lie together"
    if dim_blocks(b, tile_n) % consumers.abreast:
        return "blocks along n are odd in number: workers cannot take two at once"
    return None


def _split(contraction: Contraction, whole: WsSchedule, target: Target) -> Iterator[WsSchedule]:
    """The same with split sums, where D alone cannot fill the device."""
    consumers = target.processors * whole.consumers.pipelines
    tasks = task_count(contraction, whole)
    if tasks < consumers:
        steps = share_steps(contraction, whole, 1)
        counts = splittings(steps, tasks, consumers)
        for splits in counts:
            yield _shared_out(contraction, whole, splits)
        least = min(-(-tasks * splits // consumers) * -(-steps // splits) for splits in (1, *counts))
        cut = portions(contraction, whole, target)
        countable = tasks * steps < 1 << 31  # as kernels do
        if whole.consumers != SMEM_TRANSFORM and countable and LEAST_SPLIT_STEPS <= cut.base < least - 1:
            yield _shared_out(contraction, whole, most_splits(tasks, cut), streamed=True)


def portions(contraction: Contraction, schedule: WsSchedule, target: Target) -> StreamK:
    """All sums cut end to end: a portion for each program, or worker with a ring of its own."""
    processors = sm_count(target)
    consumers = schedule.consumers
    steps = share_steps(contraction, schedule, 1)
    return stream(task_count(contraction, schedule), steps, processors * consumers.pipelines, consumers.abreast)


def _shared_out(
    contraction: Contraction, whole: WsSchedule, splits: int, fewer: int = 0, streamed: bool = False
) -> WsSchedule:
    shared = replace(whole, splits=splits, fewer=fewer, streamed=streamed)
    layout = share_layout(contraction, shared, block_count(contraction, whole))
    return replace(shared, workspace_bytes=math.prod(layout.shape) * layout.dtype.itemsize)


def _with_fewer(contraction: Contraction, whole: WsSchedule, target: Target) -> Iterator[WsSchedule]:
    """The same with fewer and longer shares of the last block of rows, and shorter ones of others, as its second worker
    has no rows."""
    processors = sm_count(target)
    blocks = block_count(contraction, whole)
    full = blocks - 1
    there = extent(whole.a.outer) - full * whole.tile[0]  # rows of the last block, if all others are of this run too
    if not 0 < there <= whole.rows or not 0 < full < processors:
        return
    before = share_steps(contraction, whole, processors // blocks)
    least = max(LEAST_SPLIT_STEPS, whole.stages)  # boxes of as many are asked for before the first is looked at
    for splits in range(processors // blocks + 1, (processors - 1) // full + 1):
        steps, fewer = share_steps(contraction, whole, splits), processors - full * splits
        longer = share_steps(contraction, whole, fewer)
        if steps < least or longer * SHORT_STEP > steps:
            return
        if steps < before:
            yield _shared_out(contraction, whole, splits, -(-share_steps(contraction, whole, 1) // longer))
        before = steps


def share_steps(contraction: Contraction, schedule: WsSchedule, shares: int) -> int:
    """Steps along k of the longest of so many shares."""
    steps = -(-schedule.k.extent // schedule.tile[2]) * (contraction.k // schedule.k.extent)
    return -(-steps // shares)


def share_count(contraction: Contraction, schedule: WsSchedule) -> int:
    """Of all blocks of D; where sums are streamed, no fewer than there are workers."""
    missing = schedule.splits - schedule.fewer if schedule.fewer else 0
    return task_count(contraction, schedule) * schedule.splits - missing


def task_count(contraction: Contraction, schedule: WsSchedule) -> int:
    """Blocks of D, or pairs of them where workers take two at once."""
    return block_count(contraction, schedule) // schedule.consumers.abreast


def _has_one_task(contraction: Contraction, schedule: WsSchedule, target: Target) -> bool:
    """Whether each program has but one: then pieces of D may leave through slots that boxes came in."""
    processors = sm_count(target)
    return share_count(contraction, schedule) <= processors


def _stages(contraction: Contraction, tile: tuple[int, int, int], consumers: Consumers, target: Target) -> int:
    """Slots of each ring that the device has shared memory for."""
    tile_m, tile_n, tile_k = tile
    stage = consumers.pipelines * (tile_m + consumers.abreast * tile_n) * tile_k * contraction.arithmetic.product.itemsize
    room = (target.shared_memory or SHARED_MEMORY) - BARRIERS
    if consumers != SMEM_TRANSFORM:
        room -= staging_bytes(tile_m // consumers.shares, consumers.buffers)
    return min(MOST_STAGES, room // stage)
