"""weft, as anybody calls it

`weft.contract`: of all families the schedule that is predicted to be fastest.

    weft.contract("fbea,ecfd->dcba", A, B)
"""

from weft.api.contract import contract

EQUATION = "fbea,ecfd->dcba"


def run(a, b, d):
    return contract(EQUATION, a, b, out=d, specialize="now")
