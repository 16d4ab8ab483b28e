"""The steps of a program as one CUDA graph: a step costs what its kernel takes, not what its launch costs the host.

    pointers that come again   the graph was captured on these very operands: it is replayed as it is
    other pointers             operands are gathered into places of the graph's own by one call, and that is replayed;
                               where memory is short for copies, the steps are launched one by one

Steps that need nothing of one another are captured on streams of their own, so that the graph runs them side by side;
that takes an arena in which nothing shares a place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.base.log import log
from weft.networks.arena import replayed
from weft.networks.cost import Model
from weft.networks.steps import ContractionCall
from weft.networks.tree import Tree
from weft.plans.promoting import PromotingLaunch

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


class NetworkReplay:
    """Graphs of the same steps, on operands of the caller's or gathered ones."""

    def __init__(self, calls: Calls, run: Run, leaves: int, *, apart: bool, most: float = math.inf) -> None:
        """`run` runs one of the steps. `apart`: no intermediate shares a place with another, so steps may run side by
        side. `most`: bytes that gathered operands may take; where they take more the steps are launched one by one."""
        self._calls, self._run, self._most = calls, run, most
        self._taken = sorted({node for call in calls for node in (call.left, call.right) if node < leaves})
        self._branches = apart and len(calls) >= _BRANCHES * _depth(calls)
        self._promoting = [call.launch for call in calls if isinstance(call.launch, PromotingLaunch)]
        self._graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}
        self._gathering: tuple[torch.cuda.CUDAGraph, list[torch.Tensor]] | None = None
        self._seen: tuple[int, ...] | None = None
        self._streams: list[torch.cuda.Stream] = []
        self._runs = self._looked = self._next_look = 0

    def run(self, values: list[Any]) -> None:
        """The steps on the operands among `values`."""
        self._runs += 1
        if self._promoting and self._runs >= self._next_look:
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
        elif self._gathering is not None or sum(map(_bytes, self._operands(values))) <= self._most:
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
                return _graph_of(lambda: self._side_by_side(values))
            except RuntimeError as error:
                log.info("a network's steps are captured on one stream: %s", str(error).partition("\n")[0])
                self._branches = False
                torch.cuda.synchronize()
        return _graph_of(lambda: self._launched(values))

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


def _graph_of(work: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
    except BaseException:
        torch.cuda.set_stream(stream)  # torch leaves the capturing stream current when a capture fails
        raise
    return graph


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a tensor to the end of its last one."""
    if not tensor.numel():
        return 0
    span = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (span + 1) * tensor.element_size()


def _depth(calls: Calls) -> int:
    """How many steps wait for one another at most."""
    depth: dict[int, int] = {}
    for call in calls:
        depth[call.node] = 1 + max(depth.get(call.left, 0), depth.get(call.right, 0))
    return max(depth.values(), default=1)
