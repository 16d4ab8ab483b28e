"""How a distributed contraction may be computed: what the ranks split, what moves ahead, and what moves by parts.

    split   for each dimension of the mesh, the label whose indices its ranks share out; None: they all compute the same
    loop    the label that is computed in parts, None for all at once
    parts   how many

Of a tensor that moves and has the loop's label, each part moves on its own, while another is contracted:

    range   the part is a range of the label, the move concerns other labels
    pieces  the move gathers, or scatters, the label itself: the part is the same share of every rank's chunk
    ahead   before the loop (operands), or after it (D): whatever moves in no other way
    still   nothing moves
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from weft.base.caches import cached_property
from weft.distributed.moves import TensorRoute
from weft.distributed.placement import Placed, Places, RankProblem, Span, chunk, chunks, runs_of
from weft.spec.notation import Label, label_text

Way = Literal["still", "ahead", "range", "pieces"]
BY_PARTS = ("range", "pieces")
PARTS = (1, 2, 4, 8, 16, 32)  # one: all other ranks' pieces at once, while a rank contracts its own


@dataclass(frozen=True)
class RankReduction:
    """A sum over the ranks of one dimension of the mesh: to all of them (`target` None), or split by a label of D."""

    line: int
    target: Label | None

    @property
    def kind(self) -> str:
        return "all-reduce" if self.target is None else "reduce-scatter"

    def said(self, of: str = "") -> str:
        """The collective, `of` something, and the label along which it splits."""
        return f"{self.kind}{of}" + ("" if self.target is None else f" along '{label_text(self.target)}'")


@dataclass(frozen=True)
class Strategy:
    """One way; what follows from it for each tensor."""

    problem: RankProblem
    split: Places
    loop: Label | None = None
    parts: int = 1

    def needed(self, tensor: Placed) -> Places:
        """The placement of an operand, or of D before its sums are complete, while it is computed."""
        whole = self.problem.shapes[tensor.name]
        extent = dict(zip(tensor.term, whole, strict=True))
        return tuple(
            label if label in extent and extent[label] == self.problem.extents[label] else None for label in self.split
        )

    @cached_property
    def routes(self) -> dict[str, TensorRoute]:
        """The way of each operand, by its name, to where it is needed."""
        shapes, mesh = self.problem.shapes, self.problem.mesh
        return {
            each.name: TensorRoute(each.name, each.term, shapes[each.name], each.places, self.needed(each), mesh)
            for each in (self.problem.a, self.problem.b)
        }

    @cached_property
    def reductions(self) -> tuple[RankReduction, ...]:
        """Sums over ranks, in the order of the mesh."""
        d = self.problem.d.places
        found = []
        for line, label in enumerate(self.split):
            if self.problem.is_reduced(label):
                target = d[line]
                alone = target is not None and d.count(target) == 1 and target not in self.split
                found.append(RankReduction(line, target if alone else None))
        return tuple(found)

    @cached_property
    def summed(self) -> Places:
        """The placement of D when its sums are complete."""
        targets = {each.line: each.target for each in self.reductions}
        return tuple([targets.get(line, label) for line, label in enumerate(self.split)])

    @cached_property
    def leaving(self) -> TensorRoute:
        """The way of a finished D to its own placement."""
        d = self.problem.d
        return TensorRoute("D", d.term, self.problem.shapes["d"], self.summed, d.places, self.problem.mesh)

    def span(self, label: Label, rank: int) -> Span:
        """The indices that a rank computes."""
        return self.problem.range(label, self.split, self.problem.at(rank))

    @cached_property
    def share(self) -> dict[Label, int]:
        """How many indices of each label the rank with the largest share computes."""
        return {label: self.span(label, 0).extent for label in self.problem.labels}

    # -- the loop ------------------------------------------------------------------------------------------------------

    @cached_property
    def ways(self) -> dict[str, Way]:
        """Ways to move a, b, D's "sums" over ranks, and a finished "d"."""
        label, leaving = self.loop, self.leaving
        found: dict[str, Way] = {name: _way(route, label) for name, route in self.routes.items()}
        if found["a"] == found["b"] == "pieces" and self._among("a") != self._among("b"):
            found["b"] = "ahead"
        found["sums"] = "still" if not self.reductions else self._sums_way()
        found["d"] = _way(leaving, label)
        pieces = [name for name, way in found.items() if way == "pieces"]
        if "d" in pieces and len(pieces) > 1:  # D's pieces are shares of this rank's range, theirs of all ranks' chunks
            found["d"] = "ahead"
        if "sums" in pieces and len(pieces) > 1 and self._among("sums") != self._among(pieces[0]):
            found["sums"] = "ahead"
        if "pieces" in (found["a"], found["b"], found["sums"]):  # a part is no range of the label then
            found = {name: "ahead" if way == "range" else way for name, way in found.items()}
        if found["sums"] == "ahead" and leaving.moves:
            found["d"] = "ahead"
        return found

    def _sums_way(self) -> Way:
        label = self.loop
        if label is None or self.problem.is_reduced(label):
            return "ahead"
        targets = [each.target for each in self.reductions]
        if label not in targets:
            return "range"
        return "pieces" if len(targets) == 1 else "ahead"

    def _among(self, name: str) -> int:
        """The number of ranks among which an operand moves, or "sums" are made."""
        return self.problem.mesh[(self.reductions if name == "sums" else self.routes[name].moves)[0].line]

    @property
    def pieces(self) -> int:
        """The number of ranks whose chunks share each part; 1 where a part is a range."""
        return next((self._among(name) for name in ("a", "b", "sums") if self.ways[name] == "pieces"), 1)

    @property
    def own_first(self) -> str | None:
        """The operand of which a rank contracts its own piece while the first part of the others' travels."""
        by_parts = [name for name, way in self.ways.items() if way in BY_PARTS]
        alone = by_parts in (["a"], ["b"]) and self.ways[by_parts[0]] == "pieces"
        return by_parts[0] if alone else None

    def part(self, step: int, rank: int) -> tuple[Span, ...]:
        """The spans of the loop's label that part `step` has on `rank`, in the order of the ranks whose they are."""
        whole = self.span(self.loop, rank)
        full = -(-whole.extent // self.pieces)
        if self.ways["d"] == "pieces":  # this rank's range is one chunk of many, and may be a short one
            full = self.leaving_pieces(step, rank)[0]
        return tuple(share(piece, full, self.parts, step) for piece in chunks(whole, self.pieces))

    def leaving_pieces(self, step: int, rank: int) -> tuple[int, tuple[Span, ...]]:
        """Where D's pieces are gathered by parts: the extent of a full chunk, and the span of each rank's piece."""
        line = self.leaving.moves[0].line
        others = tuple(None if at == line else label for at, label in enumerate(self.summed))
        whole = self.problem.range(self.loop, others, self.problem.at(rank))
        ranks = self.problem.mesh[line]
        full = -(-whole.extent // ranks)
        return full, tuple(share(piece, full, self.parts, step) for piece in chunks(whole, ranks))


def share(piece: Span, full: int, parts: int, step: int) -> Span:
    """Part `step` of a chunk. A short chunk is cut where the full ones are: all of a part have one length at most."""
    found = chunk(Span(0, full), parts, step)
    return Span(min(piece.start + found.start, piece.stop), min(piece.start + found.stop, piece.stop))


def _way(route: TensorRoute, label: Label | None) -> Way:
    """How a tensor moves in a loop over `label`."""
    if not route.moves:
        return "still"
    if label is None or route.term.count(label) != 1 or route.shape[route.term.index(label)] == 1:
        return "ahead"
    moves = route.moves
    if any(route.target[move.line] == label for move in moves):  # the ranks that meet have other ranges of it
        return "ahead"
    if label not in route.touched:
        return "range"
    if len(moves) == 1 and moves[0].kind == "all-gather" and route.source.count(label) == 1:
        return "pieces" if label not in route.target else "ahead"
    return "ahead"


def strategies(problem: RankProblem) -> Iterator[Strategy]:
    """Every way that is looked at: what is split, without a loop; `looped` has the loops of each.

    A line of the mesh splits a label that some tensor has split there; where none has, any.
    """
    options: list[list[Label | None]] = []
    for line in range(len(problem.mesh)):
        wanted = {tensor.places[line] for tensor in (problem.a, problem.b, problem.d)} - {None}
        labels: list[Label | None] = [
            label for label in problem.labels if problem.extents[label] > 1 and (label in wanted or not wanted)
        ]
        # Where an operand is split by a reduced label, its sum would come in another order on each rank.
        reduced = any(problem.is_reduced(tensor.places[line]) for tensor in (problem.a, problem.b))
        if problem.d.places[line] is None and not reduced:
            labels.append(None)
        options.append(labels)
    found = [split for split in product(*options) if _sound(problem, split)]
    for split in found or [problem.d.places]:
        yield Strategy(problem, split)


def looped(first: Strategy) -> Iterator[Strategy]:
    """Strategies in parts: over every label along which something that moves can move by parts."""
    problem = first.problem
    for label in () if problem.pairs else problem.labels:
        extent = first.span(label, 0).extent
        for parts in PARTS:
            found = Strategy(problem, first.split, label, parts)
            if extent < parts * found.pieces:
                break
            if not any(way in BY_PARTS for way in found.ways.values()):
                break
            if parts == 1 and found.own_first is None:
                continue
            yield found


def _sound(problem: RankProblem, split: Places) -> bool:
    """A label is split along several lines only if a tensor is."""
    nested = {label for tensor in (problem.a, problem.b, problem.d) for label in tensor.places
              if label is not None and tensor.places.count(label) > 1}  # fmt: skip
    return all(label is None or split.count(label) == 1 or label in nested for label in split)


@dataclass(frozen=True)
class LoopStep:
    """One part of the loop on one rank; `part` is None for the rank's own piece, which does not travel."""

    runs: tuple[Span, ...]
    part: int | None
    spans: tuple[Span, ...] = ()

    @property
    def name(self) -> str:
        """The name of the step in timelines."""
        return f"part {self.part}" if self.part is not None else "own piece" if self.spans else "all parts"


def steps_of(strategy: Strategy, rank: int) -> list[LoopStep]:
    """The parts in their order, as a rank sees them."""
    if strategy.loop is None:
        return [LoopStep((), None)]
    found, own, name = [], None, strategy.own_first
    if name is not None:
        own = strategy.problem.at(rank)[strategy.routes[name].moves[0].line]  # which of the pieces is the rank's own
        whole = strategy.span(strategy.loop, rank)
        mine = chunks(whole, strategy.pieces)[own]
        found.append(LoopStep((mine,) if mine.extent else (), None, (mine,)))
    for part in range(strategy.parts):
        spans = strategy.part(part, rank)
        others = [Span(0, 0) if at == own else span for at, span in enumerate(spans)]
        found.append(LoopStep(tuple(runs_of(others)), part, spans))
    return found
