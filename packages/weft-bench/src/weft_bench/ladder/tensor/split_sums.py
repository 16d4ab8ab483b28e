"""The sum in parts

The sum is cut into parts. Each program sums one part for its tile, and a second kernel adds the parts in a fixed
order, so the result is the same every time.

    k  0 ....... 92352      part 0 | part 1 | ... | part s     9 s programs
                            partial tiles --added up in order--> D
"""

from weft_bench.ladder.families import forced

EQUATION = "dca,cbd->ba"


def run(a, b, d):
    return forced(EQUATION, a, b, d, family="gett", having="split_k")
