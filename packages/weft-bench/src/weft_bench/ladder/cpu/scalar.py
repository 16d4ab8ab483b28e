"""Three loops, one number at a time

Each element of D is summed from its first product to its last. An addition waits some four cycles for the one before
it. B is read down a column, so every element is in another cache line.

    for i, j:              A                B                  D
        total = 0          x x x x  k>      . x . .
        for k:             . . . .          . x . .   k        . d . .
            total += A[i, k] * B[k, j]      . x . .   v
"""

from numba import njit


@njit
def scalar(a, b, d):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = a.dtype.type(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            d[i, j] = total


def run(a, b, d):
    scalar(a.numpy(), b.numpy(), d.numpy())
    return d
