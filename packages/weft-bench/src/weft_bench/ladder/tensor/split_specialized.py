"""The sum in parts, warps with one task each

Parts of the sum again, each in a pipeline that TMA fills and two consumers empty. Both operands have long rows here,
so nothing needs packing.

    part i:   producer --TMA--> stages --> consumers --> partial tile
"""

from weft_bench.ladder.families import forced

EQUATION = "dca,cbd->ba"


def run(a, b, d):
    return forced(EQUATION, a, b, d, family="warp_specialized", having="split_k")
