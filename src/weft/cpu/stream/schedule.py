"""`StreamSchedule`: which two modes make a tile, and the threads that share blocks of D."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from weft.cpu.gett.split import parts_of, steps_of
from weft.cpu.stream.cost import seconds
from weft.cpu.stream.nest import nests, room
from weft.cpu.stream.types import types_of
from weft.spec import Contraction

SMALL = 100_000  # products up to which one thread is as quick as two


@dataclass(frozen=True, slots=True)
class StreamSchedule:
    """The modes of a tile by their places among the contraction's, and the threads that share blocks of D."""

    x: int  # -1: there is none
    y: int
    threads: int
    workspace_bytes: int
    splits: int = 1  # of the sums: see `weft.cpu.gett.split`, of whose first step modes then are
    in_parts: bool = False  # of complex numbers as pairs of real ones: then modes are those of `parts.in_parts`
    family: str = "stream"

    def __str__(self) -> str:
        threads = f"{self.threads} threads" if self.threads > 1 else "one thread"
        threads += f"; sums in {self.splits} parts" if self.splits > 1 else ""
        tile = " x ".join(f"mode {at}" for at in (self.y, self.x) if at >= 0) or "one item"
        parts = " of real parts" if self.in_parts else ""
        return f"stream: one pass, tiles of {tile}{parts}; {threads}; workspace {self.workspace_bytes / 1024:.0f} KiB"


@lru_cache(maxsize=1024)
def best_schedule(contraction: Contraction, threads: int) -> StreamSchedule:
    """The tile of the least predicted time."""
    x, y, nest = min(nests(contraction), key=lambda found: seconds(contraction, found[2]))
    products = math.prod(mode.extent for mode in contraction.modes)
    threads = threads if products > SMALL else 1
    if nest.size < threads and (splits := parts_of(contraction, threads)) > 1:
        found = best_schedule(steps_of(contraction, splits).parts, threads)
        between = splits * contraction.batch * contraction.m * contraction.n * types_of(contraction).sum_size
        return replace(found, splits=splits, workspace_bytes=found.workspace_bytes + between)
    return StreamSchedule(x, y, min(threads, nest.size), threads * room(nest, types_of(contraction)))
