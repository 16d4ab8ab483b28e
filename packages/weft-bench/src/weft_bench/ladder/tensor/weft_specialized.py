"""Warps with one task each

Where the modes of an operand are too short for the tiles of a tensor map, weft copies it once at the speed of memory,
and the product then runs on tiles that TMA brings: two copies of 54 MB against hundreds of thousands of gathered
tiles. Of its warps one asks TMA for tiles, two groups of four multiply, and results leave by TMA while the next tile is
under way. Programs stay on their SM and take tile after tile.

    A, B --one launch--> packed --TMA--> producer | consumer 0 | consumer 1     full and empty barriers for each stage
"""

from weft_bench.ladder.families import forced

EQUATION = "fbea,ecfd->dcba"


def run(a, b, d):
    return forced(EQUATION, a, b, d, family="ttgt", having="; ws.")
