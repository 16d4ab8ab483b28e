"""weft, by its usual call

`weft.contract` takes the schedule with the shortest predicted time, among all families.

    weft.contract("fbea,ecfd->dcba", A, B)
"""

from weft.api.contract import contract

EQUATION = "fbea,ecfd->dcba"


def run(a, b, d):
    return contract(EQUATION, a, b, out=d, specialize="now")
