"""A tensor network whose slices several GPUs (or processes of a CPU) share, with a checkpoint of what is done.

    torchrun --nproc-per-node 2 examples/network_over_ranks.py                  # a GPU each, or a process each
    torchrun --nproc-per-node 2 examples/network_over_ranks.py /shared/folder   # goes on where it was ended
    python examples/network_over_ranks.py /shared/folder                        # on one device, without a group
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import weft


def ring(sites: int, bond: int, device: torch.device) -> tuple[str, list[torch.Tensor]]:
    """The trace of a product of matrices, two layers of them: a small network with loops. The same on every rank."""
    generator = torch.Generator().manual_seed(0)
    symbols = [chr(192 + at) for at in range(3 * sites)]
    upper, lower, across = symbols[:sites], symbols[sites : 2 * sites], symbols[2 * sites :]
    terms = [f"{line[at]}{line[(at + 1) % sites]}{across[at]}" for line in (upper, lower) for at in range(sites)]
    tensors = [torch.randn(bond, bond, bond, generator=generator).to(device) / bond for _ in terms]
    return ",".join(terms) + "->", tensors


def contracted(group: dist.ProcessGroup | None, device: torch.device, checkpoint: str | None) -> torch.Tensor:
    """The network's value; with a group each rank does its share."""
    equation, tensors = ring(10, 8, device)
    net = weft.network(equation, *tensors, memory_limit="64 KiB")
    if group is None or dist.get_rank(group) == 0:
        print(f"{net!r}, {net.memory >> 10} KiB")
    return net(*tensors, group=group, checkpoint=checkpoint)


def main() -> None:
    """Find out who this process is, and contract."""
    group, device = None, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if "RANK" in os.environ:  # started by torchrun
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        group = dist.group.WORLD
    found = contracted(group, device, sys.argv[1] if len(sys.argv) > 1 else None)
    print(f"rank {dist.get_rank(group) if group is not None else 0}: {found.item():.6g}")
    if group is not None:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
