"""weft's GETT

The family `gett`: the same idea for any equation. A tile is cut per mode where one flattened axis would lose the runs
of an operand, loads follow the order of the operand and stores that of D, and a cost model ranks the tiles.

    schedule= "gett TMxTNxTK m[modes] n[modes] k[modes] warps= stages="
"""

from weft_bench.ladder.families import forced

EQUATION = "fbea,ecfd->dcba"


def run(a, b, d):
    return forced(EQUATION, a, b, d, family="gett")
