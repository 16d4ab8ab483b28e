"""Four rows of B stay in the first-level cache

The loop over k is outermost, four steps at a time: four rows of B stay in the first-level cache while all rows of A
stream past, and a vector of D is read and written once for four products. Four products take five loads and a store;
the rung before took eight and four, mostly from the second-level cache.

    for k by fours:        A                B             D
        for i:             . x x x x .      . . . .       . . . .
            for j:                          b b b b  *x   . . . .
                                            b b b b  +=>  d d d d     D[i, j] += sum over four k of A[i, k] B[k, j]
                                            b b b b       . . . .
                                            b b b b
"""

from numba import njit

SUMS = 4


@njit(fastmath=True)
def blocked(a, b, d):
    d[:, :] = 0
    whole = a.shape[1] - a.shape[1] % SUMS
    for k in range(0, whole, SUMS):
        b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
        for i in range(a.shape[0]):
            x0, x1, x2, x3 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
            for j in range(b.shape[1]):
                d[i, j] += x0 * b0[j] + x1 * b1[j] + x2 * b2[j] + x3 * b3[j]
    for k in range(whole, a.shape[1]):
        for i in range(a.shape[0]):
            for j in range(b.shape[1]):
                d[i, j] += a[i, k] * b[k, j]


def run(a, b, d):
    blocked(a.numpy(), b.numpy(), d.numpy())
    return d
