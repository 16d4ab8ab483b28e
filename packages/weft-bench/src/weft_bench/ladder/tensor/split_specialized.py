"""The sum in parts, warps with one task each

Parts of the sum again, each by a pipeline that TMA fills and two consumers empty. Here both operands have long rows,
so that nothing need be packed.

    part i:   producer --TMA--> stages --> consumers --> partial tile
"""

from weft_bench.ladder.families import forced

EQUATION = "dca,cbd->ba"


def run(a, b, d):
    return forced(EQUATION, a, b, d, family="warp_specialized", having="split_k")
