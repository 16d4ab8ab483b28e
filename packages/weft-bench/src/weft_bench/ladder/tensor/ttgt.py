"""Transpose, transpose, multiply, transpose

Each operand is copied so that its summed modes are adjacent, the library multiplies two matrices, and the result is
copied into D's order. The product runs at full speed. The three copies cost little if there is much to compute, and
most of the time if there is not.

    A[f, b, e, a] --copy--> (b a) x (e f)   \\
                                              matrix product --> (d c) x (b a) --copy--> D
    B[e, c, f, d] --copy--> (d c) x (e f)   /
"""

import torch


def run(a, b, d):
    (f, b_, e, a_), (_, c, _, d_) = a.shape, b.shape
    right = a.permute(2, 0, 1, 3).reshape(e * f, b_ * a_)
    left = b.permute(3, 1, 0, 2).reshape(d_ * c, e * f)
    return d.copy_(product(left, right).view(d_, c, b_, a_))


def product(left, right):
    """A product of half precision, summed and kept in single."""
    if left.device.type == "cuda":
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
