"""D on its way: contracted, summed over ranks, finished, and sent to where it stays; by parts, or whole.

The epilogue needs complete sums. Where ranks share out a reduced mode, what a rank contracts are sums of its own, in
the type of sums; C, alpha and the epilogue come after the sum over ranks. Else they are part of the contraction, of
its last part where the reduced mode comes by parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from weft.base.figures import counted
from weft.distributed.group.collectives import all_gather, all_reduce, all_to_all, own_operation, reduce_scatter
from weft.distributed.group.lanes import Token, done
from weft.distributed.planned.blocks import LabelRun, LocalBlock
from weft.distributed.planned.moves import padded
from weft.distributed.planned.placement import Span, chunk
from weft.distributed.planned.steps import LoopStep
from weft.distributed.planned.strategy import Reduction
from weft.distributed.run.call import RankCall
from weft.spec.notation import Label, label_text

BOTH = ("a_fn", "b_fn")


class RankSums:
    """D of one call on one rank."""

    def __init__(self, call: RankCall) -> None:
        self.call, self.strategy, self.work = call, call.strategy, call.work
        self.label, self.term = call.label, call.problem.d.term
        self.addend: LocalBlock | None = None
        self.reductions = self.strategy.reductions
        self.reducing, self.moving = self.strategy.reducing, self.strategy.way_of_d
        self.by_parts = self.label is not None and self.label in self.term
        self.split, self.summed = call.spans(self.strategy.split), call.spans(self.strategy.summed)
        self.contractions = max(1, sum(len(step.runs) for step in call.steps)) if self.label is not None else 1
        self.done = 0
        self.partial: list[LocalBlock] | None = None  # sums that go on from part to part, where they are not D itself
        self.whole: list[LocalBlock] | None = None  # D, where its parts do not go anywhere on their own
        self.held: dict[int, list[LocalBlock]] = {}  # the same of each part
        self.reduced: dict[int, Token] = {}
        self.leaving: dict[int, tuple[Token, Any]] = {}

    # -- compute -------------------------------------------------------------------------------------------------------

    def compute(self, at: int, step: LoopStep, blocks: Mapping[str, LocalBlock]) -> None:
        """All contractions of one part."""
        out = self._target(at, step)
        if self.label is None:
            self._contract(blocks, out, {}, True, True)
        elif self.by_parts:
            for run in step.runs:
                self._contract(blocks, out, {self.label: run}, True, True)
        else:
            runs = step.runs
            if at == len(self.call.steps) - 1 and not self.done and not runs:
                runs = (LabelRun(self.split[self.label].start, 0),)  # nothing to sum: D is what that makes
            for run in runs:
                self.done += 1
                self._contract(blocks, out, {self.label: run}, self.done == 1, self.done == self.contractions)

    def _contract(
        self, blocks: Mapping[str, LocalBlock], out: Sequence[LocalBlock], runs: dict[Label, LabelRun],
        first: bool, last: bool,
    ) -> None:  # fmt: skip
        if not all(block.tensor.numel() for block in out):
            return
        call = self.call
        alpha, beta, hooks = call.alpha, call.beta, [*BOTH]
        addend: LocalBlock | None
        if self.reductions:
            alpha, beta, addend = 1.0, 1.0, None if first else out[0]
        else:
            going_on = self._going_on(out)
            addend = self.addend if first else going_on[0]
            beta = call.beta if first else 1.0
            hooks += ["c_fn"] if first and addend is not None else []
            hooks += ["epilogue"] if last else []
            out = out if last else going_on
        self.work.multiply(
            blocks["a"], blocks["b"], out, runs, spans=self.split, addend=addend, alpha=alpha, beta=beta, hooks=hooks
        )

    def _going_on(self, out: Sequence[LocalBlock]) -> Sequence[LocalBlock]:
        """Where sums go on: in D itself, if it has their type."""
        if self.by_parts or self.contractions == 1 or self.work.types == (self.work.sum_type,):
            return out
        if self.partial is None:
            tensor = torch.empty(out[0].tensor.shape, dtype=self.work.sum_type, device=self.call.device)
            self.partial = [LocalBlock(tensor, self.term, out[0].starts)]
        return self.partial

    def _target(self, at: int, step: LoopStep) -> Sequence[LocalBlock]:
        """Where a part is contracted to."""
        way = self.reducing if self.reductions else self.moving
        if way == "pieces" and self.reductions:
            self.held[at] = [self._pieces(step)]
            return self.held[at]
        if way in ("range", "pieces"):
            assert self.label is not None
            spans = {**self.split, self.label: LabelRun.of(step.spans[0])}
            self.held[at] = self._blocks(spans)
            return self.held[at]
        if self.whole is None:
            direct = not self.reductions and self.strategy.summed == self.call.problem.d.places
            self.whole = self._as_results() if direct else self._blocks(self.split)
        return self.whole

    def _as_results(self) -> list[LocalBlock]:
        starts = {label: self.summed[label].start for label in self.term}
        return [LocalBlock(tensor, self.term, starts) for tensor in self.call.results]

    def _blocks(self, spans: Mapping[Label, LabelRun]) -> list[LocalBlock]:
        """New memory: of sums in the order in which the first reduction sends them, else of D and further results."""
        starts = {label: spans[label].start for label in self.term}
        if not self.reductions:
            return [LocalBlock(tensor, self.term, starts) for tensor in self.call.empty(spans, self.work.types)]
        shape = [spans[label].length for label in self.term]
        target = self.reductions[0].target
        if target is None:
            tensor = torch.empty(shape, dtype=self.work.sum_type, device=self.call.device)
        else:
            dim = self.term.index(target)
            rest = [extent for at, extent in enumerate(shape) if at != dim]
            rows = self._rows(self.reductions[0], shape[dim])
            flat = torch.empty((rows, *rest), dtype=self.work.sum_type, device=self.call.device)
            tensor = flat[: shape[dim]].movedim(0, dim)
        return [LocalBlock(tensor, self.term, starts)]

    def _rows(self, reduction: Reduction, extent: int) -> int:
        ranks = self.call.lines[reduction.line].size
        return ranks * -(-extent // ranks)

    def _pieces(self, step: LoopStep) -> LocalBlock:
        """New memory for a share of every rank's chunk of the label along which sums are scattered."""
        assert self.label is not None
        dim = self.term.index(self.label)
        rows = max(span.extent for span in step.spans)
        rest = [self.split[label].length for label in self.term if label != self.label]
        flat = torch.empty((len(step.spans), rows, *rest), dtype=self.work.sum_type, device=self.call.device)
        starts = {label: self.split[label].start for label in self.term}
        return LocalBlock(flat.movedim(1, 1 + dim), self.term, starts, frozenset(), self.label, step.spans)

    # -- over ranks ----------------------------------------------------------------------------------------------------

    def send(self, at: int, step: LoopStep, computed: Token) -> None:
        """Put a part's sum over ranks on the lane, or the part itself where it is finished."""
        lane = self.call.lane
        if at not in self.held:
            return
        if self.reductions:
            what = f"D: {self._named()}, part {step.part}"
            work = partial(self._scattered if self.reducing == "pieces" else self._reduced, self.held[at][0])
            self.reduced[at] = lane.put(what, at, work, [computed])
        else:
            self._leave(at, step, [block.tensor for block in self.held.pop(at)], computed)

    def _named(self) -> str:
        texts = [
            each.kind if each.target is None else f"{each.kind} along '{label_text(each.target)}'"
            for each in self.reductions
        ]
        return ", ".join(texts)

    def _scattered(self, block: LocalBlock) -> torch.Tensor:
        """This rank's share of a part that has one of every rank; in D's order."""
        line = self.call.lines[self.reductions[0].line]
        flat = block.tensor.movedim(1 + self.term.index(block.pieces), 1).contiguous()
        found = self._reduce_scatter(flat.flatten(0, 1), line)
        return found.movedim(0, self.term.index(block.pieces))

    def _reduced(self, block: LocalBlock) -> torch.Tensor:
        """Sums over the ranks of every line that shares out a reduced label, one line after the other."""
        tensor = block.tensor
        for each in self.reductions:
            line = self.call.lines[each.line]
            if each.target is None:
                tensor = self._all_reduce(tensor, line)
            else:
                dim = self.term.index(each.target)
                whole = Span(0, tensor.shape[dim])
                front, rows = tensor.movedim(dim, 0), self._rows(each, tensor.shape[dim])
                found = self._reduce_scatter(_in_place(front, rows), line)
                tensor = found[: chunk(whole, line.size, line.rank).extent].movedim(0, dim)
        return tensor

    def _reduce_scatter(self, flat: torch.Tensor, line: Any) -> torch.Tensor:
        found = flat.new_empty((flat.shape[0] // line.size, *flat.shape[1:]))
        what = f"reduce-scatter of D ({counted(line.size, 'rank')})"
        if not flat.numel():
            return found
        operation = own_operation(self.work.algebra, self.work.sum_type)
        # gloo's begins nothing before it is waited for, so that nothing could be done meanwhile.
        if operation is not None and line.backend(self.call.device) != "gloo":
            line.wait(reduce_scatter(line, found, flat, operation), what)
            return found
        pieces = torch.empty_like(flat)
        line.wait(all_to_all(line, pieces, flat), what)
        return self.work.reduced(pieces.view(line.size, *found.shape))

    def _all_reduce(self, tensor: torch.Tensor, line: Any) -> torch.Tensor:
        tensor = tensor.contiguous()
        what = f"all-reduce of D ({counted(line.size, 'rank')})"
        if not tensor.numel():
            return tensor
        operation = own_operation(self.work.algebra, self.work.sum_type)
        if operation is not None:
            line.wait(all_reduce(line, tensor, operation), what)
            return tensor
        # As many bytes as in a ring: each rank reduces a piece, and all gather the pieces.
        flat = tensor.reshape(-1)
        part = self._reduce_scatter(padded(flat, line.size * -(-flat.numel() // line.size)), line)
        found = part.new_empty(line.size * part.numel())
        line.wait(all_gather(line, found, part.contiguous()), what)
        return found[: flat.numel()].view(tensor.shape)

    # -- finish --------------------------------------------------------------------------------------------------------

    def finish(self, at: int) -> None:
        """Alpha, C and the epilogue of a part whose sum over ranks is complete."""
        for old in [one for one in self.leaving if one < at - 1]:
            self.leaving.pop(old)[0].wait()
        if at not in self.reduced:
            return
        assert self.label is not None
        step = self.call.steps[at]
        value = self.reduced.pop(at).wait()
        span = step.spans[0]
        if self.reducing == "pieces":
            span = step.spans[self.call.lines[self.reductions[0].line].rank]
        out = self._finished(value, {**self.summed, self.label: LabelRun.of(span)}, at)
        self.held.pop(at)
        if out is not None:
            self._leave(at, step, out, done(self.call.device))

    def _finished(self, sums: torch.Tensor, have: Mapping[Label, LabelRun], at: int) -> list[torch.Tensor] | None:
        """The finished part where it leaves on its own; None where it stays, or leaves with all others."""
        call = self.call
        there = call.spans(call.finished_as)
        want = {label: _common(have[label], there[label]) for label in self.term}
        starts = {label: have[label].start for label in self.term}
        value = LocalBlock(sums, self.term, starts).cut(want)[0]
        alone = self.moving in ("range", "pieces")
        if alone:
            out = call.empty(want, self.work.types)
        elif self.strategy.leaving.moves:
            if self.whole is None:
                self.whole = [
                    LocalBlock(tensor, self.term, {label: there[label].start for label in self.term})
                    for tensor in call.empty(there, self.work.types)
                ]
            out = [block.cut(want)[0] for block in self.whole]
        else:
            out = call.in_results(want)
        if out[0].numel():
            call.record(
                f"finish part {at}", at, partial(self.work.finish, value, out, want, self.addend, call.alpha, call.beta)
            )
        return out if alone else None

    # -- leave ---------------------------------------------------------------------------------------------------------

    def _leave(self, at: int, step: LoopStep, tensors: list[torch.Tensor], after: Token) -> None:
        """Put a finished part's way to where it stays on the lane."""
        work = partial(self._gather_pieces if self.moving == "pieces" else self._gather_range, step, tensors)
        what = f"D: {self.strategy.leaving.said()}, part {step.part}"
        self.leaving[at] = self.call.lane.put(what, at, work, [after]), tensors

    def _gather_range(self, step: LoopStep, tensors: Sequence[torch.Tensor]) -> None:
        call, label = self.call, self.label
        assert label is not None
        span = step.spans[0]
        route = self.strategy.leaving.without(label, span.extent)
        places = call.spans(call.problem.d.places)
        have = {**places, label: LabelRun.of(span)}
        want = {**places, label: _common(have[label], places[label])}
        for tensor, place in zip(tensors, call.in_results(want), strict=True):
            value = route.run(tensor, call.at, call.lines)
            place.copy_(LocalBlock(value, self.term, {one: have[one].start for one in self.term}).cut(
                {one: want[one] for one in self.term})[0])  # fmt: skip

    def _gather_pieces(self, step: LoopStep, tensors: Sequence[torch.Tensor]) -> None:
        call, label = self.call, self.label
        assert label is not None
        assert step.part is not None
        dim = self.term.index(label)
        line = call.lines[self.strategy.leaving.moves[0].line]
        _, spans = self.strategy.leaving_pieces(step.part, call.rank)
        rows = max(span.extent for span in spans)
        places = call.spans(call.problem.d.places)
        finished = call.spans(call.finished_as)
        starts = {one: finished[one].start for one in self.term}
        others = {one: _common(finished[one], places[one]) for one in self.term if one != label}
        for at, tensor in enumerate(tensors):
            part = padded(tensor.movedim(dim, 0), rows)
            whole = part.new_empty((line.size, *part.shape))
            if not whole.numel():
                continue
            line.wait(all_gather(line, whole, part), f"all-gather of D, part {step.part}")
            for piece, span in zip(whole, spans, strict=True):
                if span.extent:
                    place = call.in_results({**places, **others, label: LabelRun.of(span)})[at]
                    value = piece[: span.extent].movedim(0, dim)  # of other labels the ranks of the line keep their own
                    place.copy_(LocalBlock(value, self.term, starts).cut(others)[0])

    def end(self) -> None:
        """Move what does not go by parts: sums over ranks, then D; and wait for all that is on its way."""
        call = self.call
        if self.reductions and self.reducing == "ahead":
            assert self.whole is not None
            sums = self.whole[0]
            self.whole = None
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
                place.copy_(route.run(tensor, call.at, call.lines))

        call.lane.put(f"D: {route.said()}", -1, work, [done(call.device)]).wait()


def _common(one: LabelRun, other: LabelRun) -> LabelRun:
    start = max(one.start, other.start)
    return LabelRun(start, max(0, min(one.start + one.length, other.start + other.length) - start))


def _in_place(front: torch.Tensor, rows: int) -> torch.Tensor:
    """`front` with so many rows: the memory behind it, where it was made with as many, else a copy."""
    rest = math.prod(front.shape[1:])
    behind = front.untyped_storage().nbytes() // front.element_size() - front.storage_offset()
    if front.is_contiguous() and behind >= rows * rest:
        return front.as_strided((rows, *front.shape[1:]), front.stride())
    return padded(front, rows)
