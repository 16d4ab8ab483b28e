"""weft's own kernel of ordinary multiply-adds

The family `gett` computes the same product with the schedule that weft's cost model ranks first: tiles, warps and
stages are chosen for the shape, and Triton's compiler lays out values in registers and issues copies in advance
(`cp.async`).

    candidates  --cost model-->  one schedule  -->  tiles of A and B in stages  -->  fma
"""

from weft_bench.ladder.families import forced


def run(a, b, d):
    return forced("mk,kn->mn", a, b, d, family="gett")
