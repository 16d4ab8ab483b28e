"""Which output tile a program takes: tiles of D in an order in which neighbours share operands in L2."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_coords(program, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """The output tile of a program, (batch, m, n), from the numbers of tiles along m and n. Programs take groups of
    `GROUP` rows of tiles, so that those that run together share operands in L2."""
    batch_block = program // (ROWS * COLUMNS)
    within = program % (ROWS * COLUMNS)
    first = within // (GROUP * COLUMNS) * GROUP
    height = tl.minimum(ROWS - first, GROUP)
    m_block = first + within % (GROUP * COLUMNS) % height
    n_block = within % (GROUP * COLUMNS) // height
    return batch_block, m_block, n_block
