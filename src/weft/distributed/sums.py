"""D on its way: contracted, summed over ranks, finished, and sent to where it stays; by parts, or whole.

The epilogue needs complete sums. Where ranks share out a reduced mode, what a rank contracts are sums of its own, in
the type of sums; C, alpha and the epilogue come after the sum over ranks. Else they are part of the contraction, of
its last part where the reduced mode comes by parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from weft.api.selection import INDEX
from weft.base.figures import counted
from weft.distributed.lanes import Token, done, noted
from weft.distributed.link import all_reduce, all_to_all, own_operation, reduce_scatter
from weft.distributed.moves import gathered, padded, stacked
from weft.distributed.placement import LocalBlock, Span, Spans, chunk
from weft.distributed.ranks import Ranks
from weft.distributed.strategy import BY_PARTS, LoopStep, RankReduction
from weft.distributed.work import RankCall
from weft.spec.notation import Label

Tensors = tuple[torch.Tensor, ...]


class RankSums:
    """D of one call on one rank."""

    exchanging, gathering = "reduce-scatter", "all-reduce"  # what collectives are called in messages

    def __init__(self, call: RankCall) -> None:
        self.call, self.strategy, self.work = call, call.strategy, call.work
        self.label, self.term = call.label, call.problem.d.term
        self.addend: LocalBlock | None = None
        self.reductions = self.strategy.reductions
        self.reducing, self.moving = self.strategy.ways["sums"], self.strategy.ways["d"]
        self.by_parts = self.label is not None and self.label in self.term
        self.split, self.summed = call.spans(self.strategy.split), call.spans(self.strategy.summed)
        several = self.label is not None and not self.by_parts
        self.contractions = max(1, sum(len(step.runs) for step in call.steps)) if several else 1  # of each sum
        self.done = 0
        self.partial: list[LocalBlock] | None = None  # sums that go on from part to part, where they are not D itself
        self.whole: list[LocalBlock] | None = None  # D, where its parts do not go anywhere on their own
        self.held: dict[int, list[LocalBlock]] = {}  # the same of each part
        self.reduced: dict[int, Token] = {}
        self.leaving: dict[int, tuple[Token, Any]] = {}

    # -- compute -------------------------------------------------------------------------------------------------------

    def compute(self, at: int, step: LoopStep, blocks: Mapping[str, LocalBlock]) -> None:
        """All contractions of one part."""
        out, label, alone = self._target(at, step), self.label, self.contractions == 1
        runs: list[dict[Label, Span]] = [{}] if label is None else [{label: run} for run in step.runs]
        if not (runs or self.done or self.by_parts) and at == len(self.call.steps) - 1:
            first = self.split[label].start
            runs = [{label: Span(first, first)}]  # nothing to sum: D is what that makes
        for each in runs:
            self.done += 1
            self._contract(blocks, out, each, alone or self.done == 1, alone or self.done == self.contractions)

    def _contract(
        self, blocks: Mapping[str, LocalBlock], out: Sequence[LocalBlock], runs: dict[Label, Span],
        first: bool, last: bool,
    ) -> None:  # fmt: skip
        if not all(block.tensor.numel() for block in out):
            return
        alpha, beta, addend, going_on = self.call.alpha, self.call.beta, self.addend, out
        if self.reductions:
            alpha, beta, addend, last = 1.0, 1.0, None, False
        else:
            going_on = self._going_on(out)
        self.work.multiply(
            blocks["a"], blocks["b"], out if last else going_on, runs, spans=self.split,
            addend=addend if first else going_on[0], alpha=alpha, beta=beta, first=first, last=last,
        )  # fmt: skip

    def _going_on(self, out: Sequence[LocalBlock]) -> Sequence[LocalBlock]:
        """Where sums go on: in D itself, if it has their type."""
        if self.contractions == 1 or self.work.types == (self.work.sum_type,):
            return out
        if self.partial is None:
            tensor = torch.empty(out[0].tensor.shape, dtype=self.work.sum_type, device=self.call.device)
            self.partial = [replace(out[0], tensor=tensor)]
        return self.partial

    def _target(self, at: int, step: LoopStep) -> Sequence[LocalBlock]:
        """Where a part is contracted to."""
        way = self.reducing if self.reductions else self.moving
        if way in BY_PARTS:
            spans = {**self.split, self.label: step.spans[0]}
            of_all = way == "pieces" and self.reductions
            self.held[at] = [self._pieces(step)] if of_all else self._blocks(spans)
            return self.held[at]
        if self.whole is None:
            direct = not self.reductions and self.strategy.summed == self.call.problem.d.places
            results = [self.call.block(each, self.summed) for each in self.call.results]
            self.whole = results if direct else self._blocks(self.split)
        return self.whole

    def _blocks(self, spans: Spans) -> list[LocalBlock]:
        """New memory: of sums in the order in which the first reduction sends them, else of D and further results."""
        call = self.call
        target = self.reductions[0].target if self.reductions else None
        if target is None:
            types = [self.work.sum_type] if self.reductions else self.work.types
            return [call.block(tensor, spans) for tensor in call.empty(spans, types)]
        shape, dim = [spans[label].extent for label in self.term], self.term.index(target)
        extent = shape.pop(dim)
        flat = torch.empty(
            (self._rows(self.reductions[0], extent), *shape), dtype=self.work.sum_type, device=call.device
        )
        return [call.block(flat[:extent].movedim(0, dim), spans)]

    def _rows(self, reduction: RankReduction, extent: int) -> int:
        ranks = self.call.lines[reduction.line].size
        return ranks * -(-extent // ranks)

    def _pieces(self, step: LoopStep) -> LocalBlock:
        """New memory for a share of every rank's chunk of the label along which sums are scattered."""
        dim = self.term.index(self.label)
        rows = max(span.extent for span in step.spans)
        rest = [self.split[label].extent for label in self.term if label != self.label]
        flat = torch.empty((len(step.spans), rows, *rest), dtype=self.work.sum_type, device=self.call.device)
        block = self.call.block(flat.movedim(1, 1 + dim), self.split)
        return replace(block, pieces=self.label, spans=step.spans)

    # -- over ranks ----------------------------------------------------------------------------------------------------

    def send(self, at: int, step: LoopStep, computed: Token) -> None:
        """Put a part's sum over ranks on the lane, or the part itself where it is finished."""
        lane = self.call.lane
        if at not in self.held:
            return
        if self.reductions:
            what = f"D: {self._named()}, part {step.part}"
            work = partial(self._scattered if self.reducing == "pieces" else self._reduced, self.held[at])
            self.reduced[at] = lane.put(what, at, work, [computed])
        else:
            self._leave(at, step, [block.tensor for block in self.held.pop(at)], computed)

    def _named(self) -> str:
        return ", ".join(each.said() for each in self.reductions)

    def _scattered(self, blocks: Sequence[LocalBlock]) -> Tensors:
        """This rank's share of a part that has one of every rank; in D's order."""
        (block,), line = blocks, self.call.lines[self.reductions[0].line]
        flat = block.tensor.movedim(1 + self.term.index(block.pieces), 1).contiguous()
        (found,) = self._reduce_scatter((flat.flatten(0, 1),), line)
        return (found.movedim(0, self.term.index(block.pieces)),)

    def _reduced(self, blocks: Sequence[LocalBlock]) -> Tensors:
        """Sums over the ranks of every line that shares out a reduced label, one line after the other."""
        tensors = tuple([block.tensor for block in blocks])
        for each in self.reductions:
            line = self.call.lines[each.line]
            if each.target is None:
                tensors = self._all_reduce(tensors, line)
                continue
            dim = self.term.index(each.target)
            extent = tensors[0].shape[dim]
            rows, mine = self._rows(each, extent), chunk(Span(0, extent), line.size, line.rank).extent
            sent = tuple([_in_place(tensor.movedim(dim, 0), rows) for tensor in tensors])
            tensors = tuple([found[:mine].movedim(0, dim) for found in self._reduce_scatter(sent, line)])
        return tensors

    def _reduce_scatter(self, flat: Tensors, line: Ranks) -> Tensors:
        """This rank's piece along the first dimension; further tensors go with the first as the algebra says."""
        shape = flat[0].shape[0] // line.size, *flat[0].shape[1:]
        if not flat[0].numel():
            return tuple([tensor.new_empty(shape) for tensor in flat])
        operation = self._operation()
        # gloo's begins nothing before it is waited for, so that nothing could be done meanwhile.
        if operation is not None and line.backend(self.call.device) != "gloo":
            found = flat[0].new_empty(shape)
            line.wait(reduce_scatter(line, found, flat[0], operation), self._what("reduce-scatter", line))
            return (found,)
        pieces = []
        for tensor in flat:
            pieces.append(torch.empty_like(tensor))
            line.wait(all_to_all(line, pieces[-1], tensor), self._what(self.exchanging, line))
        return self.work.reduced([each.view(line.size, *shape) for each in pieces])

    def _all_reduce(self, tensors: Tensors, line: Ranks) -> Tensors:
        shape, count = tensors[0].shape, tensors[0].numel()
        if not count:
            return tensors
        operation = self._operation()
        if operation is not None:
            tensor = tensors[0].contiguous()
            line.wait(all_reduce(line, tensor, operation), self._what("all-reduce", line))
            return (tensor,)
        # As many bytes as in a ring: each rank reduces a piece, and all gather the pieces.
        flat = tuple([padded(tensor.reshape(-1), line.size * -(-count // line.size)) for tensor in tensors])
        what = self._what(self.gathering, line)
        return tuple([gathered(part, 0, count, line, what).view(shape) for part in self._reduce_scatter(flat, line)])

    def _operation(self) -> Any | None:
        """The collectives' own operation, where they have one."""
        return own_operation(self.work.algebra, self.work.sum_type)

    def _what(self, kind: str, line: Ranks) -> str:
        return f"{kind} of D ({counted(line.size, 'rank')})"

    # -- finish --------------------------------------------------------------------------------------------------------

    def finish(self, at: int) -> None:
        """Alpha, C and the epilogue of a part whose sum over ranks is complete."""
        for old in [one for one in self.leaving if one < at - 1]:
            self.leaving.pop(old)[0].wait()
        if at not in self.reduced:
            return
        step = self.call.steps[at]
        value = self.reduced.pop(at).wait()
        span = step.spans[0]
        if self.reducing == "pieces":
            span = step.spans[self.call.lines[self.reductions[0].line].rank]
        out = self._finished(value, {**self.summed, self.label: span}, at)
        self.held.pop(at)
        if out is not None:
            self._leave(at, step, out, done(self.call.device))

    def _finished(self, sums: Tensors, have: Spans, at: int) -> list[torch.Tensor] | None:
        """The finished part where it leaves on its own; None where it stays, or leaves with all others."""
        call = self.call
        there = call.spans(call.finished_as)
        want = {label: _common(have[label], there[label]) for label in self.term}
        value, *beside = [call.block(tensor, have).cut(want)[0] for tensor in sums]
        alone = self.moving in BY_PARTS
        if alone:
            out = call.empty(want, self.work.types)
        elif self.strategy.leaving.moves:
            if self.whole is None:
                self.whole = [call.block(tensor, there) for tensor in call.empty(there, self.work.types)]
            out = [block.cut(want)[0] for block in self.whole]
        else:
            out = call.in_results(want)
        if out[0].numel():
            made = out[: len(out) - len(beside)]
            with noted(call.recorder, "compute", f"finish part {at}", at):
                self.work.finish(value, made, want, self.addend, call.alpha, call.beta)
            for tensor, place in zip(beside, out[len(made) :], strict=True):
                place.copy_(tensor)
        return out if alone else None

    # -- leave ---------------------------------------------------------------------------------------------------------

    def _leave(self, at: int, step: LoopStep, tensors: list[torch.Tensor], after: Token) -> None:
        """Put a finished part's way to where it stays on the lane."""
        work = partial(self._gather, step, tensors)
        what = f"D: {self.strategy.leaving.said()}, part {step.part}"
        self.leaving[at] = self.call.lane.put(what, at, work, [after]), tensors

    def _gather(self, step: LoopStep, tensors: Sequence[torch.Tensor]) -> None:
        """The indices that stay here, of all that comes, into their places."""
        call, places = self.call, self.call.spans(self.call.problem.d.places)
        for at, tensor in enumerate(tensors):
            for piece, have in self._arrived(step, tensor):
                want = {one: _common(have[one], places[one]) for one in self.term}
                call.in_results(want)[at].copy_(call.block(piece, have).cut(want)[0])

    def _arrived(self, step: LoopStep, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, Spans]]:
        """A part of D that was moved, or that of every rank of the line: with the indices that each has."""
        call, label, leaving = self.call, self.label, self.strategy.leaving
        if self.moving == "range":
            span = step.spans[0]
            moved = call.moved(leaving.without(label, span.extent), tensor)
            yield moved, {**call.spans(call.problem.d.places), label: span}
            return
        assert step.part is not None
        dim, line = self.term.index(label), call.lines[leaving.moves[0].line]
        _, spans = self.strategy.leaving_pieces(step.part, call.rank)
        part = padded(tensor.movedim(dim, 0), max(span.extent for span in spans))
        finished = call.spans(call.finished_as)  # of other labels the ranks of the line keep their own
        for piece, span in zip(stacked(part, line, f"all-gather of D, part {step.part}"), spans, strict=True):
            yield piece[: span.extent].movedim(0, dim), {**finished, label: span}

    def end(self) -> None:
        """Move what does not go by parts: sums over ranks, then D; and wait for all that is on its way."""
        call = self.call
        if self.reductions and self.reducing == "ahead":
            assert self.whole is not None
            sums, self.whole = self.whole, None
            token = call.lane.put(f"D: {self._named()}", -1, partial(self._reduced, sums), [done(call.device)])
            self._finished(token.wait(), self.summed, -1)
        for token, _ in self.leaving.values():
            token.wait()
        self.leaving.clear()
        if self.whole is None or self.strategy.summed == call.problem.d.places:
            return
        if self.reductions and not self.strategy.leaving.moves:
            return
        route, tensors = self.strategy.leaving, [block.tensor for block in self.whole]

        def work() -> None:
            for tensor, place in zip(tensors, call.results, strict=True):
                place.copy_(call.moved(route, tensor))

        call.lane.put(f"D: {route.said()}", -1, work, [done(call.device)]).wait()


class PairSums(RankSums):
    """D with the indices of what was selected; -1 where there was nothing to select from. Tensors move whole."""

    exchanging, gathering = "exchange", "all-gather"

    def compute(self, at: int, step: LoopStep, blocks: Mapping[str, LocalBlock]) -> None:
        """The selected values among the indices that this rank computes, and where they stand in the whole."""
        problem = self.call.problem
        values, along = self.work.select(blocks["a"], blocks["b"], self.split)
        places = torch.zeros(values.shape, dtype=INDEX, device=values.device)
        reduced = [label for label in dict.fromkeys((*problem.a.term, *problem.b.term)) if problem.is_reduced(label)]
        for label, index in zip(reduced, along, strict=True):
            whole = places * problem.extents[label] + index + self.split[label].start
            places = torch.where(index < 0, index, whole)
        self.whole = [self.call.block(each, self.split) for each in (values, places)]

    def _named(self) -> str:
        return f"{super()._named()} of values with their indices"

    def _operation(self) -> None:
        """Collectives know of no pairs."""

    def end(self) -> None:
        if not self.reductions:
            assert self.whole is not None
            pair, self.whole = tuple([block.tensor for block in self.whole]), None
            self._finished(pair, self.summed, -1)
        super().end()


def _common(one: Span, other: Span) -> Span:
    start = max(one.start, other.start)
    return Span(start, max(start, min(one.stop, other.stop)))


def _in_place(front: torch.Tensor, rows: int) -> torch.Tensor:
    """`front` with so many rows: the memory behind it, where it was made with as many, else a copy."""
    rest = math.prod(front.shape[1:])
    behind = front.untyped_storage().nbytes() // front.element_size() - front.storage_offset()
    if front.is_contiguous() and behind >= rows * rest:
        return front.as_strided((rows, *front.shape[1:]), front.stride())
    return padded(front, rows)
