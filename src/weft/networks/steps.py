"""One step of a network: a contraction planned for the layouts of its tensors; and steps as one CUDA graph.

A step of a graph costs what its kernel takes, not what its launch costs the host.

    pointers that come again   the graph was captured on these very operands: it is replayed as it is
    other pointers             operands are gathered into places of the graph's own by one call, and that is replayed;
                               where memory is short for copies, the steps are launched one by one

Steps that need nothing of one another are captured on streams of their own, so that the graph runs them side by side;
that takes an arena in which nothing shares a place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from weft.api.lookup import find_plan
from weft.base.log import log
from weft.engine.ways import Arguments
from weft.machine.timing import captured
from weft.networks.memory import replayed
from weft.networks.tree import Model, Tree, TreeStep
from weft.planner.options import Options
from weft.plans.checks import checked_scalar
from weft.plans.contraction import Plan
from weft.plans.intermediates import step_options
from weft.plans.known_call import BoundCall
from weft.plans.promoting import PromotingLaunch
from weft.plans.select import ServiceRequest
from weft.spec.memory import reach

Terms = tuple[Sequence[int], Sequence[int], Sequence[int]]
StepTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]  # A, B, C and D
Numbers = Mapping[str, tuple[int, torch.Tensor]]  # operands of a step's functions, with their places among the values
NONE: Numbers = MappingProxyType({})


@dataclass(frozen=True)
class StepOptions:
    """The options of every step of a network."""

    options: Options = field(default_factory=Options)
    halves: bool = False  # all operands of the network are of float16

    def having(self, **functions: Callable[..., Any] | None) -> StepOptions:
        return replace(self, options=self.options.having(**functions))

    def of(self, a: torch.dtype, b: torch.dtype) -> Options:
        """The options of a step whose operands have these types."""
        return step_options(self.options, a, b, self.halves)


class ContractionCall(NamedTuple):
    """A step that is ready to run: `launch(a, b, c, d, alpha, beta)` on the values of nodes."""

    launch: Callable[..., None]
    left: int
    right: int
    node: int
    one: Any  # alpha, in the accumulator's kind of number
    zero: Any
    aux: tuple[int, ...]  # of operands of functions: their places among the values
    variant: Any  # of the plan: its choice and tier
    plan: Plan

    @property
    def settled(self) -> ContractionCall:
        """The call with the kernels that serve now, which are not exchanged for others."""
        return self._replace(launch=self.launch.now) if isinstance(self.launch, PromotingLaunch) else self

    def run(self, values: Sequence[Any]) -> None:
        """The step on the values of its nodes."""
        if self.aux:
            self.into(values, None, values[self.node], self.zero)
        else:
            self.launch(values[self.left], values[self.right], None, values[self.node], self.one, self.zero)

    def into(self, values: Sequence[Any], c: Any, d: Any, beta: Any) -> None:
        """The step into a place, with `beta` times C."""
        aux = (tuple([values[place] for place in self.aux]),) if self.aux else ()
        self.launch(values[self.left], values[self.right], c, d, self.one, beta, *aux)

    def bound(self, values: Sequence[Any]) -> BoundCall:
        """The step bound to the values of its nodes."""
        place = values[self.node]
        arguments = (values[self.left], values[self.right], None, place, self.one, self.zero)
        return BoundCall(self.plan.request.text, self.launch, arguments, place)


def prepared(
    step: TreeStep, orders: Mapping[int, Sequence[int]], tensors: StepTensors, asked: StepOptions,
    operands: Numbers = NONE,
) -> ContractionCall:  # fmt: skip
    """A step planned for the layouts of its tensors; `orders` are of the labels of nodes. Equal steps share a plan."""
    plan, beside = _planned(step, orders, tensors, asked, operands)
    variant = plan.launch(Arguments(*tensors, operands=beside))
    accumulate = plan.contraction.arithmetic.accumulate
    one, zero = checked_scalar("alpha", 1, accumulate), checked_scalar("beta", 0, accumulate)
    aux = tuple([operands[each.name][0] for each in variant.description.aux])
    launch = variant.launch if tensors[3].numel() else _nothing
    return ContractionCall(launch, step.left, step.right, step.node, one, zero, aux, variant, plan)


def wanted(
    step: TreeStep, orders: Mapping[int, Sequence[int]], tensors: StepTensors, asked: StepOptions,
    operands: Numbers = NONE,
) -> ServiceRequest | None:  # fmt: skip
    """The request that `prepared` would build a plan from; None where that plan is built already."""
    plan, beside = _planned(step, orders, tensors, asked, operands)
    return plan.wanted(Arguments(*tensors, operands=beside))


def _planned(
    step: TreeStep, orders: Mapping[int, Sequence[int]], tensors: StepTensors, asked: StepOptions, operands: Numbers
) -> tuple[Plan, Mapping[str, torch.Tensor]]:
    """The plan of a step, and the operands of its functions."""
    terms, (a, b, _, d) = (orders[step.left], orders[step.right], orders[step.node]), tensors
    named = {name: ("", tensor) for name, (_, tensor) in operands.items()}
    options = replace(asked.of(a.dtype, b.dtype), out_dtype=d.dtype, operands=named)
    return find_plan(renamed(terms), a, b, options), options.tensors


def renamed(terms: Terms) -> Terms:
    """Labels in the order in which they first stand: equal steps of different labels are one contraction."""
    numbers = {label: at for at, label in enumerate(dict.fromkeys(chain(*terms)))}
    first, second, third = (tuple(numbers[label] for label in term) for term in terms)
    return first, second, third


def as_launched(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as launches see it: its memory as stored. The plan knows whether it is conjugated."""
    return tensor.conj() if tensor.is_conj() else tensor


def _nothing(*_: Any) -> None:
    """The launch of an empty result: it does nothing."""


LAUNCH = 8e-6  # seconds that the host spends on one launch of weft's own: longer kernels hide it
SLOW = 4  # times as long that it takes by a library's functions, and where the host is slow or has other work
COPIED = 6e-13  # seconds for each byte that is read and written (H200)
FEWEST = 3  # steps for which a graph is worth while
STREAMS = 8
GRAPHS = 4  # of a program, captured on operands
_DOUBT = 2  # times that the prediction for a path may be over those of its kernels
_SELDOM = 1.5  # times of the runs so far after which better kernels are looked for again
_BRANCHES = 1.5  # steps a level from which streams are worth while

Calls = Sequence[ContractionCall]
Run = Callable[[ContractionCall, list[Any]], None]


def is_worth_while(calls: Calls, gathered: int) -> bool:
    """Whether launching may take longer than the kernels, as predicted, and copies of so many bytes of operands."""
    if len(calls) < FEWEST:
        return False
    kernels = sum(call.variant.choice.best.seconds for call in calls if call.variant.choice is not None)
    return kernels + COPIED * gathered < SLOW * LAUNCH * len(calls)


def may_replay(tree: Tree, price: Model, graphs: bool | str) -> bool:
    """Whether steps may be replayed, before there are calls; in doubt it is yes. `graphs`: as `cuda_graph` of
    `weft.network`."""
    if graphs != "auto":
        return bool(graphs)
    steps = replayed(tree)
    seconds = sum(price.seconds(tree, step) for step in steps)
    return len(steps) >= FEWEST and seconds < _DOUBT * SLOW * LAUNCH * len(steps)


def promoting(calls: Calls) -> list[PromotingLaunch]:
    """The launches of steps that may change to other kernels."""
    return [call.launch for call in calls if isinstance(call.launch, PromotingLaunch)]


def tell_pace(launches: Sequence[PromotingLaunch]) -> None:
    """Tell steps how long all of them take: so much time passes from one call of each to the next."""
    whole = sum(launch.seconds for launch in launches)
    for launch in launches:
        launch.beside(whole)


class NetworkReplay:
    """Graphs of the same steps, on operands of the caller's or gathered ones."""

    def __init__(self, calls: Calls, run: Run, leaves: int, *, apart: bool, most: float = math.inf) -> None:
        """`run` runs one of the steps. `apart`: no intermediate shares a place with another, so steps may run side by
        side. `most`: bytes that gathered operands may take; where they take more the steps are launched one by one."""
        self._calls, self._run, self._most = calls, run, most
        self._taken = sorted({node for call in calls for node in (call.left, call.right) if node < leaves})
        self._branches = apart and len(calls) >= _BRANCHES * _depth(calls)
        self._promoting = promoting(calls)
        self._graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}
        self._gathering: tuple[torch.cuda.CUDAGraph, list[torch.Tensor]] | None = None
        self._seen: tuple[int, ...] | None = None
        self._streams: list[torch.cuda.Stream] = []
        self._runs = self._looked = self._next_look = 0

    def run(self, values: list[Any]) -> None:
        """The steps on the operands among `values`."""
        self._runs += 1
        if self._promoting and self._runs >= self._next_look:
            tell_pace(self._promoting)
            self._look()
            if self._runs > 1 and any(launch.wants_timing for launch in self._promoting):
                self._launched(values)
                return
        pointers = tuple([operand.data_ptr() for operand in self._operands(values)])
        known = self._graphs.get(pointers)
        if known is not None:
            known.replay()
        elif self._seen is None:  # what kernels set up at their first launch is not for a graph
            self._launched(values)
        elif self._seen == pointers and len(self._graphs) < GRAPHS:
            graph = self._graphs[pointers] = self._captured(values)
            graph.replay()
        elif self._gathering is not None or sum(map(reach, self._operands(values))) <= self._most:
            self._gathered(values)
        else:
            self._launched(values)
        self._seen = pointers

    def _look(self) -> None:
        """Let better kernels take over that are due: those of all steps at once, as each exchange costs a capture."""
        calls, self._looked = self._runs - self._looked, self._runs
        self._next_look = math.ceil(_SELDOM * self._runs)
        if self._seen is not None and sum([launch.replayed(calls) for launch in self._promoting]):
            self.forget()

    def forget(self) -> None:
        """Capture anew at the next calls: other kernels serve."""
        self._graphs.clear()
        self._gathering, self._seen = None, None

    def _operands(self, values: Sequence[Any]) -> list[torch.Tensor]:
        """Operands that the steps take."""
        return [values[leaf] for leaf in self._taken]

    def _gathered(self, values: list[Any]) -> None:
        operands = self._operands(values)
        if self._gathering is None:
            places = [
                torch.empty_strided(operand.shape, operand.stride(), dtype=operand.dtype, device=operand.device)
                for operand in operands
            ]
            placed = list(values)
            for leaf, place in zip(self._taken, places, strict=True):
                placed[leaf] = place
            self._gathering = self._captured(placed), places
        graph, places = self._gathering
        torch._foreach_copy_(places, operands)
        graph.replay()

    def _captured(self, values: list[Any]) -> torch.cuda.CUDAGraph:
        """A graph of the steps on these values; on one stream where several cannot be captured."""
        if self._branches:
            if not self._streams:  # made before the capture, which may not wait for them
                self._streams = [torch.cuda.Stream() for _ in range(STREAMS - 1)]
            try:
                return captured(lambda: self._side_by_side(values))
            except RuntimeError as error:
                log.info("a network's steps are captured on one stream: %s", str(error).partition("\n")[0])
                self._branches = False
        return captured(lambda: self._launched(values))

    def _launched(self, values: list[Any]) -> None:
        for call in self._calls:
            self._run(call, values)

    def _side_by_side(self, values: list[Any]) -> None:
        """Each step on the stream of one that it needs, behind the other; those that need none on any."""
        main = torch.cuda.current_stream()
        streams = [main, *self._streams]
        begun = main.record_event()
        for stream in streams[1:]:
            stream.wait_event(begun)
        of_node: dict[int, torch.cuda.Stream] = {}
        done: dict[int, torch.cuda.Event] = {}
        turn = 0
        for call in self._calls:
            needed = [node for node in (call.left, call.right) if node in of_node]
            if needed:
                stream = of_node[needed[-1]]
            else:
                stream, turn = streams[turn % STREAMS], turn + 1
            for node in needed:
                if of_node[node] is not stream:
                    stream.wait_event(done[node])
            with torch.cuda.stream(stream):
                self._run(call, values)
            of_node[call.node], done[call.node] = stream, stream.record_event()
        for stream in streams[1:]:
            main.wait_stream(stream)


def _depth(calls: Calls) -> int:
    """How many steps wait for one another at most."""
    depth: dict[int, int] = {}
    for call in calls:
        depth[call.node] = 1 + max(depth.get(call.left, 0), depth.get(call.right, 0))
    return max(depth.values(), default=1)
