"""weft, as anybody calls it

`weft.contract` with the choice left to it. For a plain product of two matrices as they lie that is often the vendor's
library; where a kernel of weft's own is predicted to be faster, it is that one.

    weft.contract("mk,kn->mn", A, B)  -->  candidates of all families  -->  the fastest by the cost model
"""

from weft.api.contract import contract


def run(a, b, d):
    return contract("mk,kn->mn", a, b, out=d, specialize="now")


def run_tf32(a, b, d):
    return contract("mk,kn->mn", a, b, out=d, precision="tf32", specialize="now")
