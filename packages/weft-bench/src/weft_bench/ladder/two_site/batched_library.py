"""Two batched products of the library

The target for two launches: `torch.matmul` twice, which is cuBLAS, with G and M shared by the whole batch.

    T = G X   one batched product        Y = T M   one product of (b p) rows
"""

import torch

from weft.machine.ceilings import float32_products


def run(g, x, m, y):
    with float32_products(tf32=False):
        between = torch.matmul(g, x)
        torch.mm(between.view(-1, between.shape[2]), m, out=y.view(-1, y.shape[2]))
    return y
