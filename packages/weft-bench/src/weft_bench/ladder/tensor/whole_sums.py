"""Each program a whole sum

D has few elements and the sum is long. One tile per program makes only a handful of programs, and most SMs are idle.

    D 296 x 312: nine tiles of 128 x 128      132 SMs: 9 work, 123 wait
"""

from weft_bench.ladder.families import forced

EQUATION = "dca,cbd->ba"


def run(a, b, d):
    return forced(EQUATION, a, b, d, family="gett", lacking="split_k")
