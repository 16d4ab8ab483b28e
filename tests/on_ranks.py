"""Run a function on several ranks: processes with a gloo group, forked from one that has imported torch and weft.

What a rank returns or raises comes back. Functions are found by name, so they stand in a file of `tests/` itself.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["torch", "torch.distributed.tensor", "weft", "weft.distributed", "numba"])


@dataclass(frozen=True)
class Outcome:
    """What one rank returned, or the name and message of what it raised; neither where its process ended."""

    value: Any = None
    error: str = ""
    message: str = ""
    ended: bool = False


def on_ranks(
    size: int, function: Callable[..., Any], *args: Any, backend: str = "gloo", limit: float = 120.0
) -> list[Outcome]:
    """`function(*args)` on each of `size` ranks; their outcomes in order. Fails where one hangs longer than `limit`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes = [_processes.Pipe() for _ in range(size)]
    processes = [
        _processes.Process(target=_rank, args=(rank, size, port, backend, pipes[rank][1], function, args), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.close()  # so that reading ends where the process did
    until = time.monotonic() + limit
    found, hung = [], []
    for rank, (receiver, _) in enumerate(pipes):
        try:
            if receiver.poll(max(0.0, until - time.monotonic())):
                found.append(receiver.recv())
            else:
                hung.append(rank)
        except EOFError:
            found.append(Outcome(ended=True))
    for receiver, _ in pipes:
        receiver.close()  # all have said what they have to say: now they end, rank 0 with the store that others ask
    for process in processes:
        process.join(10 if not hung else 0.1)
        if process.is_alive():
            process.kill()
    if hung:
        raise AssertionError(f"ranks {hung} of {size} were still at {function.__name__} after {limit} s")
    return found


def _rank(
    rank: int, size: int, port: int, backend: str, sender: Any, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    if "nccl" in backend:
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
    )
    try:
        outcome = Outcome(value=function(*args))
    except Exception as error:
        outcome = Outcome(error=type(error).__name__, message=str(error))
    sender.send(outcome)
    try:
        sender.recv()
    except EOFError:
        os._exit(0)
