"""The placement of tensors: the mode split along each dimension of a mesh of ranks, and the part that a rank has; and
blocks, tensors in memory that hold some of their indices, with views of those that one contraction takes.

A mode of extent n split p ways is stored in chunks of ceil(n / p), the last of which may be short or empty: the rule of
`torch.chunk` and of DTensor, so the shards of a DTensor are parts here as they are. The problem that all ranks solve
together is labels, extents, a mesh, and each tensor's placement; it is equal on every rank."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from weft.base.figures import counted
from weft.errors import ArgumentError, NotationError, ShapeError, UnsupportedError
from weft.spec.notation import Label, label_text, term_text


class Span(NamedTuple):
    """A range of the indices of a mode, from `start` up to `stop`; and again every `step` indices, `times` times."""

    start: int
    stop: int
    times: int = 1
    step: int = 0

    @property
    def extent(self) -> int:
        """How many indices there are, once."""
        return self.stop - self.start


Spans = Mapping[Label, Span]


class Placement:
    """The modes along which a tensor is split over ranks: one for each dimension of the mesh, None where it is whole.

    ``Placement("k")`` on 4 ranks: each has a quarter of mode k. ``Placement("m", None)`` on a mesh of 2 x 2: the first
    dimension of the mesh splits m, along the second all ranks hold the same. ``Placement("m", "m")``: both split m, the
    second what the first left. ``Placement()``: the whole tensor on every rank, whatever the mesh.

    The parts are those of `torch.chunk`, and of DTensor: ceil(extent / ranks) indices each, the last one fewer or none.

    >>> from weft.distributed import Placement
    >>> Placement("m", None)
    Placement('m', None)
    """

    def __init__(self, *modes: Label | None) -> None:
        self.modes = modes

    def __repr__(self) -> str:
        return f"Placement({', '.join(map(repr, self.modes))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and self.modes == other.modes

    def __hash__(self) -> int:
        return hash(self.modes)


Places = tuple[Label | None, ...]  # of one tensor: the label that each dimension of the mesh splits


def read_places(name: str, given: Any, term: Sequence[Label], mesh: Sequence[int]) -> Places:
    """A placement for every dimension of the mesh; `given` is a `Placement`, a label, None, or a sequence of these.

    Raises `ArgumentError` where it names more or fewer dimensions than the mesh has, and `NotationError` for a label
    that the tensor does not have, or has twice.
    """
    if given is None:
        modes: tuple[Any, ...] = ()
    elif isinstance(given, Placement):
        modes = given.modes
    else:
        modes = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not modes:
        modes = (None,) * len(mesh)
    if len(modes) != len(mesh):
        raise ArgumentError(
            f"{name} is placed along {len(modes)} {'dimension' if len(modes) == 1 else 'dimensions'} {modes!r}, the "
            f"mesh {_shape(mesh)} has {len(mesh)}"
        )
    for label in modes:
        if label is not None and term.count(label) != 1:
            often = "twice, as a diagonal" if label in term else "not"
            raise NotationError(
                f"{name} is placed by mode '{label_text(label)}', which '{term_text(tuple(term))}' has {often}"
            )
    return modes


def dtensor_places(name: str, tensor: Any, term: Sequence[Label]) -> Places:
    """Places of a tensor's modes from a DTensor's own placements."""
    found: list[Label | None] = []
    for one in tensor.placements:
        if one.is_partial():
            raise UnsupportedError(f"{name} is a DTensor of partial sums: redistribute it to Shard or Replicate first")
        if one.is_replicate():
            found.append(None)
        elif type(one).__name__ == "Shard":
            found.append(term[one.dim % len(term)])
        else:
            raise UnsupportedError(f"{name} is a DTensor placed by {one}: only Shard and Replicate are read")
    return tuple(found)


def chunk(whole: Span, parts: int, at: int) -> Span:
    """Part `at` of `parts` of a range."""
    step = -(-whole.extent // parts)
    return Span(min(whole.start + at * step, whole.stop), min(whole.start + (at + 1) * step, whole.stop))


def chunks(whole: Span, parts: int) -> tuple[Span, ...]:
    return tuple(chunk(whole, parts, at) for at in range(parts))


def held(label: Label, extent: int, places: Places, mesh: Sequence[int], coordinates: Sequence[int]) -> Span:
    """The indices of a label that the rank at `coordinates` has of a tensor placed so."""
    span = Span(0, extent)
    for split, parts, at in zip(places, mesh, coordinates, strict=True):
        if split == label and split is not None:
            span = chunk(span, parts, at)
    return span


def coordinates(rank: int, mesh: Sequence[int]) -> tuple[int, ...]:
    """Where a rank stands in the mesh: ranks count row by row."""
    return tuple([rank // math.prod(mesh[line + 1 :]) % extent for line, extent in enumerate(mesh)])


@dataclass(frozen=True)
class Placed:
    """One tensor of a call: its name, its labels, how it is placed."""

    name: str
    term: tuple[Label, ...]
    places: Places


def whole_shape(tensor: Placed, shapes: Sequence[Sequence[int]], mesh: Sequence[int]) -> tuple[int, ...]:
    """The shape of the whole tensor, from that of the part of every rank.

    `ShapeError` names the rank whose part is not what its place has of the whole.
    """
    for rank, shape in enumerate(shapes):
        if len(shape) != len(tensor.term):
            raise ShapeError(
                f"rank {rank} of {len(shapes)}: '{term_text(tensor.term)}' has {counted(len(tensor.term), 'label')}, "
                f"{tensor.name} {counted(len(shape), 'dimension')}"
            )
    whole = []
    for dim, label in enumerate(tensor.term):
        splits = [split == label for split in tensor.places]
        if not any(splits):
            whole.append(int(shapes[0][dim]))
            continue
        line = [
            rank for rank in range(len(shapes))
            if all(split or not at for split, at in zip(splits, coordinates(rank, mesh), strict=True))
        ]  # fmt: skip
        whole.append(sum(int(shapes[rank][dim]) for rank in line))
    for rank, shape in enumerate(shapes):
        for dim, label in enumerate(tensor.term):
            mine = held(label, whole[dim], tensor.places, mesh, coordinates(rank, mesh)).extent
            if shape[dim] != mine:
                raise ShapeError(
                    f"rank {rank} of {len(shapes)}: {tensor.name} has extent {shape[dim]} along "
                    f"'{label_text(label)}', its part of {whole[dim]} is {mine} "
                    f"({Placement(*tensor.places)} on a mesh {_shape(mesh)})"
                )
    return tuple(whole)


def read_mesh(mesh: Any, size: int) -> tuple[int, ...]:
    """The extents of a mesh of `size` ranks; all of them in one dimension where nothing is said."""
    if mesh is None:
        return (size,)
    shape = tuple(mesh) if isinstance(mesh, (list, tuple)) else (mesh,)
    if not shape or not all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in shape):
        raise ArgumentError(f"a mesh is extents of 1 and more, as (2, 4), not {mesh!r}")
    count = math.prod(shape)
    if count != size:
        raise ArgumentError(f"the mesh {_shape(shape)} has {count} places, the group {counted(size, 'rank')}")
    return shape


def read_named(placements: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """``{"a": "k", "b": "k", "d": None}``, or a sequence for a, b and d, as a mapping."""
    if placements is None:
        return {}
    if isinstance(placements, Mapping):
        for name in placements:
            if name not in names:
                raise ArgumentError(f"placements are of {', '.join(names)}, not of {name!r}")
        return placements
    if isinstance(placements, (list, tuple)) and len(placements) == 3:
        return dict(zip(("a", "b", "d"), placements, strict=True))
    raise ArgumentError(
        f"placements come as a mapping, {{'a': 'k', 'b': 'k', 'd': None}}, or as three, of a, b and d: {placements!r}"
    )


def _shape(mesh: Sequence[int]) -> str:
    return f"of {counted(mesh[0], 'rank')}" if len(mesh) == 1 else " x ".join(map(str, mesh))


@dataclass(frozen=True)
class RankProblem:
    """A contraction of whole tensors, and the placement of their parts."""

    a: Placed
    b: Placed
    d: Placed
    shapes: Mapping[str, tuple[int, ...]]  # of whole a, b and d
    extents: Mapping[Label, int]
    mesh: tuple[int, ...]
    items: Mapping[str, int]  # bytes of an element of a, b, d and of a "sum"; of a pair, where there are pairs
    pairs: bool = False  # whether a selected value travels with its index: whole, not by parts

    @property
    def size(self) -> int:
        return math.prod(self.mesh)

    @property
    def labels(self) -> tuple[Label, ...]:
        return tuple(dict.fromkeys((*self.d.term, *self.a.term, *self.b.term)))

    def is_reduced(self, label: Label | None) -> bool:
        return label is not None and label not in self.d.term

    def at(self, rank: int) -> tuple[int, ...]:
        return coordinates(rank, self.mesh)

    def bytes_of(self, name: str) -> int:
        return math.prod(self.shapes[name]) * self.items[name]

    def range(self, label: Label, places: Sequence[Label | None], at: Sequence[int]) -> Span:
        return held(label, self.extents[label], tuple(places), self.mesh, at)

    def repeated(self, term: Sequence[Label], shape: Sequence[int]) -> frozenset[Label]:
        """Labels along which a tensor of this shape is the same for all indices."""
        extents = zip(term, shape, strict=True)
        return frozenset(label for label, extent in extents if extent == 1 != self.extents.get(label, 1))

    def addend(self, repeated: Collection[Label], places: Places) -> tuple[tuple[int, ...], Places]:
        """The shape of a whole C that is the same along some labels, and its placement where D's is `places`."""
        shape = tuple(1 if label in repeated else self.extents[label] for label in self.d.term)
        return shape, tuple(None if label in repeated else label for label in places)


def runs_of(spans: Sequence[Span]) -> Iterator[Span]:
    """Neighbouring spans of one length, evenly spaced, as one run; empty ones are left out, and end a run."""
    run: Span | None = None
    for span in spans:
        if run is not None:
            step = span.start - run.start - (run.times - 1) * run.step  # from the last one of the run
            if span.extent == run.extent and (run.times == 1 or step == run.step):
                run = run._replace(times=run.times + 1, step=step)
                continue
            yield run
        run = span if span.extent else None
    if run is not None:
        yield run


@dataclass(frozen=True)
class PieceLabel:
    """The label that counts the spans of a run."""

    label: Label

    def __str__(self) -> str:
        return f"parts of {label_text(self.label)}"


@dataclass(frozen=True)
class LocalBlock:
    """A tensor in memory with the first index that it holds of each label; of labels not in `starts` it is 0.

    With `spans` its first dimension counts pieces: piece i holds the indices `spans[i]` of `pieces`, as many as it has.
    Along `broadcast` labels it has extent 1 for all indices.
    """

    tensor: torch.Tensor
    term: tuple[Label, ...]
    starts: Mapping[Label, int] = field(default_factory=dict)
    broadcast: frozenset[Label] = frozenset()
    pieces: Label | None = None
    spans: tuple[Span, ...] = ()

    def cut(self, runs: Spans) -> tuple[torch.Tensor, tuple[Label, ...]]:
        """A view of the runs, and its labels: of a run of several spans one more, in front, counts them."""
        tensor, term = self.tensor, self.term
        if self.pieces is not None:
            tensor, term = self._of_pieces(runs[self.pieces])
        for label, run in runs.items():
            if label in self.term and label not in self.broadcast and label != self.pieces:
                tensor, term = _narrowed(tensor, term, label, run, self.starts.get(label, 0))
        return tensor, term

    def _of_pieces(self, run: Span) -> tuple[torch.Tensor, tuple[Label, ...]]:
        if not run.extent:
            return self.tensor[0].narrow(self.term.index(self.pieces), 0, 0), self.term
        first = next(at for at, span in enumerate(self.spans) if span.start == run.start and span.extent)
        dim = 1 + self.term.index(self.pieces)
        tensor = self.tensor[first : first + run.times].narrow(dim, 0, run.extent)
        if run.times == 1:
            return tensor[0], self.term
        return tensor, (PieceLabel(self.pieces), *self.term)

    def cut_addend(self, runs: Spans) -> torch.Tensor:
        """The part `runs` of a block, with a dimension for every label of D, as C has."""
        tensor, term = self.cut(runs)
        missing = sum(1 for label, run in runs.items() if run.times > 1 and PieceLabel(label) not in term)
        return tensor[(None,) * missing]


def _narrowed(
    tensor: torch.Tensor, term: tuple[Label, ...], label: Label, run: Span, start: int
) -> tuple[torch.Tensor, tuple[Label, ...]]:
    dims = [term.index(label)] if term.count(label) == 1 else [dim for dim, one in enumerate(term) if one == label]
    if run.times == 1:
        for dim in dims:
            tensor = tensor.narrow(dim, run.start - start, run.extent)
        return tensor, term
    shape, strides, offset = list(tensor.shape), list(tensor.stride()), tensor.storage_offset()
    for dim in dims:
        offset += (run.start - start) * strides[dim]
        shape[dim] = run.extent
    outer = [run.times] * len(dims), [run.step * strides[dim] for dim in dims]
    view = tensor.as_strided((*outer[0], *shape), (*outer[1], *strides), offset)
    return view, (*(PieceLabel(label) for _ in dims), *term)
