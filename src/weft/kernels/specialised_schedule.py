"""Schedules of the family whose warps are specialised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from weft.kernels.boxes_readings import readings
from weft.kernels.boxes_schedule import BoxesSchedule, misfit, parts, splittings
from weft.kernels.cost import SHARED_MEMORY
from weft.kernels.geometry import A, B
from weft.kernels.specialised_results import block_count, result_groups, staging_bytes
from weft.kernels.specialised_roles import roles
from weft.plan.schedule import Candidates, Target
from weft.spec import Contraction, Role

NAME = "specialised"
LEAST_STAGES, MOST_STAGES = 2, 8
BARRIERS = 2048  # bytes of shared memory: barriers, and what the compiler keeps of the roles


@dataclass(frozen=True, slots=True)
class SpecialisedSchedule(BoxesSchedule):
    """The boxes, and whether both workers share a block of D or each takes blocks of its own."""

    together: bool = True
    family: str = NAME

    def __str__(self) -> str:
        m, n, k = self.tile
        names_m, names_n = ("·".join(mode.name for mode in reading.outer) for reading in (self.a, self.b))
        across = "+".join(map(str, parts(n)))
        split = f" splits={self.splits}" if self.splits > 1 else ""
        return (
            f"specialised {m}x{n}x{k} m[{names_m}:{m}] n[{names_n}:{across}] k[{self.k.name}:{k}]"
            f" {'together' if self.together else 'in turns'} stages={self.stages}{split}"
            f"{' exchanged' if self.exchanged else ''}"
        )


# Tiles (M, N, K in bytes), and whether both workers share one. Boxes of lines under 128 bytes come too slowly.
_TILES = (
    (128, 256, 128, True),
    (128, 320, 128, True),
    (128, 192, 128, True),
    (128, 160, 128, True),
    (128, 128, 128, True),
    (128, 80, 128, True),
    (256, 128, 128, True),
    (256, 80, 128, True),
    (256, 160, 128, True),
    (64, 256, 128, False),
    (64, 320, 128, False),
    (128, 128, 128, False),
    (128, 80, 128, False),
    (128, 160, 128, False),
)


def candidates(contraction: Contraction, target: Target, exchanged: bool = False) -> Candidates:
    """Schedules, and why there are no others; `exchanged` tells that the operands already are."""
    found: dict[SpecialisedSchedule, None] = {}
    excluded: dict[str, None] = {}
    size = contraction.arithmetic.product.itemsize
    for k in contraction.of_role(Role.K):
        readings_a, readings_b = (list(readings(contraction, operand, k)) for operand in (A, B))
        for name, ways in (("A", readings_a), ("B", readings_b)):
            if not ways:
                excluded[f"{name} does not lie in boxes along {k.name}"] = None
        for a, b, (tile_m, tile_n, depth, together) in product(readings_a, readings_b, _TILES):
            tile = (tile_m, tile_n, depth // size)
            reason = misfit(a, b, tile)
            if reason is not None:
                excluded[reason] = None
                continue
            if roles(contraction, tile, together) is None:
                workers = "together" if together else "in turns"
                excluded[f"{tile_m}x{tile_n} {workers} leave no registers for warps that apply B's function"] = None
                continue
            stages = _stages(contraction, tile, together, target)
            if stages < LEAST_STAGES:
                excluded[f"boxes of {tile_m}x{tile_n}x{depth // size} leave no room for others on their way"] = None
                continue
            whole = SpecialisedSchedule(a, b, k, tile, 4, stages, exchanged=exchanged, together=together)
            if result_groups(contraction, a, b) is not None:
                found[whole] = None
            else:
                excluded["D does not lie in boxes of the rows and columns of its blocks"] = None
            found.update(dict.fromkeys(_split(contraction, whole, target)))
    return Candidates(tuple(found), tuple(excluded))


def _split(contraction: Contraction, whole: SpecialisedSchedule, target: Target) -> Iterator[SpecialisedSchedule]:
    """The same with split sums, where D alone cannot fill the device."""
    tile_m, tile_n, tile_k = whole.tile
    steps = -(-whole.k.extent // tile_k) * (contraction.k // whole.k.extent)
    workers = target.processors * (1 if whole.together else 2)
    blocks = block_count(contraction, whole)
    if blocks < workers:
        share_bytes = tile_m * tile_n * contraction.arithmetic.accumulate.itemsize
        for splits in splittings(steps, blocks, workers):
            yield replace(whole, splits=splits, workspace_bytes=splits * blocks * share_bytes)


def _stages(contraction: Contraction, tile: tuple[int, int, int], together: bool, target: Target) -> int:
    """Slots of each ring that the device has shared memory for."""
    tile_m, tile_n, tile_k = tile
    slot = (tile_m + tile_n) * tile_k * contraction.arithmetic.product.itemsize
    room = (target.shared_memory or SHARED_MEMORY) - BARRIERS - staging_bytes(tile, together)
    return min(MOST_STAGES, room // (slot * (1 if together else 2)))
