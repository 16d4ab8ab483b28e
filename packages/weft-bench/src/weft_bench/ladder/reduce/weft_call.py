"""weft, by its usual call

`weft.einsum("mn->m", X)` is a sum over a mode; weft runs the fastest kernel by its cost model.

    weft.einsum("mn->m", X)  -->  candidates of all families  -->  the fastest by the cost model
"""

from weft.api.einsum import einsum


def run(x, d):
    return einsum("mn->m", x, out=d, specialize="now")
