"""One call of a distributed plan on one rank: what travels on a lane of its own, and what is contracted meanwhile.

    fetch    part i + 1 of operands that move          the lane
    compute  part i                                    the caller's stream, or thread
    reduce   sums of part i over ranks                 the lane
    finish   alpha, C and the epilogue of part i - 1   the caller's
    leave    part i - 1 of a finished D                the lane

Two parts of each are in memory at once. Every rank puts the same collectives on its lane in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from weft.distributed.lanes import Lane, Token, done, noted
from weft.distributed.moves import TensorRoute, padded, stacked
from weft.distributed.placement import LocalBlock, Placed
from weft.distributed.strategy import BY_PARTS, LoopStep
from weft.distributed.sums import PairSums, RankSums
from weft.distributed.work import RankCall
from weft.spec.notation import Label, label_text


class Execution(RankCall):
    """The order in which a call's parts travel and are contracted. `run` leaves D's part in `results`."""

    def run(self) -> None:
        """All of it; on a GPU the host goes on when everything is on its way."""
        self.local = {"a": self.a, "b": self.b}
        with Lane("transfer", self.device, self.recorder, self.strategy.loop is not None) as self.lane:
            ahead = {tensor.name: self._ahead(tensor) for tensor in (self.problem.a, self.problem.b)}
            addend = self._addend()
            self._loop(ahead, addend)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _loop(
        self, ahead: Mapping[str, Callable[[], LocalBlock] | None], addend: Callable[[], LocalBlock | None]
    ) -> None:
        moving = [tensor for tensor in (self.problem.a, self.problem.b) if ahead[tensor.name] is None]
        fetched: list[dict[str, Token]] = []
        computed: list[Token] = []
        kept: list[Any] = [None, None]  # what the lane gave the last two parts: its memory is used till they are done

        def fetch(at: int) -> None:
            step = self.steps[at]
            tokens = {}
            for tensor in moving if step.part is not None else ():
                after = computed[at - 2 : at - 1] if at >= 2 else []
                tokens[tensor.name] = self._fetch(tensor, step, at, after, kept)
            fetched.append(tokens)

        sums = PairSums(self) if self.problem.pairs else RankSums(self)
        fetch(0)
        for at, step in enumerate(self.steps):
            if at + 1 < len(self.steps):
                fetch(at + 1)
            if at == 0:
                known = {name: found() for name, found in ahead.items() if found is not None}
                sums.addend = addend()
            blocks = dict(known)
            for tensor in moving:
                token = fetched[at].pop(tensor.name, None)  # it holds what came, which two parts may do
                blocks[tensor.name] = token.wait() if token is not None else self._own_piece(tensor)
            kept[at % 2] = blocks
            with noted(self.recorder, "compute", step.name, at):
                sums.compute(at, step, blocks)
            computed.append(done(self.device))
            sums.send(at, step, computed[-1])
            if at:
                sums.finish(at - 1)
        sums.finish(len(self.steps) - 1)
        sums.end()

    # -- operands ------------------------------------------------------------------------------------------------------

    def _ahead(self, tensor: Placed) -> Callable[[], LocalBlock] | None:
        """A whole operand as it is needed, on its way or here already; None where it comes by parts."""
        if self.strategy.ways[tensor.name] in BY_PARTS:
            return None
        return self._arriving(self.strategy.routes[tensor.name], self.local[tensor.name], self._repeated(tensor))

    def _addend(self) -> Callable[[], LocalBlock | None]:
        """C where it is added: as it came, or on its way to where D is finished."""
        if self.c is None:
            return lambda: None
        problem, d, repeated = self.problem, self.problem.d, self.c.broadcast
        shape, split = problem.addend(repeated, d.places)
        route = TensorRoute("c", d.term, shape, split, problem.addend(repeated, self.finished_as)[1], problem.mesh)
        return self._arriving(route, self.c.tensor, repeated)

    def _arriving(
        self, route: TensorRoute, tensor: torch.Tensor, repeated: Collection[Label]
    ) -> Callable[[], LocalBlock]:
        """A tensor where it is needed, on its way there where it has one."""
        spans, move = self.spans(route.target), partial(self.moved, route, tensor)
        token = self.lane.put(f"{route.name}: {route.said()}", -1, move) if route.moves else Token(move())
        return lambda: self.block(token.wait(), spans, route.term, repeated)

    def _repeated(self, tensor: Placed) -> frozenset[Label]:
        return self.problem.repeated(tensor.term, self.problem.shapes[tensor.name])

    def _own(self, tensor: Placed) -> LocalBlock:
        return self.block(self.local[tensor.name], self.spans(tensor.places), tensor.term, self._repeated(tensor))

    def _own_piece(self, tensor: Placed) -> LocalBlock:
        """This rank's part of an operand gathered along the loop's label, cut to the needed indices of other labels."""
        block, needed = self._own(tensor), self.spans(self.strategy.needed(tensor))
        runs = {label: needed[label] for label in tensor.term if label != self.label and label not in block.broadcast}
        return self.block(block.cut(runs)[0], {**self.spans(tensor.places), **runs}, tensor.term, block.broadcast)

    def _fetch(self, tensor: Placed, step: LoopStep, at: int, after: Sequence[Token], kept: list[Any]) -> Token:
        """Part of an operand, on the lane, once the part before the last is done with its memory."""
        route, way = self.strategy.routes[tensor.name], self.strategy.ways[tensor.name]
        work = self._range(tensor, route, step) if way == "range" else self._pieces(tensor, route, step)

        def fetch() -> LocalBlock:
            kept[at % 2] = None
            return work()

        return self.lane.put(f"{tensor.name}: {route.said()}, part {step.part}", at, fetch, after)

    def _range(self, tensor: Placed, route: TensorRoute, step: LoopStep) -> Callable[[], LocalBlock]:
        own, run = self._own(tensor), {self.label: step.spans[0]}
        part, here = route.without(self.label, step.spans[0].extent), own.cut(run)[0]
        spans = {**self.spans(route.target), **run}
        return lambda: self.block(self.moved(part, here), spans, tensor.term, own.broadcast)

    def _pieces(self, tensor: Placed, route: TensorRoute, step: LoopStep) -> Callable[[], LocalBlock]:
        label = self.label
        line = self.lines[route.moves[0].line]
        dim = tensor.term.index(label)
        rows = max(span.extent for span in step.spans)
        mine = step.spans[line.rank]
        own = self._own(tensor)
        here = own.cut({label: mine})[0] if mine.extent else own.tensor.narrow(dim, 0, 0)
        needed = self.spans(route.target)
        what = f"all-gather of {tensor.name} along '{label_text(label)}', part {step.part}"

        def work() -> LocalBlock:
            value = stacked(padded(here, rows, dim), line, what)
            # Of other labels each rank may need other indices: all travel, and each takes its own.
            for at, one in enumerate(tensor.term):
                if one != label and one not in own.broadcast:
                    value = value.narrow(1 + at, needed[one].start - own.starts[one], needed[one].extent)
            found = self.block(value, needed, tensor.term, own.broadcast)
            return replace(found, pieces=label, spans=step.spans)

        return work
