"""Pack once, then let TMA copy

Where the modes of an operand are too short for the tiles of a tensor map, weft copies it once at the speed of memory,
and the product then runs on tiles that TMA brings: two copies of 54 MB against hundreds of thousands of gathered
tiles.

    A, B --one launch--> packed, k in a row --TMA--> stages in shared memory --wgmma--> D in its own order
"""

from weft_bench.ladder.families import forced

EQUATION = "fbea,ecfd->dcba"


def run(a, b, d):
    return forced(EQUATION, a, b, d, family="ttgt", having="; ws.")
