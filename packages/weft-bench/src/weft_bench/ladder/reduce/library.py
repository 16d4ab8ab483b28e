"""torch's own operations

`torch.sum` over rows and `torch.bincount`, in the kernels of CUDA's libraries and torch.

    torch.sum(X, 1)    torch.bincount(x, minlength=256)
"""

import torch


def run(x, d):
    return torch.sum(x, 1, out=d)


def run_bincount(x, d):
    return d.copy_(torch.bincount(x, minlength=d.numel()))
