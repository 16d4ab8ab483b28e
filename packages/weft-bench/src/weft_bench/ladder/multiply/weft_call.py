"""weft, by its usual call

`weft.contract` makes the choice. A plain product of two stored matrices often uses the vendor's library; if a kernel
of weft is predicted to be faster, it uses that.

    weft.contract("mk,kn->mn", A, B)  -->  candidates of all families  -->  the fastest by the cost model
"""

from weft.api.contract import contract


def run(a, b, d):
    return contract("mk,kn->mn", a, b, out=d, specialize="now")


def run_tf32(a, b, d):
    return contract("mk,kn->mn", a, b, out=d, precision="tf32", specialize="now")
