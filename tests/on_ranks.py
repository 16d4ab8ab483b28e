"""Run a function on several ranks: processes with a gloo group, begun by `forked`.

What a rank returns or raises comes back. Functions are found by name, so they stand in a file of `tests/` itself.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from forked import start


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
    ranks = [start(_rank, rank, size, port, backend, function, args) for rank in range(size)]
    until = time.monotonic() + limit
    found, hung = [], []
    for rank, (_, receiver) in enumerate(ranks):
        try:
            if receiver.poll(max(0.0, until - time.monotonic())):
                found.append(receiver.recv())
            else:
                hung.append(rank)
        except EOFError:
            found.append(Outcome(ended=True))
    for _, receiver in ranks:
        receiver.close()  # all have said what they have to say: now they end, rank 0 with the store that others ask
    for process, _ in ranks:
        process.join(10 if not hung else 0.1)
        if process.is_alive():
            process.kill()
    if hung:
        raise AssertionError(f"ranks {hung} of {size} were still at {function.__name__} after {limit} s")
    return found


def _rank(
    sender: Any, rank: int, size: int, port: int, backend: str, function: Callable[..., Any], args: tuple[Any, ...]
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
        outcome = Outcome(error=type(error).__name__, message=str(error) or type(error).__name__)
    sender.send(outcome)
    try:
        sender.recv()
    except EOFError:
        os._exit(0)
