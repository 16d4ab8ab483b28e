"""weft's own kernel of ordinary multiply-adds

The family `gett` on the same product, by the schedule that weft's cost model finds best: tiles, warps and stages are
chosen for the shape, and Triton's compiler lays values out in registers and issues the copies ahead (`cp.async`).

    candidates  --cost model-->  one schedule  -->  tiles of A and B in stages  -->  fma
"""

from weft_bench.ladder.families import forced


def run(a, b, d):
    return forced("mk,kn->mn", a, b, d, family="gett")
