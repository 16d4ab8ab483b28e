"""The innermost loop goes along a row

The loops over j and k are exchanged. An element of A multiplies a row of B, which is added to a row of D. These
elements are adjacent, so the compiler processes 8 or 16 at a time (SIMD), and no sum waits for another. The price: a
row of D is read and written again for every k.

    for i, k:                  B                   D
        x = A[i, k]            x x x x   *x  +=>   d d d d
        for j, by vectors:     . . . .             . . . .
            D[i, j] += x * B[k, j]
"""

from numba import njit


@njit
def vector(a, b, d):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            d[i, j] = 0
        for k in range(a.shape[1]):
            x = a[i, k]
            for j in range(b.shape[1]):
                d[i, j] += x * b[k, j]


def run(a, b, d):
    vector(a.numpy(), b.numpy(), d.numpy())
    return d
