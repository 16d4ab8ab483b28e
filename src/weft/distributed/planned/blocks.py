"""Parts of tensors: which indices a tensor in memory holds, and views of those that one contraction takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from weft.distributed.planned.placement import Span
from weft.spec.notation import Label, label_text


class LabelRun(NamedTuple):
    """Indices of a label: `length` from `start` on, and again every `step`, `times` times."""

    start: int
    length: int
    times: int = 1
    step: int = 0

    @classmethod
    def of(cls, span: Span) -> LabelRun:
        return cls(span.start, span.extent)


def runs_of(spans: Sequence[Span]) -> Iterator[LabelRun]:
    """Neighbouring spans of one length, evenly spaced, as one run; empty ones are left out, and end a run."""
    found: list[list[Span]] = [[]]
    for span in spans:
        last = found[-1]
        if not span.extent:
            found.append([])
        elif not last or (span.extent == last[0].extent and (
            len(last) == 1 or span.start - last[-1].start == last[1].start - last[0].start
        )):
            last.append(span)
        else:
            found.append([span])
    for group in found:
        if group:
            step = group[1].start - group[0].start if len(group) > 1 else 0
            yield LabelRun(group[0].start, group[0].extent, len(group), step)


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

    def cut(self, runs: Mapping[Label, LabelRun]) -> tuple[torch.Tensor, tuple[Label, ...]]:
        """A view of the runs, and its labels: of a run of several spans one more, in front, counts them."""
        tensor, term = self.tensor, self.term
        if self.pieces is not None:
            tensor, term = self._of_pieces(runs[self.pieces])
        for label, run in runs.items():
            if label in self.term and label not in self.broadcast and label != self.pieces:
                tensor, term = _narrowed(tensor, term, label, run, self.starts.get(label, 0))
        return tensor, term

    def _of_pieces(self, run: LabelRun) -> tuple[torch.Tensor, tuple[Label, ...]]:
        assert self.pieces is not None
        if not run.length:
            return self.tensor[0].narrow(self.term.index(self.pieces), 0, 0), self.term
        first = next(at for at, span in enumerate(self.spans) if span.start == run.start and span.extent)
        dim = 1 + self.term.index(self.pieces)
        tensor = self.tensor[first : first + run.times].narrow(dim, 0, run.length)
        if run.times == 1:
            return tensor[0], self.term
        return tensor, (PieceLabel(self.pieces), *self.term)

    def cut_addend(self, runs: Mapping[Label, LabelRun]) -> torch.Tensor:
        """The part `runs` of a block, with a dimension for every label of D, as C has."""
        tensor, term = self.cut(runs)
        missing = sum(1 for label, run in runs.items() if run.times > 1 and PieceLabel(label) not in term)
        return tensor[(None,) * missing]


def _narrowed(
    tensor: torch.Tensor, term: tuple[Label, ...], label: Label, run: LabelRun, start: int
) -> tuple[torch.Tensor, tuple[Label, ...]]:
    dims = [term.index(label)] if term.count(label) == 1 else [dim for dim, one in enumerate(term) if one == label]
    if run.times == 1:
        for dim in dims:
            tensor = tensor.narrow(dim, run.start - start, run.length)
        return tensor, term
    shape, strides, offset = list(tensor.shape), list(tensor.stride()), tensor.storage_offset()
    for dim in dims:
        offset += (run.start - start) * strides[dim]
        shape[dim] = run.length
    outer = [run.times] * len(dims), [run.step * strides[dim] for dim in dims]
    view = tensor.as_strided((*outer[0], *shape), (*outer[1], *strides), offset)
    return view, (*(PieceLabel(label) for _ in dims), *term)
