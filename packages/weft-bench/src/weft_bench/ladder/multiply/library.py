"""The vendor's library

`torch.mm`, which is cuBLAS on NVIDIA GPUs: kernels written and scheduled by hand for each GPU. This is the target.

    torch.mm(A, B)  -->  cuBLAS  -->  a heuristic chooses among some hundred kernels
"""

import torch

from weft.machine.ceilings import float32_products


def run(a, b, d):
    with float32_products(tf32=False):
        return torch.mm(a, b, out=d)


def run_tf32(a, b, d):
    with float32_products(tf32=True):
        return torch.mm(a, b, out=d)
