"""How many CTAs of a kernel an SM holds at once, what limits them, and how a grid falls into waves.

Blocks per SM = min over warps, registers, shared memory, block slots and barriers. Registers are given to warps in
units of 256, out of a quarter of the file each (an SM has four partitions, and a warp lives in one); shared memory to
blocks in units of 128 bytes, with the 1 KiB that the driver keeps in each (of 256 and without before 8.0). Limits:
`weft.machine.datasheets`. Formula: `cuda_occupancy.h` of CUDA's toolkit, which the tests compile and compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from weft.base.figures import counted
from weft.errors import UnsupportedError
from weft.machine.datasheets import KIB, SmLimits

WARP = 32
REGISTER_UNIT = 256  # registers: what a warp gets is a multiple of it
MOST_REGISTERS = 255  # of a thread
SHARED_UNIT = 128  # bytes: what a block gets is a multiple of it
MOST_THREADS = 1024  # of a block


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of one kernel an SM holds."""

    blocks: int  # at once; 0: the kernel cannot be launched
    warps: int  # of all of them
    share: float  # of the warps that the SM could hold
    by: Mapping[str, int]  # blocks that each resource allows; a resource that is not used is missing
    binds: tuple[str, ...]  # the resources that allow fewest
    registers: int  # that a block is given
    shared: int  # bytes that a block is given
    too_much: tuple[str, ...] = ()  # sentences: what no block may have

    def __str__(self) -> str:
        if not self.blocks:
            return f"no block fits an SM ({'; '.join(self.too_much) or ', '.join(self.binds)})"
        limits = ", ".join(f"{name} {count}" for name, count in self.by.items())
        return (
            f"{counted(self.blocks, 'block')} an SM, {counted(self.warps, 'warp')} "
            f"({self.share:.0%} of what it holds), limited by {' and '.join(self.binds)} (blocks by {limits})"
        )


@dataclass(frozen=True, slots=True)
class Waves:
    """How a grid runs on all SMs: full waves, then what is left."""

    programs: int
    room: int  # blocks that the device holds at once
    full: int
    tail: int  # blocks in the last wave, where it is not full; 0 where it is
    processors: int = 1

    @property
    def active(self) -> tuple[int, int]:
        """SMs that work in the last wave: where each is filled before the next one, and where all get a block first."""
        blocks = self.tail or self.room
        return -(-blocks * self.processors // self.room), min(blocks, self.processors)

    @property
    def count(self) -> float:
        return self.programs / self.room if self.room else math.inf

    @property
    def used(self) -> float:
        """The share of block slots that have work, over all waves, if every block takes equally long."""
        return self.count / math.ceil(self.count) if self.programs and self.room else 0.0

    def __str__(self) -> str:
        if not self.room or not self.programs:
            return "no wave"
        packed, spread = self.active
        active = f"{counted(packed, 'SM')} at work where blocks are packed, {spread} where spread"
        last = f", {self.tail} of {self.room} slots in the last ({active})" if self.tail else ", the last one full"
        return f"{self.count:.2f} waves{last}"


def occupancy(
    limits: SmLimits, *, registers: int, shared: int, warps: int, barriers: int = 1, carveout: int | None = None
) -> Occupancy:
    """How many blocks an SM holds of a kernel with so many `registers` a thread, bytes of `shared` memory a block
    (static and dynamic together) and `warps` a block.

    `barriers` are the named barriers that the kernel uses; `carveout` is the share, per cent, of the first cache that
    the kernel asks to have as shared memory (as much as there is where None). Raises `UnsupportedError` for numbers
    that no kernel can have.
    """
    _refuse_impossible(registers, shared, warps, barriers, carveout)
    per_warp = _up(registers * WARP, REGISTER_UNIT)
    given = _up(shared + limits.reserved, SHARED_UNIT if limits.reserved else 2 * SHARED_UNIT)
    by = {"warps": limits.warps // warps if warps * WARP <= MOST_THREADS else 0}
    if registers:
        # The hardware's check of a launch takes the warps of a block to fill all partitions alike.
        parts = limits.partitions
        fits = registers <= MOST_REGISTERS + 1 and per_warp * _up(warps, parts) <= limits.registers
        by["registers"] = parts * (limits.registers // parts // per_warp) // warps if fits else 0
    if given:
        by["shared memory"] = _room(limits, given, carveout) // given if given <= limits.shared else 0
    by["block slots"] = limits.blocks
    if barriers and limits.capability >= 90:
        by["barriers"] = limits.barriers * limits.blocks // barriers
    least = min(by.values())
    return Occupancy(
        blocks=least,
        warps=least * warps,
        share=least * warps / limits.warps,
        by=by,
        binds=tuple(name for name, count in by.items() if count == least),
        registers=per_warp * warps,
        shared=given,
        too_much=_too_much(limits, registers, shared, warps),
    )


def _refuse_impossible(registers: int, shared: int, warps: int, barriers: int, carveout: int | None) -> None:
    """`UnsupportedError` that names each number which no kernel can have."""
    wrong = {
        f"{warps} warps a block": warps < 1,
        f"{registers} registers a thread": registers < 0,
        f"{shared} bytes of shared memory": shared < 0,
        f"{barriers} barriers": barriers < 0,
        f"a carve-out of {carveout} per cent": not 0 <= (carveout or 0) <= 100,
    }
    if said := [text for text, is_wrong in wrong.items() if is_wrong]:
        raise UnsupportedError(f"no kernel has {' or '.join(said)}")


def _too_much(limits: SmLimits, registers: int, shared: int, warps: int) -> tuple[str, ...]:
    """The demands past the limit of one block or thread, however empty the SM is."""
    found = []
    if warps * WARP > MOST_THREADS:
        found.append(f"{warps} warps are {warps * WARP} threads, a block has at most {MOST_THREADS}")
    if registers > MOST_REGISTERS + 1:
        found.append(f"{registers} registers, a thread has at most {MOST_REGISTERS}")
    if shared > limits.shared_block:
        found.append(f"{shared} B of shared memory, a block has at most {limits.shared_block}")
    return tuple(found)


def waves(programs: int, processors: int, blocks: int) -> Waves:
    """How `programs` blocks fall into waves where each of so many SMs holds `blocks` at once."""
    room = processors * blocks
    return Waves(programs, room, *(divmod(programs, room) if room else (0, programs)), processors)


def _room(limits: SmLimits, given: int, carveout: int | None) -> int:
    """Bytes of shared memory that an SM is set up with: of the sizes that it has the next to what is asked for, or to
    what one block is given where that is more."""
    asked = _size(limits, limits.shared if carveout is None else carveout * limits.shared // 100)
    return asked if asked >= given else _size(limits, given)


def _size(limits: SmLimits, size: int) -> int:
    return KIB * next(each for each in limits.sizes if KIB * each >= size)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
