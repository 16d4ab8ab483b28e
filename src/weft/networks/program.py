"""A network bound to one layout of its operands: every step planned, every intermediate in its place, ready to run.

    bound      values of nodes: operands of the call, intermediates in the arena
    once       steps that are the same in every slice
    each       steps of a slice, then the last one, which writes or adds to the slice's part of the result
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import Any, NamedTuple

import torch

from weft.base.kept import is_capturing
from weft.base.memory import new_tensor
from weft.networks.memory import indices, least_aligned, part
from weft.networks.operands import watch_of
from weft.networks.order import Orders
from weft.networks.plan import NetworkPlan
from weft.networks.rescale import by_left, by_right, check_floating, find_peaks, new_peaks
from weft.networks.steps import (
    ContractionCall,
    NetworkReplay,
    Numbers,
    StepOptions,
    StepTensors,
    as_launched,
    is_worth_while,
    prepared,
    promoting,
    tell_pace,
    wanted,
)
from weft.networks.tree import TreeStep
from weft.planner.target import target_of
from weft.plans.side_by_side import FEWEST, compile_side_by_side

KEPT = {"cuda": 1 << 26, "cpu": 1 << 24}  # bytes of an arena that is kept between the calls of `einsum`
_PACED = (1, 4, 12, 40, 200)  # runs step by step at which steps hear how long the whole takes


class SumPlace(NamedTuple):
    """Where the last step of a slice writes."""

    into: torch.Tensor
    added: torch.Tensor | None  # what is added to its result: the sum so far
    last: bool  # the step's function is applied: the sum is complete


class NetworkProgram:
    """A plan bound to operands of these layouts. Calls of one program take turns."""

    def __init__(
        self, plan: NetworkPlan, tensors: Sequence[torch.Tensor], *, keep: bool = True, graphs: bool | str = False
    ) -> None:
        """`keep`: the arena is allocated now, whatever its size, and kept. `graphs`: calls are replayed as CUDA graphs,
        "auto" where launches may take longer than their kernels."""
        self.plan = plan
        self.lock = RLock()
        self.device = tensors[0].device
        tree = plan.tree
        self._sliced = frozenset(tree.sliced)
        self._odd = [(at, each) for at, each in enumerate(tree.graph.operands) if not each.plain]
        self._cut = [leaf for leaf, term in enumerate(tree.graph.terms) if self._sliced & frozenset(term)]
        self.slices = indices(tree)
        self._keep = keep or plan.arena.size <= KEPT.get(self.device.type, 0)
        views = self.views(tensors)
        self._conjugated = frozenset(leaf for leaf, tensor in enumerate(views) if tensor.is_conj())
        self._strips_exponents, self._watch = plan.settings.strip_exponent, watch_of(plan)
        self._first_peak = tree.root + 1  # the place of the first peak among values
        if self._strips_exponents:
            check_floating("the result", plan.dtype)
        base = self._allocated()
        values = self.values_in(base)
        for leaf, tensor in enumerate(views):
            values[leaf] = least_aligned(tensor, tree.graph.terms[leaf], self._sliced)
        inner = [step for step in tree.ordered if step.node != tree.root]
        if len(inner) >= FEWEST:
            name, target = self._described(values), target_of("triton", self.device)
            known = [step for step in inner if step.node not in plan.functions]  # a function may be anything
            compile_side_by_side(name, target, lambda: [wanted(*self._request(step, values)) for step in known])
        calls = {step.node: prepared(*self._request(step, values)) for step in inner}
        self.calls: dict[int, ContractionCall] = calls
        self.once = [calls[step.node] for step in inner if step.node in tree.once]
        self.each = [calls[step.node] for step in inner if step.node not in tree.once]
        self._root = next(step for step in tree.steps if step.node == tree.root)
        self._last: dict[Any, ContractionCall] = {}
        self.base: Any = None  # the arena that is kept
        self._kept: list[Any] | None = None
        self._captured = False  # whether the call goes into a graph of the caller's
        self._seen = bool(self._odd or self._conjugated)  # operands that steps see otherwise than they come
        self._shape, self._dtype = tree.graph.shape, plan.dtype
        self._plain: list[ContractionCall] = []
        self._runs = 0  # step by step
        self._stream: Any = None
        self.replay: NetworkReplay | None = None
        replays = graphs is True or (graphs and is_worth_while(self.each, plan.gathered))
        if replays and self.device.type == "cuda":
            self.replay = NetworkReplay(
                self.each, self._run, tree.leaves, apart=not plan.arena.shared, most=plan.gathered
            )

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor | None:
        """The result of a plain call, in memory of its own; None where none is left, which is reported in full."""
        try:
            out = torch.empty(self._shape, dtype=self._dtype, device=self.device)
        except (RuntimeError, MemoryError):
            return None
        with self.lock:
            if self._kept is None or self._seen or self.replay is not None or self.device.type != "cpu":
                self.run(tensors, out)
                return out
            values = list(self._kept)
            values[: len(tensors)] = tensors
            values[-1] = out
            for call in self._plain or self._as_plain(values):
                call.launch(values[call.left], values[call.right], None, values[call.node], call.one, call.zero)
        return out

    def _as_plain(self, values: Sequence[Any]) -> list[ContractionCall]:
        """The steps of a call without slices, whose result has memory of its own."""
        self._plain = [*self.each, self.last_call(values, values[-1], None, True)]
        return self._plain

    def run(self, tensors: Sequence[torch.Tensor], out: torch.Tensor, changed: Collection[int] | None = None) -> None:
        """A call without slices, into `out`. `changed`: only steps above these operands, the others' results are
        there."""
        with self.lock:
            values = self.values(tensors)
            self._steps(values, {}, changed)
            self._finish(values, SumPlace(out, None, True), {}, {})

    def bound(self, tensors: Sequence[torch.Tensor], out: torch.Tensor) -> Callable[[], None]:
        """The run on these operands, of a program without slices: runs take turns, in an arena of their own.

        Where calls are replayed as CUDA graphs, so is it: the second run captures one on these very operands.
        """
        if self.replay is not None:
            return partial(self.run, tensors, out)
        values, lock = self.values(tensors, self.values_in(self._allocated())), RLock()
        values[self._root.node] = out
        steps = [call.bound(values) for call in (*self.each, self.last_call(values, out, None, True))]

        def run() -> None:
            with lock:
                for step in steps:
                    step()

        return run

    def begin(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Values for slices: the operands', and those that are the same in every slice."""
        values = self.values(tensors)
        if self._strips_exponents:
            find_peaks(values, [leaf for leaf in range(len(tensors)) if leaf not in self._cut], self._first_peak)
        self._calls(self.once, values, {})
        return values

    def slice(self, number: int, values: list[Any], place: SumPlace, whole: Mapping[int, torch.Tensor]) -> None:
        """One slice, into its place. `whole` are the operands of which a slice sees a part."""
        where = self._cut_to(number, values, whole)
        self._steps(values, where)
        self._finish(values, place, whole, where)

    def _cut_to(self, number: int, values: list[Any], whole: Mapping[int, torch.Tensor]) -> Mapping[int, int]:
        """Let values be the parts of operands that a slice sees; returns its indices."""
        terms, where = self.plan.tree.graph.terms, self.slices[number]
        for leaf, tensor in whole.items():
            values[leaf] = part(tensor, terms[leaf], where)
        if self._strips_exponents:
            find_peaks(values, list(whole), self._first_peak)
        return where

    def one_by_one(
        self, tensors: Sequence[torch.Tensor], place: SumPlace
    ) -> Iterator[tuple[ContractionCall, Callable[[], None]]]:
        """Each step of a call in turn, of its last slice: what is planned, and what runs it, as often as is wished.

        It has to be run before the next is requested. Kernels are not exchanged meanwhile.
        """
        with self.lock:
            values = self.values(tensors)
            for call in self.once:
                yield call, partial(call.settled.run, values)
            number, whole = len(self.slices) - 1, self.cut(values)
            if place.added is not None:
                place.added.zero_()
            self._cut_to(number, values, whole)
            for each in self.each:
                yield each, partial(each.settled.run, values)
            last = self.last_call(values, place.into, place.added, place.last, whole)
            yield last, partial(_run_last, last.settled, values, place)

    def prepared_calls(self) -> Iterator[tuple[ContractionCall, int]]:
        """Every step that was prepared, with the number of times that a call of the network runs it."""
        yield from ((call, 1) for call in self.once)
        yield from ((call, len(self.slices)) for call in (*self.each, *self._last.values()))

    def cut(self, values: Sequence[Any]) -> dict[int, torch.Tensor]:
        """Operands of which a slice sees a part."""
        return {leaf: values[leaf] for leaf in self._cut}

    def views(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Operands as the steps see them: diagonals and what broadcasts as views."""
        found = list(tensors)
        for at, operand in self._odd:
            found[at] = operand.view(found[at])
        return found

    def values(self, tensors: Sequence[torch.Tensor], places: list[Any] | None = None) -> list[Any]:
        """Values of all nodes for one call: its operands, and the intermediates' places; with `strip_exponent` places
        for their peaks stand behind them."""
        values = self._places() if places is None else places
        values[: len(tensors)] = self.views(tensors)
        for leaf in self._conjugated:
            values[leaf] = as_launched(values[leaf])
        return values

    def values_in(self, base: torch.Tensor) -> list[Any]:
        """Nodes with the intermediates' places in an arena whose bytes are `base`."""
        plan = self.plan
        values: list[Any] = [None] * (plan.tree.root + 1)
        for node in plan.arena.places:
            values[node] = plan.arena.tensor(base, node, plan.shape(node), plan.dtypes[node])
        if not self._strips_exponents:
            return values
        return [*values, *new_peaks([plan.dtypes[node] for node in range(len(values))], self.device)]

    def last_call(
        self, values: Sequence[Any], place: torch.Tensor, c: torch.Tensor | None, finish: bool,
        whole: Mapping[int, torch.Tensor] | None = None,
    ) -> ContractionCall:  # fmt: skip
        """The root's step into a place of this layout, with what is added to it; `finish` applies its function.

        `whole` has operands of which a slice sees a part.
        """
        root = self._root
        finish = finish and root.node in self.plan.functions
        added = c is not None and (c.dtype, c.stride(), c is place)
        key = (place.shape, place.stride(), place.dtype, place.data_ptr() & 15, added, finish)
        known = self._last.get(key)
        if known is None:
            models = list(values)
            for leaf in (root.left, root.right):
                if whole and leaf in whole:
                    models[leaf] = least_aligned(whole[leaf], self.plan.tree.graph.terms[leaf], self._sliced)
                if leaf in self._conjugated:
                    models[leaf] = models[leaf].conj()
            known = prepared(*self._request(root, models, place, c, finish))
            self._last[key] = self.calls[root.node] = known
        return known

    def _described(self, values: Sequence[Any]) -> str:
        """All that the kernels of the steps follow from, as text."""
        plan, tree = self.plan, self.plan.tree
        leaves = [(plan.orders[at], values[at].dtype, values[at].stride()) for at in range(tree.leaves)]
        steps = [(step, plan.orders[step.node], plan.dtypes[step.node]) for step in tree.steps]
        return repr((leaves, steps, tree.graph.extents, tree.sliced, plan.asked, self._strips_exponents))

    def _request(
        self, step: TreeStep, values: Sequence[Any], place: torch.Tensor | None = None, c: torch.Tensor | None = None,
        finish: bool = True,
    ) -> tuple[TreeStep, Orders, StepTensors, StepOptions, Numbers]:  # fmt: skip
        """All that the plan of a step is made of."""
        plan, asked, operands = self.plan, self.plan.asked, {}
        if self._strips_exponents:
            asked = asked.having(a_fn=by_left, b_fn=by_right)
            places = {"left": self._first_peak + step.left, "right": self._first_peak + step.right}
            operands = {name: (at, values[at]) for name, at in places.items()}
        elif finish and step.node in plan.functions:
            asked = asked.having(epilogue=plan.functions[step.node])
        d = place if place is not None else values[step.node]
        return step, plan.orders, (values[step.left], values[step.right], c, d), asked, operands

    def _steps(self, values: list[Any], where: Mapping[int, int], changed: Collection[int] | None = None) -> None:
        """The steps of a slice but for the last one."""
        if self.replay is not None and self._watch is None and changed is None and not self._captured:
            self.replay.run(values)
        else:
            self._runs += 1
            if self._runs in _PACED:
                tell_pace(promoting(self.each))
            self._calls(self._above(self.each, changed), values, where)

    def _finish(
        self, values: list[Any], place: SumPlace, whole: Mapping[int, torch.Tensor], where: Mapping[int, int]
    ) -> None:
        """The last step of a slice: the first one of a sum writes, the others add."""
        _run_last(self.last_call(values, place.into, place.added, place.last, whole), values, place)
        values[self._root.node] = place.into
        if self._strips_exponents:
            find_peaks(values, (self._root.node,), self._first_peak)
        if self._watch is not None:
            self._watch(self._root, values, where)

    def _calls(self, calls: Iterable[ContractionCall], values: list[Any], where: Mapping[int, int]) -> None:
        for call in calls:
            self._run(call, values)
            if self._watch is not None:
                self._watch(TreeStep(call.node, call.left, call.right), values, where)

    def _run(self, call: ContractionCall, values: list[Any]) -> None:
        """A step, and the peak of its result where exponents are stripped."""
        call.run(values)
        if self._strips_exponents:
            find_peaks(values, (call.node,), self._first_peak)

    def _above(self, calls: Sequence[ContractionCall], changed: Collection[int] | None) -> Sequence[ContractionCall]:
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

    def _hold(self, base: torch.Tensor) -> list[Any]:
        """Keep an arena for the calls to come."""
        self.base, self._kept = base, self.values_in(base)
        return self._kept

    def _allocated(self) -> torch.Tensor:
        return new_tensor((self.plan.arena.size,), torch.uint8, self.device)

    def _places(self) -> list[Any]:
        """Intermediates for one call: the kept ones, or new ones where none are kept, or within a graph's capture.

        A graph that the caller captures runs whenever it is replayed: its memory is its own.
        """
        self._captured = is_capturing(self.device)
        if not self._keep or self._captured:
            return self.values_in(self._allocated())
        kept = self._kept or self._hold(self._allocated())
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device)
            if self._stream is not None and stream != self._stream:
                stream.wait_stream(self._stream)
                self.base.record_stream(stream)
            self._stream = stream
        return list(kept)


def _run_last(call: ContractionCall, values: Sequence[Any], place: SumPlace) -> None:
    """The last step, into its place: what is added there is C."""
    call.into(values, place.added, place.into, call.zero if place.added is None else call.one)
