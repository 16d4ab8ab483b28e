"""The nodes of the host's memory, as a GPU sees them: its own and others, one class of path each.

A copy between host and device goes through the node that the buffer lies in. Linux tells nodes and their processors,
and the node that a device hangs at, under ``/sys``. A buffer lies where the thread runs that touches it first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

_SYS = Path("/sys")


class Node(NamedTuple):
    """A node with processors. `near`: the device hangs at it, so far as the system says."""

    number: int
    processors: frozenset[int]
    near: bool

    @property
    def text(self) -> str:
        return f"node {self.number}{', near' if self.near else ', far'}"


def nodes(device: torch.device, root: Path = _SYS) -> list[Node]:
    """The nodes whose processors this process may use, the device's own first; empty where there is one alone."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    near = _node_of(device, root)
    found = []
    for folder in root.glob("devices/system/node/node[0-9]*"):
        number = int(folder.name.removeprefix("node"))
        processors = frozenset(_numbers((folder / "cpulist").read_text())) & allowed
        if processors:
            found.append(Node(number, processors, number == near))
    return sorted(found, key=lambda node: (not node.near, node.number)) if len(found) > 1 else []


@contextmanager
def bound(node: Node | None) -> Iterator[None]:
    """This thread on the processors of a node, where one is given."""
    if node is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, node.processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _node_of(device: torch.device, root: Path) -> int | None:
    """The node that a GPU hangs at; None where the system does not say."""
    if device.type != "cuda":
        return None
    of: Any = torch.cuda.get_device_properties(device)
    place = f"{of.pci_domain_id:04x}:{of.pci_bus_id:02x}:{of.pci_device_id:02x}.0"
    try:
        number = int((root / "bus/pci/devices" / place / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def _numbers(text: str) -> Iterator[int]:
    """``0-3,8`` as numbers."""
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
