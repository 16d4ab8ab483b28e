"""Many small contractions, chains, sums of operators, block-sparse tensors: what tensor networks spend their time on.

A `SmallCase` says what is computed and of which extents; `weft_bench.small` knows how.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SmallCase:
    """One task.

    grouped        products of matrices: extents (m, n, k) of each
    two-site       Y[b,p,r] = sum G[p,q] X[b,q,c] M[c,r]: extents (b, p, q, c, r)
    operator-sum   sum_t L_t (x) O_t (x) R_t on a state: extents (terms, l, s, r)
    blocks         a product of block matrices: extents of the sectors; row i has blocks in columns i and i + 1
    dmrg           a sweep over a Heisenberg chain: (sites, bond)
    """

    name: str
    task: str
    equation: str
    extents: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float64
    fn: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the first part, for lists."""
        return self.extents[0]

    @property
    def d_dtype(self) -> torch.dtype:
        return self.dtype


def small(host: bool = False) -> tuple[SmallCase, ...]:
    """The cases; with `host` those of which the host's own work counts, a sweep of DMRG among them."""
    draw = random.Random(7)
    mixed = tuple((draw.randint(1, 32),) * 3 for _ in range(1000))
    sectors = tuple((draw.randint(1, 64),) for _ in range(125))
    chain = "pq,bqc,cr->bpr"
    found = (
        SmallCase("equal-1000x16", "grouped", "mk,kn->mn", ((16, 16, 16),) * 1000),
        SmallCase("equal-1000x32", "grouped", "mk,kn->mn", ((32, 32, 32),) * 1000),
        SmallCase("mixed-1000x1..32", "grouped", "mk,kn->mn", mixed),
        *(SmallCase(f"two-site-{b}", "two-site", chain, ((b, 16, 16, 256, 256),), torch.float32) for b in (1, 16, 256)),
        SmallCase("operators-50", "operator-sum", "tLl,tSs,tRr,lsr->LSR", ((50, 128, 4, 128),)),
        SmallCase("operators-50-little", "operator-sum", "tLl,tSs,tRr,lsr->LSR", ((50, 32, 4, 32),)),
        SmallCase("blocks-500", "blocks", "mk,kn->mn", sectors),
    )
    return (*found, SmallCase("heisenberg-24", "dmrg", "sweep", ((24, 64),))) if host else found
