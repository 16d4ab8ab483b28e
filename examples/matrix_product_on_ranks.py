"""A matrix product split along its summed mode over the ranks of a group, with a bias and an activation.

    torchrun --nproc-per-node 2 examples/matrix_product_on_ranks.py

Each rank has a slice of k of both operands and gets its rows of the result. On machines with a GPU for each rank NCCL
moves the parts, elsewhere gloo does.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

import weft
from weft.distributed import Placement

M, N, K = 512, 384, 1024


def main() -> None:
    gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    generator = torch.Generator().manual_seed(0)  # every rank makes the whole here, to check what comes out
    x, w, bias = (torch.randn(shape, generator=generator) for shape in ((M, K), (K, N), (N,)))
    mine = slice(rank * K // size, (rank + 1) * K // size)
    x_k, w_k = x[:, mine].to(device), w[mine].to(device)

    plan = weft.distributed.plan(
        "mk,kn->mn", x_k, w_k, placements={"a": Placement("k"), "b": Placement("k"), "d": Placement("m")},
        epilogue=lambda total, bias: torch.relu(total + bias), operands={"bias": ("n", bias.to(device))},
    )  # fmt: skip
    y = plan(x_k, w_k)

    rows = torch.relu(x @ w + bias).chunk(size)[rank]
    assert torch.allclose(y.cpu(), rows, atol=1e-3)
    found = weft.profile(plan, x_k, w_k)
    if rank == 0:
        print(plan.explain())
        print(found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
