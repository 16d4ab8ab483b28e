"""Input sets that a timing rotates over, so that no call finds its operands in the cache by accident."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from weft.machine.counts import distinct_elements

Mode: TypeAlias = Literal["cold", "hot"]
InputSet: TypeAlias = Sequence[Any]  # the arguments of one call
Inputs: TypeAlias = Callable[[], InputSet] | Sequence[InputSet]

CACHE_TURNOVERS = 3  # how many caches full of other data pass between two uses of a set
MOST_SETS = 4096
_CPU_MEMORY = 1 << 30  # bytes that the sets of one timing may take in host memory
_CPU_CACHE = 32 << 20  # bytes assumed where the system does not tell


@dataclass(frozen=True, slots=True)
class Rotation:
    """The sets a timing uses, the bytes they touch together, and what is to be said about them."""

    sets: tuple[InputSet, ...]
    bytes: int
    notes: tuple[str, ...] = ()


def rotation(inputs: Inputs, mode: Mode, *, cache: int, memory: int) -> Rotation:
    """Choose or make the sets for one timing.

    `inputs` is a function that makes one set, or the sets themselves. Cold: as many sets as together touch
    `CACHE_TURNOVERS` times `cache` bytes, at least two (operands read often stay cached to the end of a call), within
    `memory` bytes and `MOST_SETS`. Hot: one set, every call finds it where the last one left it.
    """
    if callable(inputs):
        return _made(inputs, mode, CACHE_TURNOVERS * cache, memory)
    sets = tuple(inputs)
    if not sets:
        raise ValueError("no input set to time with")
    if any(isinstance(arguments, torch.Tensor) for arguments in sets):
        raise TypeError("inputs is a sequence of argument sets (or a function that makes one), not of tensors")
    if mode == "hot":
        sets = sets[:1]
    return Rotation(sets, touched_bytes(sets), _shortfall(sets, mode, CACHE_TURNOVERS * cache))


def touched_bytes(sets: Sequence[InputSet]) -> int:
    """Bytes of all different elements in all sets; a tensor that several sets share counts once."""
    seen: dict[tuple[Any, ...], int] = {}
    for arguments in sets:
        for tensor in arguments:
            if isinstance(tensor, torch.Tensor):
                key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
                seen[key] = distinct_elements(tensor.shape, tensor.stride()) * tensor.element_size()
    return sum(seen.values())


def cache_bytes(device: torch.device) -> int:
    """Size of the last cache before main memory: the L2 of a GPU, the largest data cache of a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max(map(_size_in, Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")), default=_CPU_CACHE)


def memory_bytes(device: torch.device) -> int:
    """How much the sets of one timing may take: half of a GPU's free memory, a fixed share of the host's."""
    return free_bytes(device) // 2 if device.type == "cuda" else _CPU_MEMORY


def free_bytes(device: torch.device) -> int:
    """Bytes that torch can still allocate on a GPU: what is free there, and what its allocator keeps unused."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _made(make: Callable[[], InputSet], mode: Mode, wanted: int, memory: int) -> Rotation:
    sets = [make()]
    each = touched_bytes(sets)
    if mode == "hot" or each == 0:
        return Rotation(tuple(sets), each)
    count = max(2, -(-wanted // each))
    affordable = max(1, min(memory // each, MOST_SETS))
    sets.extend(make() for _ in range(min(count, affordable) - 1))
    return Rotation(tuple(sets), touched_bytes(sets), _shortfall(sets, mode, wanted))


def _shortfall(sets: Sequence[InputSet], mode: Mode, wanted: int) -> tuple[str, ...]:
    have = touched_bytes(sets)
    if mode == "hot" or have == 0:
        return ()
    if have < wanted:
        return (f"{len(sets)} input sets touch {have} bytes; {wanted} would be needed for a cold cache",)
    if len(sets) == 1:
        return ("one input set alone: what a call reads last may be cached for the next one",)
    return ()


def _size_in(file: Path) -> int:
    """Bytes in a cache size as Linux writes it, e.g. ``32768K``."""
    text = file.read_text().strip()
    return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]]
