"""Loops over products of matrices

Some modes remain loops; the others form a matrix product for the library. For each e and b, the matrices A[:, b, e, :]
and, as a batch over c, B[e, c, :, :] are multiplied and added to D. The library's matrices are only as large as two
modes, and D is read and written once for every e.

    for e: for b:    D[:, :, b, :]  +=  B[e, c]  (d x f)  *  A[b, e]  (f x a)     a batch over c
"""

import torch


def run(a, b, d):
    d.zero_()
    for e in range(a.shape[2]):
        left = b[e].transpose(1, 2)  # (c, d, f)
        for of_b in range(a.shape[1]):
            right = a[:, of_b, e].expand(b.shape[1], -1, -1)  # (c, f, a)
            d[:, :, of_b] += product(left, right).transpose(0, 1)
    return d


def product(left, right):
    """Batches of half precision, summed and kept in single."""
    if left.device.type == "cuda":
        return torch.bmm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
