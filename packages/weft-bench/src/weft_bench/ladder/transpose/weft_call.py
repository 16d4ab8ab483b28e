"""weft, by its usual call

`weft.permute` permutes a tensor of any number of modes; with two modes it transposes. Its Triton kernels read and
write a tile with vectors of 16 bytes on both sides, with tile sizes chosen for the shape and the type.
`weft.transpose_` does the same within the matrix's own memory.

    weft.permute(X, "rc->cr")    weft.transpose_(X)
"""

from weft.api.permute import permute
from weft.api.transpose import transpose_


def run(x, d):
    return permute(x, "rc->cr", out=d, specialize="now")


def run_in_place(x):
    return transpose_(x)
