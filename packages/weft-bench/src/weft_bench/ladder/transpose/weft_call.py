"""weft, as anybody calls it

`weft.permute` moves a tensor of any number of modes; with two it transposes. Its kernels are Triton's: a tile is read
and written with vectors of 16 bytes on both sides, and its size is chosen for the shape and the type.
`weft.transpose_` does the same in the matrix's own memory.

    weft.permute(X, "rc->cr")    weft.transpose_(X)
"""

from weft.api.permute import permute
from weft.api.transpose import transpose_


def run(x, d):
    return permute(x, "rc->cr", out=d, specialize="now")


def run_in_place(x):
    return transpose_(x)
