"""weft, as anybody calls it

`weft.einsum("mn->m", X)`: a sum over a mode, for which weft calls what is fastest by its cost model.

    weft.einsum("mn->m", X)  -->  candidates of all families  -->  the fastest by the cost model
"""

from weft.api.einsum import einsum


def run(x, d):
    return einsum("mn->m", x, out=d, specialize="now")
