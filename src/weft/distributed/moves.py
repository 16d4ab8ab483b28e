"""From one placement to another: the collectives that it takes along each dimension of a mesh, and what they cost.

    split by x -> whole         all-gather
    split by x -> split by y    all-to-all
    whole -> split by y         each rank takes its part: nothing travels
    a sum over ranks -> whole, or split by y: see `sums`

A mode that several dimensions of the mesh split, one within the other, is gathered from all of them, the innermost
first, where any of these changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from weft.base.caches import cached_property
from weft.distributed.link import all_gather, all_to_all
from weft.distributed.placement import Places, Span, chunk, held
from weft.distributed.ranks import Ranks
from weft.spec.notation import Label, label_text

PIECE = 1 << 26  # bytes of a rank's part from which a tensor travels in pieces: half a millisecond over NVLink

#: What is sent, where it comes, and how the result is read there.
Packed = tuple[torch.Tensor, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]


@dataclass(frozen=True)
class MeshMove:
    """One collective along one dimension of the mesh: mode `source` becomes whole, mode `target` is split."""

    kind: Literal["all-gather", "all-to-all"]
    line: int
    source: Label
    target: Label | None = None

    def __str__(self) -> str:
        text = f"{self.kind} along '{label_text(self.source)}'"
        return text if self.target is None else f"{text} to '{label_text(self.target)}'"


def moves_between(term: Sequence[Label], held_as: Places, needed: Places) -> tuple[MeshMove, ...]:
    """The collectives that lead from one placement to another. What remains is each rank's own part of what it has."""
    found: list[MeshMove] = []
    changed = {
        label for label in held_as
        if label is not None and [split == label for split in held_as] != [split == label for split in needed]
    }  # fmt: skip
    for line in reversed(range(len(held_as))):
        source, target = held_as[line], needed[line]
        if source is None or source not in changed:
            continue
        alone = held_as.count(source) == 1 and source not in needed
        alone = alone and needed.count(target) == 1 and target not in held_as and term.count(target) == 1
        if alone and target is not None:
            found.append(MeshMove("all-to-all", line, source, target))
        else:
            found.append(MeshMove("all-gather", line, source))
    return tuple(found)


@dataclass(frozen=True)
class TensorRoute:
    """A tensor's way from one placement to another. `shape` is that of the whole tensor."""

    name: str
    term: tuple[Label, ...]
    shape: tuple[int, ...]
    source: Places
    target: Places
    mesh: tuple[int, ...]

    @cached_property
    def moves(self) -> tuple[MeshMove, ...]:
        return moves_between(self.term, self.source, self.target)

    @property
    def touched(self) -> tuple[Label, ...]:
        """Labels that become whole, or are split, on the way."""
        return tuple(label for move in self.moves for label in (move.source, move.target) if label is not None)

    def said(self) -> str:
        """The moves in words."""
        return ", ".join(map(str, self.moves))

    def without(self, label: Label, extent: int) -> TensorRoute:
        """The route of a part of the tensor that has `extent` indices of a label that no move touches."""
        shape = tuple(extent if one == label else size for one, size in zip(self.term, self.shape, strict=True))
        places = [tuple(None if one == label else one for one in places) for places in (self.source, self.target)]
        return TensorRoute(self.name, self.term, shape, places[0], places[1], self.mesh)

    def span(self, dim: int, places: Sequence[Label | None], at: Sequence[int]) -> Span:
        """The indices of one dimension that the rank at `at` has under `places`."""
        return held(self.term[dim], self.shape[dim], tuple(places), self.mesh, at)

    def run(self, tensor: torch.Tensor, at: Sequence[int], lines: Sequence[Ranks]) -> torch.Tensor:
        """This rank's part under `target`, from that under `source`. Every rank of the lines calls it."""
        places = list(self.source)
        for move in self.moves:
            line, dim = lines[move.line], self.term.index(move.source)
            places[move.line] = None
            whole = self.span(dim, places, at).extent
            what = f"{move.kind} of {self.name} along '{label_text(move.source)}'"
            if move.kind == "all-gather":
                tensor = gathered(tensor, dim, whole, line, what)
            else:
                tensor = exchanged(tensor, dim, whole, self.term.index(move.target), line, what)
                places[move.line] = move.target
        for dim in range(tensor.dim()):
            have, want = self.span(dim, places, at), self.span(dim, self.target, at)
            if have != want:
                tensor = tensor.narrow(dim, want.start - have.start, want.extent)
        return tensor

    def steps(self, item: int) -> list[tuple[MeshMove, float, int]]:
        """Each collective with the bytes of what it makes on the rank that has most, and the ranks it is among."""
        places, found = list(self.source), []
        first = (0,) * len(self.mesh)  # the chunks of the first ranks are the largest
        for move in self.moves:
            places[move.line] = None
            size = math.prod(self.span(dim, places, first).extent for dim in range(len(self.term))) * item
            found.append((move, float(size), self.mesh[move.line]))
            if move.kind == "all-to-all":
                places[move.line] = move.target
        return found


def padded(tensor: torch.Tensor, rows: int, dim: int = 0) -> torch.Tensor:
    """`tensor` in row-major order with `rows` indices along `dim`, those that it lacks hold anything."""
    if tensor.shape[dim] == rows:
        return tensor.contiguous()
    found = tensor.new_empty((*tensor.shape[:dim], rows, *tensor.shape[dim + 1 :]))
    found.narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
    return found


def stacked(part: torch.Tensor, line: Ranks, what: str) -> torch.Tensor:
    """The contiguous parts of every rank of a line along a dimension in front."""
    whole = part.new_empty((line.size, *part.shape))
    if whole.numel():
        line.wait(all_gather(line, whole, part), what)
    return whole


def gathered(tensor: torch.Tensor, dim: int, whole: int, line: Ranks, what: str) -> torch.Tensor:
    """The chunks of every rank of a line one after the other along `dim`, `whole` indices in all; `what` names it."""
    rows = -(-whole // line.size)

    def pack(piece: torch.Tensor) -> Packed:
        part = padded(piece.movedim(dim, 0), rows)
        # Chunks are full but for the last ones, so that they follow one another without gaps.
        return part, part.new_empty((line.size * rows, *part.shape[1:])), lambda found: found[:whole].movedim(0, dim)

    return _piece_by_piece(tensor, (dim,), {dim: whole}, {dim: whole}, pack, all_gather, line, what)


def exchanged(tensor: torch.Tensor, dim: int, whole: int, to: int, line: Ranks, what: str) -> torch.Tensor:
    """From a chunk along `dim` of all of `to`, to all of `dim` of a chunk along `to`; `dim` comes first in memory."""
    rows, every = -(-whole // line.size), tensor.shape[to]
    columns = -(-every // line.size)
    mine = chunk(Span(0, every), line.size, line.rank).extent
    full = every // columns if columns else 0  # pieces without a gap, and one with
    rest = every - full * columns

    def pack(piece: torch.Tensor) -> Packed:
        front = piece.movedim((to, dim), (0, 1))  # to, dim, and the rest
        sent = front.new_empty((line.size, rows, columns, *front.shape[2:]))
        there = sent[:, : front.shape[1]].transpose(1, 2)  # rank, to, dim, and the rest
        there[:full].copy_(front[: full * columns].unflatten(0, (full, columns)))
        if rest:
            there[full, :rest].copy_(front[full * columns :])
        return sent, torch.empty_like(sent), lambda found: found.flatten(0, 1)[:whole, :mine].movedim((1, 0), (to, dim))

    return _piece_by_piece(tensor, (dim, to), {dim: rows}, {dim: whole, to: mine}, pack, all_to_all, line, what)


def reduced(
    tensor: torch.Tensor, dim: int | None, line: Ranks, combine: Callable[[torch.Tensor, torch.Tensor], Any],
    what: str, holders: Sequence[int] | None = None,
) -> torch.Tensor:  # fmt: skip
    """The tensors of all ranks of a line combined, on every rank (`dim` None) or each rank's chunk of it along `dim`.

    `holders`: the ranks whose tensors count, where not all do. Pieces are combined in the order of ranks by the rank
    whose they are, so bits are the same on every rank and in every run. `combine` adds its second argument to the
    first.
    """
    if dim is None:
        flat = tensor.reshape(-1)
        return gathered(reduced(flat, 0, line, combine, what, holders), 0, len(flat), line, what).view(tensor.shape)
    extent = tensor.shape[dim]
    rows = -(-extent // line.size)
    mine = chunk(Span(0, extent), line.size, line.rank).extent

    def pack(piece: torch.Tensor) -> Packed:
        sent = padded(piece.movedim(dim, 0), line.size * rows)
        return sent, torch.empty_like(sent), combined

    def combined(found: torch.Tensor) -> torch.Tensor:
        every = found.unflatten(0, (line.size, rows))
        first, *others = every if holders is None else [every[rank] for rank in holders]
        total = first.clone()
        for other in others:
            combine(total, other)
        return total[:mine].movedim(0, dim)

    return _piece_by_piece(tensor, (dim,), {}, {dim: mine}, pack, all_to_all, line, what)


def _piece_by_piece(
    tensor: torch.Tensor, fixed: Sequence[int], most: Mapping[int, int], after: Mapping[int, int],
    pack: Callable[[torch.Tensor], Packed], collective: Callable[[Ranks, torch.Tensor, torch.Tensor], Any],
    line: Ranks, what: str,
) -> torch.Tensor:  # fmt: skip
    """A collective of a tensor, of a large one in pieces along a dimension that is not `fixed`: while one travels the
    next is packed, and the one before it unpacked.

    `most` has extents of the rank that has most, so that all ranks make as many pieces; `after` extents of the result.
    """

    def begin(piece: torch.Tensor) -> Callable[[], torch.Tensor]:
        sent, found, unpack = pack(piece)
        work = collective(line, found, sent) if found.numel() else None

        def end(_: torch.Tensor = sent) -> torch.Tensor:  # which is kept until it has come
            if work is not None:
                line.wait(work, what)
            return unpack(found)

        return end

    shape = [most.get(dim, extent) for dim, extent in enumerate(tensor.shape)]
    free = [dim for dim in range(tensor.dim()) if dim not in fixed]
    by = max(free, key=lambda dim: shape[dim], default=0)
    pieces = -(-math.prod(shape) * tensor.element_size() // PIECE)
    if pieces < 2 or not free or shape[by] < 2:
        return begin(tensor)()
    whole = tensor.new_empty([after.get(dim, extent) for dim, extent in enumerate(tensor.shape)])
    length = -(-shape[by] // pieces)
    moving: list[tuple[Callable[[], torch.Tensor], torch.Tensor]] = []
    for piece, place in zip(tensor.split(length, by), whole.split(length, by), strict=True):
        moving.append((begin(piece), place))
        if len(moving) > 1:
            end, there = moving.pop(0)
            there.copy_(end())
    end, there = moving.pop()
    there.copy_(end())
    return whole
