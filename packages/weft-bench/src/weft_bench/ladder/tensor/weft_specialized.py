"""Warps with one task each

The same with roles: a producer warp asks TMA for tiles, two groups of four warps multiply, and results leave by TMA
while the next tile is under way. Programs stay on their SM and take tile after tile.

    producer | consumer 0 | consumer 1     full and empty barriers for each stage
"""

from weft_bench.ladder.families import forced

EQUATION = "fbea,ecfd->dcba"


def run(a, b, d):
    return forced(EQUATION, a, b, d, family="ttgt", having="; ws.")
