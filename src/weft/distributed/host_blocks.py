"""In which blocks a contraction goes through a device whose memory does not hold it, what that takes, and their copies.

Blocks are cut along one label of each kind: batch, m, n and k. The loops over them are nested, k innermost: a block of
D stays on the device while all blocks along k are added to it. Every loop runs backwards every other time, so that from
one step to the next a single loop moves on, and only blocks that it cuts are copied. Which cuts, and whether the loop
over m or over n is the outer one, follows from the least predicted time among the grids that fit.

Least time: the longest of contracting, copying in and copying out, as the three run at once, and the first block in and
the last block out, which nothing hides.

Copies do not wait: what is contiguous goes at once, rows by their pitch. A copy from or to pinned memory runs while
kernels do; from other memory CUDA goes through buffers of its own and the host waits. Memory that is not pinned is
registered for the time of a call."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import torch

from weft.base.figures import si
from weft.distributed.lanes import COMPUTE, Event, Timeline
from weft.distributed.link import Link
from weft.distributed.placement import Span, chunk
from weft.distributed.prediction import LAUNCH, KernelModel
from weft.errors import WorkspaceError
from weft.spec.notation import Label

_CUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 1024)
_ROW = 16 << 10  # bytes of a row at which a copy by rows runs at half the link's rate


@dataclass(frozen=True)
class HostProblem:
    """A contraction of tensors in a machine's memory; `items` are bytes of an element of a, b, c, d and a "sum".

    `apart`: whether sums that go on from block to block have memory of their own, as D has another type.
    """

    terms: Mapping[str, tuple[Label, ...]]  # of a, b, d, and of c where there may be one
    extents: Mapping[Label, int]
    items: Mapping[str, int]
    resident: int = 0  # bytes that are on the device throughout: operands of functions
    apart: bool = False

    def cut_labels(self) -> dict[str, Label]:
        """The label of each kind that is cut: the longest; of equal ones the outermost."""
        a, b, d = (self.terms[name] for name in "abd")
        found: dict[str, Label] = {}
        for label in dict.fromkeys((*d, *a, *b)):
            kind = "k" if label not in d else "n" if label not in a else "batch" if label in b else "m"
            if kind not in found or self.extents[label] > self.extents[found[kind]]:
                found[kind] = label
        return found


@dataclass(frozen=True)
class Grid:
    """Nested loops over blocks, the outermost first: `cuts` says into how many blocks each label is cut."""

    whole: HostProblem
    cuts: Mapping[Label, int]

    def block(self, name: str) -> int:
        """Elements of the largest block of a tensor."""
        return math.prod(-(-self.whole.extents[label] // self.cuts.get(label, 1)) for label in self.whole.terms[name])

    def parts(self, name: str) -> int:
        """How many blocks a tensor has."""
        return math.prod(cut for label, cut in self.cuts.items() if label in self.whole.terms[name])

    @property
    def steps(self) -> int:
        return math.prod(self.cuts.values())

    @property
    def sums_apart(self) -> bool:
        """Whether sums have memory apart from D until they are complete."""
        return self.steps > self.parts("d") and self.whole.apart

    def memory(self) -> int:
        """Bytes on the device: two of each block that changes."""
        whole = self.whole
        blocks = sum(self.block(name) * whole.items[name] * min(2, self.parts(name)) for name in whole.terms)
        return whole.resident + blocks + (self.block("d") * whole.items["sum"] if self.sums_apart else 0)

    def copied(self, name: str) -> int:
        """How many blocks of a tensor are copied: one for each pass of the innermost loop that cuts it, at most.

        Where a loop turns, the block that is there stays; that is not counted.
        """
        found = passes = 1
        for label, cut in self.cuts.items():
            passes *= cut
            if cut > 1 and label in self.whole.terms[name]:
                found = passes
        return found

    def runs(self, step: int) -> dict[Label, Span]:
        """The indices of the cut labels in a step."""
        found = {}
        for label, cut in reversed(tuple(self.cuts.items())):
            step, at = divmod(step, cut)
            place = cut - 1 - at if step % 2 else at
            found[label] = chunk(Span(0, self.whole.extents[label]), cut, place)
        return found


def estimated(grid: Grid, kernel: KernelModel, link: Link) -> Timeline:
    """By the model of link and kernel: each lane's work as one bar. Copies in begin it, copies out end it, and
    contractions follow the first block."""
    compute = kernel.whole(grid.whole.extents) + LAUNCH[kernel.kind] * grid.steps
    one = {name: _copy(grid, name, link) for name in grid.whole.terms}
    into = sum(grid.copied(name) * seconds for name, seconds in one.items() if name != "d")
    back = grid.copied("d") * one["d"]
    first = min(one["a"] + one["b"], into)
    end = max(compute, into, back) + (first + one["d"])
    return Timeline("predicted", (
        Event("copy in", "all blocks", 0.0, into), Event(COMPUTE, "all steps", first, first + compute),
        Event("copy out", "all blocks", end - back, end),
    ))  # fmt: skip


def _copy(grid: Grid, name: str, link: Link) -> float:
    """Seconds to copy one block: by rows where the cuts leave rows."""
    whole = grid.whole
    size = grid.block(name) * whole.items[name]
    run = whole.items[name]
    for label in reversed(whole.terms[name]):  # the innermost labels that are whole, and the first cut one, are a row
        cut = grid.cuts.get(label, 1)
        run *= -(-whole.extents[label] // cut)
        if cut > 1:
            break
    slow = 1.0 if run >= size else (run + _ROW) / run if run else 1.0
    return link.latency + slow * size / link.bandwidth


def grids(whole: HostProblem) -> Iterator[Grid]:
    """Every grid that is looked at. Batches are cut first, which copies nothing twice; then the other labels."""
    labels = whole.cut_labels()
    options = {kind: [cut for cut in _CUTS if cut <= max(1, whole.extents[label])] for kind, label in labels.items()}
    most = max(1, whole.extents[labels["batch"]]) if "batch" in labels else 1
    others = product(*(options.get(kind, [1]) for kind in "mnk"))
    for batch, m, n, k in [*((few, 1, 1, 1) for few in options.get("batch", []) if few < most),
                           *((most, *cuts) for cuts in others)]:  # fmt: skip
        for loops in ({"batch": batch, "m": m, "n": n, "k": k}, {"batch": batch, "n": n, "m": m, "k": k}):
            yield Grid(whole, {labels[kind]: cut for kind, cut in loops.items() if kind in labels})


def chosen_grid(whole: HostProblem, kernel: KernelModel, link: Link, limit: int | None) -> tuple[Grid, Timeline]:
    """The fastest that fits in `limit` bytes; `WorkspaceError` says the least that would do."""
    every = [(grid.memory(), grid) for grid in grids(whole)]
    fitting = [(grid, estimated(grid, kernel, link)) for memory, grid in every if limit is None or memory <= limit]
    if not fitting:
        least = min(memory for memory, _ in every)
        raise WorkspaceError(
            f"no blocks fit in memory_limit={si(limit or 0, 'B')}: the least that would do is {si(least, 'B')} "
            f"({least} bytes)"
        )
    return min(fitting, key=lambda found: (found[1].seconds, found[0].steps))


_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind


def copy_block(to: torch.Tensor, source: torch.Tensor) -> None:
    """`source` into `to`, of one shape and type; on a GPU in the current stream."""
    if not source.numel():
        return
    if to.device.type == source.device.type:
        to.copy_(source)
        return
    _copied(to, source)


def _copied(to: torch.Tensor, source: torch.Tensor) -> None:
    bits = source.is_conj() or source.is_neg()  # which torch's own copy reads
    if bits or (to.is_contiguous() and source.is_contiguous()):
        to.copy_(source, non_blocking=True)
        return
    rows = as_rows(to), as_rows(source)
    if rows[0] is not None and rows[1] is not None and _copy_rows(to, source, rows[0], rows[1]):
        return
    for part, other in zip(to.unbind(0), source.unbind(0), strict=True):
        _copied(part, other)


def as_rows(tensor: torch.Tensor) -> tuple[int, int, int] | None:
    """A tensor as rows of contiguous elements: how many, elements of each, elements from one to the next; None else."""
    runs: list[tuple[int, int]] = []  # dimensions that follow one another without a gap as one, the innermost first
    for extent, stride in reversed([*zip(tensor.shape, tensor.stride(), strict=True)]):
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1] = runs[-1][0] * extent, runs[-1][1]
        elif extent != 1:
            runs.append((extent, stride))
    length = runs.pop(0)[0] if runs and runs[0][1] == 1 else 1
    count, pitch = runs[0] if runs else (1, length)
    return (count, length, pitch) if len(runs) < 2 and pitch >= length else None


def _copy_rows(to: torch.Tensor, source: torch.Tensor, into: tuple[int, int, int], rows: tuple[int, int, int]) -> bool:
    """One call of CUDA for all rows, where both sides have rows of one length or one is contiguous."""
    if into[0] == 1 and rows[0] > 1 and into[1] == rows[0] * rows[1]:
        into = rows[0], rows[1], rows[1]
    elif rows[0] == 1 and into[0] > 1 and rows[1] == into[0] * into[1]:
        rows = into[0], into[1], into[1]
    copy = _memcpy_2d()
    if copy is None or into[:2] != rows[:2]:
        return False
    item = to.itemsize
    kind = _TO_DEVICE if to.device.type == "cuda" else _TO_HOST
    stream = torch.cuda.current_stream(to.device if to.device.type == "cuda" else source.device).cuda_stream
    status = copy(
        ctypes.c_void_p(to.data_ptr()), ctypes.c_size_t(into[2] * item), ctypes.c_void_p(source.data_ptr()),
        ctypes.c_size_t(rows[2] * item), ctypes.c_size_t(rows[1] * item), ctypes.c_size_t(rows[0]),
        ctypes.c_int(kind), ctypes.c_void_p(stream),
    )  # fmt: skip
    if status:
        raise RuntimeError(f"cudaMemcpy2DAsync of {rows[0]} rows of {rows[1] * item} bytes: error {status}")
    return True


@lru_cache(maxsize=1)
def _memcpy_2d() -> Any:
    """`cudaMemcpy2DAsync` of the runtime that torch has loaded, which torch does not call; None where there is none."""
    if not torch.cuda.is_available() or torch.version.cuda is None or not sys.platform.startswith("linux"):
        return None
    major = torch.version.cuda.partition(".")[0]
    for name in (None, f"libcudart.so.{major}"):
        try:
            found = ctypes.CDLL(name).cudaMemcpy2DAsync
        except (OSError, AttributeError):
            continue
        found.restype = ctypes.c_int
        return found
    return None


@contextmanager
def pinned(tensors: Sequence[torch.Tensor], device: torch.device) -> Iterator[None]:
    """Within, copies of these tensors to and from a GPU run while kernels do: memory that is not pinned is registered.

    Registering costs about as long as reading the memory once; tensors that are used again are better made pinned.
    """
    if device.type != "cuda":
        yield
        return
    runtime = torch.cuda.cudart()
    registered: dict[int, int] = {}
    try:
        for tensor in tensors:
            memory = tensor.untyped_storage()
            if tensor.is_pinned() or not memory.nbytes() or memory.data_ptr() in registered:
                continue
            status = int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes(), 0))
            if status:
                raise WorkspaceError(f"{memory.nbytes()} bytes of memory cannot be pinned: CUDA error {status}")
            registered[memory.data_ptr()] = memory.nbytes()
        yield
    finally:
        if registered:
            torch.cuda.synchronize(device)
            for address in registered:
                runtime.cudaHostUnregister(address)
