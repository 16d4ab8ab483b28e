"""How the roles of specialised warps share registers."""

from __future__ import annotations

from typing import NamedTuple

from weft.kernels.cost import REGISTERS
from weft.spec import Contraction

THREADS = 128  # of each worker and applier, and of all loaders with the warps that are added to theirs
WORKERS = APPLIERS = 2
MOST_WORKING = 240  # registers of a thread of a worker
OTHER_WORKING = 24  # besides accumulators, and rows on their way through a function
LOADING = 24
APPLYING = {104: 64, 80: 32, 56: 16}  # of a thread of an applier, and elements that it then computes at once
WIDEST_COLUMNS, NARROWER_COLUMNS = 256, 128  # columns of a matrix instruction


class Roles(NamedTuple):
    """How many appliers there are, none or two, and registers of each thread."""

    appliers: int = 0
    working: int = MOST_WORKING
    applying: int = 0
    at_once: int = 0  # elements that a thread of an applier computes
    widest: int = WIDEST_COLUMNS  # columns of a matrix instruction


def roles(contraction: Contraction, tile: tuple[int, int, int], together: bool) -> Roles | None:
    """Workers have A's function in registers, two appliers have B's: they take turns at a ring of both workers, or have
    one each. None where there are no registers for them.

    All threads begin with the same number of registers, a multiple of 8, and then share those. The assembler (ptxas
    12.8) has any one instruction make do with the number that threads begin with.
    """
    if contraction.b_fn is None:
        return Roles()
    tile_m, tile_n, tile_k = tile
    rows = tile_m // WORKERS if together else tile_m
    twice = tile_k if contraction.a_fn is not None else 0  # two elements to a register
    least = rows * (tile_n + twice) // THREADS + OTHER_WORKING
    threads = THREADS * (WORKERS + APPLIERS + 1)
    all_registers = REGISTERS // threads // 8 * 8 * threads
    for applying, at_once in APPLYING.items():
        left = all_registers - THREADS * (LOADING + APPLIERS * applying)
        working = min(MOST_WORKING, left // (WORKERS * THREADS) // 8 * 8)
        if working >= least:
            return Roles(APPLIERS, working, applying, at_once, NARROWER_COLUMNS)
    return None
