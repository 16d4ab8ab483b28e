"""weft's GETT

The family `gett` applies the same idea to any equation. A tile is cut per mode if one flattened axis would lose the
runs of an operand. Loads follow the order of the operand, stores the order of D, and a cost model ranks the tiles.

    schedule= "gett TMxTNxTK m[modes] n[modes] k[modes] warps= stages="
"""

from weft_bench.ladder.families import forced

EQUATION = "fbea,ecfd->dcba"


def run(a, b, d):
    return forced(EQUATION, a, b, d, family="gett")
