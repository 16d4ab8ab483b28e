"""A network bound to operands that lie in one way: every step planned, every intermediate in its place, ready to run.

    bound      values of nodes: operands of the call, intermediates in the arena
    once       steps that are the same in every slice
    each       steps of a slice, then the last one, which writes or adds to the slice's part of the result
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch

from weft.networks.arena import Arena, ordered
from weft.networks.order import Orders
from weft.networks.replay import Replay, is_worth_while
from weft.networks.slicing import indices, least_aligned, part
from weft.networks.steps import Asked, Call, as_launched, prepared
from weft.networks.tree import Step, Tree
from weft.networks.unrolled import Unrolled, unrolled_batch

KEPT = {"cuda": 1 << 26, "cpu": 1 << 24}  # bytes of an arena that is kept between the calls of `einsum`
_SUMS = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # types in which slices are added up
Watch = Callable[[Step, Sequence[Any], Mapping[int, int]], None]


@dataclass(frozen=True)
class Scheme:
    """All that was decided about a network before tensors came."""

    tree: Tree
    orders: Orders
    dtypes: Mapping[int, torch.dtype]  # by node
    arena: Arena
    once: frozenset[int]  # nodes that are the same in every slice
    asked: Asked
    functions: Mapping[int, Callable[..., Any]] = field(default_factory=dict)  # by node

    def shape(self, node: int) -> tuple[int, ...]:
        return tuple(self.tree.graph.extents[label] for label in self.orders[node])


@dataclass
class Paused:
    """A call between two slices."""

    program: Program
    tensors: Sequence[torch.Tensor]
    out: torch.Tensor
    sums: torch.Tensor | None
    done: int = 0  # slices


class Program:
    """A scheme on operands that lie as these do. Calls of one program take turns."""

    def __init__(
        self, scheme: Scheme, tensors: Sequence[torch.Tensor], *, keep: bool = True, graphs: bool | str = False
    ) -> None:
        """`keep`: the arena is allocated now, whatever its size, and kept. `graphs`: calls are replayed as CUDA graphs,
        "auto" where launches would take longer than their kernels."""
        self.scheme = scheme
        self.lock = RLock()
        self.device = tensors[0].device
        tree = scheme.tree
        self._sliced = frozenset(tree.sliced)
        self._odd = [(at, each) for at, each in enumerate(tree.graph.operands) if not each.plain]
        self._cut = [leaf for leaf, term in enumerate(tree.graph.terms) if self._sliced & frozenset(term)]
        self.slices = indices(tree)
        self._keep = keep or scheme.arena.size <= KEPT.get(self.device.type, 0)
        views = self.views(tensors)
        self._conjugated = frozenset(leaf for leaf, tensor in enumerate(views) if tensor.is_conj())
        base = self._allocated()
        values = self.values_in(base)
        for leaf, tensor in enumerate(views):
            values[leaf] = least_aligned(tensor, tree.graph.terms[leaf], self._sliced)
        calls = {step.node: self._prepared(step, values) for step in tree.steps if step.node != tree.root}
        self.calls: dict[int, Call | Unrolled] = calls
        order = [step for step in ordered(tree, scheme.once) if step.node != tree.root]
        self.once = [calls[step.node] for step in order if self._sliced and step.node in scheme.once]
        self.each = [calls[step.node] for step in order if not (self._sliced and step.node in scheme.once)]
        self._root = next(step for step in tree.steps if step.node == tree.root)
        self._last: dict[Any, Call] = {}
        self.base = base if self._keep else None
        self._kept = self.values_in(base) if self._keep else None
        self._stream: Any = None
        self.replay: Replay | None = None
        if graphs and self.device.type == "cuda" and (graphs is True or is_worth_while(self.each)):
            self.replay = Replay(self.each, tree.leaves, not scheme.arena.shared)

    def run(
        self, tensors: Sequence[torch.Tensor], out: torch.Tensor, watch: Watch | None = None,
        changed: Collection[int] | None = None,
    ) -> None:  # fmt: skip
        """All slices, into `out`. `changed`: only steps above these operands, the others' results are there."""
        with self.lock:
            values = self.values(tensors)
            self._calls(self._above(self.once, changed), values, watch, {})
            self.run_slices(values, out, self.sums(out), 0, watch, None, changed)

    def begun(self, tensors: Sequence[torch.Tensor], out: torch.Tensor) -> Paused:
        """A call none of whose slices is done."""
        return Paused(self, tensors, out, self.sums(out))

    def go_on(self, paused: Paused, watch: Watch | None, told: Callable[[int], None]) -> None:
        """All slices that are not done."""
        with self.lock, _interrupted_between() as look:

            def report(done: int) -> None:
                told(done)
                look()

            values = self.values(paused.tensors)
            self._calls(self.once, values, watch, {})
            self.run_slices(values, paused.out, paused.sums, paused.done, watch, report)

    def run_slices(
        self, values: list[Any], out: torch.Tensor, sums: torch.Tensor | None, begun: int, watch: Watch | None,
        told: Callable[[int], None] | None, changed: Collection[int] | None = None,
    ) -> None:  # fmt: skip
        """Slices from number `begun` on. `told` hears how many are done after each."""
        tree = self.scheme.tree
        whole = {leaf: values[leaf] for leaf in self._cut}
        output, summed = tree.graph.output, self.summed
        calls = self._above(self.each, changed)
        for at, where in enumerate(self.slices[begun:], begun):
            for leaf, tensor in whole.items():
                values[leaf] = part(tensor, tree.graph.terms[leaf], where)
            if self.replay is not None and watch is None and changed is None and not _is_capturing():
                self.replay.run(values)
            else:
                self._calls(calls, values, watch, where)
            first, last = at % summed == 0, at % summed == summed - 1
            place = part(out, output, where) if self._sliced else out
            self._finish(values, place, sums, (first, last), whole)
            if watch is not None:
                values[tree.root] = place
                watch(self._root, values, where)
            if told is not None:
                told(at + 1)

    @property
    def summed(self) -> int:
        """How many slices in a row add to one part of the result."""
        extents, output = self.scheme.tree.graph.extents, self.scheme.tree.graph.output
        count = 1
        for label in self._sliced:
            count *= 1 if label in output else extents[label]
        return count

    def sums(self, out: torch.Tensor) -> torch.Tensor | None:
        """Where slices are added up if that is not the result itself, whose type would lose digits."""
        if self.summed == 1 or out.dtype not in _SUMS:
            return None
        return torch.empty(self.scheme.shape(self._root.node), dtype=_SUMS[out.dtype], device=self.device)

    def views(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Operands as the steps see them: diagonals and what broadcasts as views."""
        found = list(tensors)
        for at, operand in self._odd:
            found[at] = operand.view(found[at])
        return found

    def values(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Values of all nodes for one call: its operands, and the intermediates' places."""
        values = self._places()
        values[: len(tensors)] = self.views(tensors)
        for leaf in self._conjugated:
            values[leaf] = as_launched(values[leaf])
        return values

    def values_in(self, base: torch.Tensor) -> list[Any]:
        """Nodes with the intermediates' places in an arena whose bytes are `base`."""
        scheme, tree = self.scheme, self.scheme.tree
        values: list[Any] = [None] * (tree.root + 1)
        for step in tree.steps:
            if step.node != tree.root:
                values[step.node] = scheme.arena.tensor(
                    base, step.node, scheme.shape(step.node), scheme.dtypes[step.node]
                )
        return values

    def last_call(
        self, values: Sequence[Any], place: torch.Tensor, c: torch.Tensor | None, finish: bool,
        whole: Mapping[int, torch.Tensor] | None = None,
    ) -> Call:  # fmt: skip
        """The root's step into a place that lies so, with what is added to it; `finish` applies its function.

        `whole` has operands of which a slice sees a part.
        """
        root = self._root
        finish = finish and root.node in self.scheme.functions
        added = c is not None and (c.dtype, c.stride(), c is place)
        key = (place.stride(), place.dtype, place.data_ptr() & 15, added, finish)
        known = self._last.get(key)
        if known is None:
            models = list(values)
            for leaf in (root.left, root.right):
                if whole and leaf in whole:
                    models[leaf] = least_aligned(whole[leaf], self.scheme.tree.graph.terms[leaf], self._sliced)
                if leaf in self._conjugated:
                    models[leaf] = models[leaf].conj()
            known = self._last[key] = self.calls[root.node] = self._prepared(root, models, place, c, finish)
        return known

    def _prepared(
        self, step: Step, values: Sequence[Any], place: torch.Tensor | None = None, c: torch.Tensor | None = None,
        finish: bool = True,
    ) -> Any:  # fmt: skip
        scheme = self.scheme
        nodes = (step.left, step.right, step.node)
        terms = (scheme.orders[step.left], scheme.orders[step.right], scheme.orders[step.node])
        asked = scheme.asked
        if finish and step.node in scheme.functions:
            asked = asked.having(epilogue=scheme.functions[step.node])
        d = place if place is not None else values[step.node]
        if place is None and (batch := unrolled_batch(scheme.tree, step, terms, d.element_size())):
            return Unrolled.of(nodes, terms, (values[step.left], values[step.right], d), asked, batch)
        return prepared(nodes, terms, (values[step.left], values[step.right], c, d), asked)

    def _finish(
        self, values: list[Any], place: torch.Tensor, sums: torch.Tensor | None, ends: tuple[bool, bool],
        whole: Mapping[int, torch.Tensor],
    ) -> None:  # fmt: skip
        """The last step of a slice: the first one of a sum writes, the others add."""
        first, last = ends
        into = place if last or sums is None else sums
        c = None if first else (sums if sums is not None else place)
        call = self.last_call(values, into, c, last, whole)
        beta = call.zero if c is None else call.one
        a, b = values[call.left], values[call.right]
        if call.aux:
            call.launch(a, b, c, into, call.one, beta, call.aux)
        else:
            call.launch(a, b, c, into, call.one, beta)

    def _calls(
        self, calls: Iterable[Call | Unrolled], values: list[Any], watch: Watch | None, where: Mapping[int, int]
    ) -> None:
        for call in calls:
            call.run(values)
            if watch is not None:
                watch(Step(call.node, call.left, call.right), values, where)

    def _above(self, calls: Sequence[Call | Unrolled], changed: Collection[int] | None) -> Sequence[Call | Unrolled]:
        """Steps that some changed operand is under."""
        if changed is None:
            return calls
        touched = set(changed)
        found = []
        for call in calls:
            if call.left in touched or call.right in touched:
                touched.add(call.node)
                found.append(call)
        return found

    def _allocated(self) -> torch.Tensor:
        return torch.empty(self.scheme.arena.size, dtype=torch.uint8, device=self.device)

    def _places(self) -> list[Any]:
        """Intermediates for one call: the kept ones, or new ones where none are kept, or within a graph's capture.

        A graph that the caller captures runs whenever it is replayed: its memory is its own.
        """
        cuda = self.device.type == "cuda"
        if cuda and _is_capturing():
            return self.values_in(self._allocated())
        if self._kept is None:
            return self.values_in(self._allocated())
        if cuda:
            stream = torch.cuda.current_stream(self.device)
            if self._stream is not None and stream != self._stream:
                stream.wait_stream(self._stream)
                assert self.base is not None
                self.base.record_stream(stream)
            self._stream = stream
        return list(self._kept)


def _is_capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


@contextmanager
def _interrupted_between() -> Iterator[Callable[[], None]]:
    """Ctrl-C is put off until the function that this yields is called: never amid a slice, part of which may be added.

    Only Python's main thread hears of Ctrl-C; elsewhere nothing is put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    asked: list[int] = []

    def look() -> None:
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        yield look
    finally:
        signal.signal(signal.SIGINT, before)
