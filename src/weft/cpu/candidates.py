"""The legal schedules of a contraction on the CPU, priced and pruned, and why others are not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from weft.cpu.assembly import assemble, one_by_one
from weft.cpu.blocking import BATCH_BYTES, SMALL_WORKSPACE, WORKSPACE_CAP, target_grid
from weft.cpu.index_groups import Anatomy, Group, Operand, dissect
from weft.cpu.model import price, rough_pricer
from weft.cpu.schedule import CpuSchedule
from weft.cpu.shaping import block_extents, largest_block, mode_limits, mode_order
from weft.cpu.workers import split
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Role

KEPT = 2  # schedules offered under each workspace cap
PRICED = 4  # sizes of blocks priced in detail under each cap, for each way to read A and B


def schedules(contraction: Contraction, target: Target) -> Candidates:
    """The best schedules by the model under each workspace cap, and one sentence for each way that is closed."""
    anatomy = dissect(contraction)
    cores = max(target.processors, 1)
    excluded: list[str] = []
    found: dict[CpuSchedule, float] = {}
    for views in _ways_to_read(anatomy, excluded):
        order = mode_order(anatomy, views)
        for tile, cap in _promising_blocks(anatomy, order, views, cores).items():
            for rows in _orientations(anatomy):
                schedule = assemble(anatomy, rows, order, tile, cores)
                if schedule.workspace_bytes > cap:
                    schedule = one_by_one(anatomy, schedule)
                if schedule.workspace_bytes <= WORKSPACE_CAP and schedule not in found:
                    found[schedule] = price(anatomy, schedule)
    kept: list[CpuSchedule] = []
    for cap in (WORKSPACE_CAP, SMALL_WORKSPACE):
        fitting = sorted((s for s in found if s.workspace_bytes <= cap), key=found.__getitem__)
        kept.extend(fitting[:KEPT])
    return Candidates(tuple(dict.fromkeys(kept)), tuple(excluded))


def _ways_to_read(anatomy: Anatomy, excluded: list[str]) -> Iterator[frozenset[str]]:
    """Which operands' blocks shall be matrices where they lie; the blocks of the others may have any shape."""
    yield frozenset()
    if anatomy.elementwise:
        return
    if anatomy.pairs:
        return  # blocks need not be matrices for tables of pairs; those that are may be read where they lie
    usable = []
    for operand in (anatomy.a, anatomy.b):
        reason = operand.obstacle or _no_matrix(anatomy, operand)
        if reason is not None:
            excluded.append(f"{operand.name} is not read in place: {reason}")
        else:
            usable.append(operand.name)
            yield frozenset(operand.name)
    if len(usable) == 2:
        yield frozenset(usable)


def _no_matrix(anatomy: Anatomy, operand: Operand) -> str | None:
    if anatomy.mixed and operand.compute.is_complex:
        return "its real and imaginary parts must be columns of a real matrix"
    modes = anatomy.contraction.modes
    contiguous = [at for at in (*operand.free, *anatomy.k) if operand.strides[at] == 1]
    if not contiguous and any(modes[at].extent > 1 for at in (*operand.free, *anatomy.k)):
        return "none of the modes of its matrices is contiguous"
    return None


def _orientations(anatomy: Anatomy) -> tuple[Role, ...]:
    """Which free modes may be the accumulator's rows: a real operand must stand left of a complex one."""
    if anatomy.mixed and not anatomy.elementwise:
        return (Role.N,) if anatomy.a.compute.is_complex else (Role.M,)
    return (Role.M, Role.N)


def _promising_blocks(anatomy: Anatomy, order: Group, views: frozenset[str], cores: int) -> dict[tuple[int, ...], int]:
    """Extents of the blocks whose sizes look best under each workspace cap, and the cap."""
    limits = mode_limits(anatomy, views)
    packed = "A" not in views, "B" not in views
    rough = rough_pricer(anatomy, packed, cores)
    rated = sorted((rough(targets), targets) for targets in target_grid(anatomy))
    chosen: dict[tuple[int, ...], int] = {}
    if (anatomy.elementwise or not any(packed)) and not anatomy.evaluates_sums:
        chosen[largest_block(anatomy, limits)] = 0  # for what is read and written where it lies
    for cap, workers in ((WORKSPACE_CAP, split(cores)[0]), (SMALL_WORKSPACE, 1)):
        room = min(BATCH_BYTES, cap // (4 * workers))
        fitting = (targets for rating, targets in rated if rating.workspace_bytes * workers <= cap)
        for targets in itertools.islice(fitting, PRICED):
            chosen[block_extents(anatomy, order, targets, limits, room)] = cap
    return chosen
