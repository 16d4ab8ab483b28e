"""In which blocks a contraction goes through a device whose memory does not hold it, and what that takes.

Blocks are cut along one label of each role: batch, m, n and k. A block of D stays on the device while all blocks along
k are added to it. Blocks of A and B are stored there twice, one being copied while the other is contracted; one that
the next step needs again is not copied again. Which cuts, and whether m or n runs faster, follows from the least
predicted time among those that fit.

Least time: the longest of contracting, copying in and copying out, as the three run at once, and the first
block in and the last block out, which nothing hides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from weft.base.figures import si
from weft.distributed.group.link import Link
from weft.distributed.planned.kernel_model import LAUNCH, KernelModel
from weft.distributed.planned.placement import Span, chunk
from weft.distributed.planned.timeline import COMPUTE, Event, Timeline
from weft.errors import WorkspaceError
from weft.spec.notation import Label

ROLES = ("batch", "m", "n", "k")
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

    def role(self, label: Label) -> str:
        in_a, in_b = label in self.terms["a"], label in self.terms["b"]
        if label not in self.terms["d"]:
            return "k"
        return "batch" if in_a and in_b else "m" if in_a else "n"

    def cut_labels(self) -> dict[str, Label]:
        """The label that is cut of each role: the longest; of equal ones the outermost."""
        found: dict[str, Label] = {}
        order = dict.fromkeys((*self.terms["d"], *self.terms["a"], *self.terms["b"]))
        for label in order:
            role = self.role(label)
            if role not in found or self.extents[label] > self.extents[found[role]]:
                found[role] = label
        return found


@dataclass(frozen=True)
class Grid:
    """So many blocks along the cut label of each role. `m_outer`: blocks along n run faster than those along m."""

    whole: HostProblem
    cuts: Mapping[str, int]
    labels: Mapping[str, Label]
    m_outer: bool = True

    def span(self, role: str, at: int) -> Span:
        return chunk(Span(0, self.whole.extents[self.labels[role]]), self.cuts[role], at)

    def block(self, term: tuple[Label, ...]) -> int:
        """Elements of the largest block of a tensor."""
        found = 1
        for label in term:
            extent = self.whole.extents[label]
            role = self.whole.role(label)
            found *= -(-extent // self.cuts[role]) if self.labels[role] == label else extent
        return found

    def parts(self, name: str) -> int:
        """How many blocks a tensor has."""
        roles = {"a": ("batch", "m", "k"), "b": ("batch", "n", "k")}.get(name, ("batch", "m", "n"))
        return math.prod(self.cuts[role] for role in roles if self.labels.get(role) in self.whole.terms[name])

    @property
    def tiles(self) -> int:
        return self.cuts["batch"] * self.cuts["m"] * self.cuts["n"]

    @property
    def steps(self) -> int:
        return self.tiles * self.cuts["k"]

    @property
    def sums_apart(self) -> bool:
        """Whether sums have memory apart from D until they are complete."""
        return self.cuts["k"] > 1 and self.whole.apart

    def memory(self) -> int:
        """Bytes on the device: two of each block that changes."""
        whole, total = self.whole, self.whole.resident
        for name in ("a", "b", "c", "d"):
            if name in whole.terms:
                total += self.block(whole.terms[name]) * whole.items[name] * min(2, self.parts(name))
        if self.sums_apart:
            total += self.block(whole.terms["d"]) * whole.items["sum"]
        return total

    def copied_in(self) -> dict[str, int]:
        """How many blocks of each tensor are copied to the device."""
        batch, m, n, k = (self.cuts[role] for role in ROLES)
        outer, inner = (m, n) if self.m_outer else (n, m)
        # What the outer label cuts is read once if k is whole: its block stays while the inner label runs.
        slow = batch * outer * (1 if k == 1 else inner * k)
        fast = batch * (1 if inner == k == 1 else outer * inner * k)
        fast = batch if inner == k == 1 else fast
        found = {"a": slow, "b": fast} if self.m_outer else {"b": slow, "a": fast}
        if "c" in self.whole.terms:
            found["c"] = self.tiles
        return found

    def order(self) -> Iterator[tuple[int, int, int, int]]:
        """The steps: the place of each role's block. Every other pass runs backwards, so that its ends are reused."""
        tile = 0
        for batch in range(self.cuts["batch"]):
            outer_role, inner_role = ("m", "n") if self.m_outer else ("n", "m")
            for outer in range(self.cuts[outer_role]):
                inners = range(self.cuts[inner_role])
                for inner in reversed(inners) if outer % 2 else inners:
                    m, n = (outer, inner) if self.m_outer else (inner, outer)
                    ks = range(self.cuts["k"])
                    for k in reversed(ks) if tile % 2 else ks:
                        yield batch, m, n, k
                    tile += 1


@dataclass(frozen=True)
class Estimate:
    """The predicted seconds of a grid: of contracting, copying in, copying out; and in all."""

    compute: float
    copy_in: float
    copy_out: float
    first: float  # block in, which nothing hides
    last: float  # block out, nor that

    @property
    def exposed(self) -> float:
        return self.first + self.last

    @property
    def seconds(self) -> float:
        return max(self.compute, self.copy_in, self.copy_out) + self.exposed

    @property
    def timeline(self) -> Timeline:
        """Each lane's work as one bar: copies in from the start, copies out to the end, contractions after the first
        block."""
        compute = Event(COMPUTE, "all steps", self.first, self.first + self.compute)
        into = Event("copy in", "all blocks", 0.0, self.copy_in)
        back = Event("copy out", "all blocks", self.seconds - self.copy_out, self.seconds)
        return Timeline("predicted", (into, compute, back))

    @property
    def bounds(self) -> str:
        found = {"compute": self.compute, "copying in": self.copy_in, "copying out": self.copy_out}
        return max(found, key=lambda name: found[name])


def estimated(grid: Grid, kernel: KernelModel, link: Link) -> Estimate:
    """By the model of link and kernel."""
    whole, times = grid.whole, grid.copied_in()
    launch = LAUNCH[kernel.kind]
    compute = kernel.whole(whole.extents) + launch * grid.steps
    one = {name: _copy(grid, name, link) for name in whole.terms}
    copy_in = sum(times[name] * one[name] for name in times)
    first = one["a"] + one["b"]
    return Estimate(compute, copy_in, grid.tiles * one["d"], min(first, copy_in), one["d"])


def _copy(grid: Grid, name: str, link: Link) -> float:
    """Seconds to copy one block: by rows where the cuts leave rows."""
    whole = grid.whole
    term, item = whole.terms[name], whole.items[name]
    size = grid.block(term) * item
    run = item
    for label in reversed(term):  # the innermost labels that are whole, and the first that is cut, are one row
        role = whole.role(label)
        cut = grid.labels[role] == label and grid.cuts[role] > 1
        run *= -(-whole.extents[label] // grid.cuts[role]) if cut else whole.extents[label]
        if cut:
            break
    slow = 1.0 if run >= size else (run + _ROW) / run if run else 1.0
    return link.latency + slow * size / link.bandwidth


def grids(whole: HostProblem) -> Iterator[Grid]:
    """Every grid that is looked at. Batches are cut first, which copies nothing twice; then the other roles."""
    labels = whole.cut_labels()
    options = []
    for role in ROLES:
        extent = whole.extents[labels[role]] if role in labels else 1
        cuts = {1, *(cut for cut in _CUTS if cut <= extent)}
        options.append(sorted(cuts | {extent} if role == "batch" and extent else cuts))
    *few, most = options[0]
    every = [(batch, 1, 1, 1) for batch in few] + [(most, *cuts) for cuts in product(*options[1:])]
    for four in every:
        for m_outer in (True, False):
            yield Grid(whole, dict(zip(ROLES, four, strict=True)), labels, m_outer)


def chosen_grid(whole: HostProblem, kernel: KernelModel, link: Link, limit: int | None) -> tuple[Grid, Estimate]:
    """The fastest that fits in `limit` bytes; `WorkspaceError` says the least that would do."""
    best: tuple[float, int, Grid, Estimate] | None = None
    least = None
    for grid in grids(whole):
        memory = grid.memory()
        least = memory if least is None else min(least, memory)
        if limit is not None and memory > limit:
            continue
        found = estimated(grid, kernel, link)
        if best is None or (found.seconds, grid.steps) < best[:2]:
            best = found.seconds, grid.steps, grid, found
    if best is None:
        raise WorkspaceError(
            f"no blocks fit in memory_limit={si(limit or 0, 'B')}: the least that would do is {si(least or 0, 'B')} "
            f"({least} bytes)"
        )
    return best[2], best[3]
