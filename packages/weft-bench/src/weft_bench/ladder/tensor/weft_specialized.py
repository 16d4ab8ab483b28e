"""Warps with one task each

If the modes of an operand are too short for tiles of a tensor map, weft copies the operand once at the speed of
memory, and TMA loads tiles of the copy: two copies of 54 MB instead of hundreds of thousands of gathered tiles. One
warp requests tiles from TMA, two groups of four multiply, and TMA stores results while the next tile is in progress.
Programs stay on their SM and process tile after tile.

    A, B --one launch--> packed --TMA--> producer | consumer 0 | consumer 1     full and empty barriers for each stage
"""

from weft_bench.ladder.families import forced

EQUATION = "fbea,ecfd->dcba"


def run(a, b, d):
    return forced(EQUATION, a, b, d, family="ttgt", having="; ws.")
