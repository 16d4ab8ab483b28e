"""The timing protocol: the only one in this repository, for benchmarks, tuner, tests and demo alike.

A sample is the time of one *batch* of calls divided by their number. Every input set is run once before anything is
timed, so that compilation and first touches are over. Batches repeat until the relative robust spread of the samples
is under a bound, or a time budget ends.

GPU: after a long rest the device is warmed by the calls themselves; the sets rotate so that together they exceed the
L2 several times (mode "cold") or one set is used throughout (mode "hot"); the calls of a batch are captured in one CUDA
graph where they allow it; events stand around each replay. After each batch the device rests twice as long as it was at
work: calls that draw more power than it may would slow it down within a tenth of a second, and with them what is timed
next (4096^3 matrix products on an H200). Under a load that does not end all of them are slower.
CPU: wall clock with a pinned thread count; sets rotate alike.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from weft.base.forks import free_in_child
from weft.base.kept import refuse_capture
from weft.errors import UnsupportedError
from weft.machine.rotation import Inputs, InputSet, Mode, cache_bytes, memory_bytes, rotation
from weft.machine.stamp import Clocks, read_clocks
from weft.machine.statistics import Summary, relative_robust_spread, summarise

RRS_BOUND = 0.02
BUDGET = 1.0  # seconds of calls that are sampled
ENOUGH_SAMPLES = 10  # fewer are never called converged
FEWEST_SAMPLES = 3  # taken even when one exceeds the budget
MOST_CALLS = 4096  # in one batch: a graph of more nodes takes longer to make than it saves
BATCH_SECONDS = {"cuda": 5e-3, "cpu": 2e-3}  # large beside the resolution of events and of the clock
WARM_SECONDS = 1.0  # a cold GPU reads up to 30 % low for about this long
IDLE_SECONDS = 3.0  # after which a GPU counts as cold again
ISSUES = 50  # calls that the host's time is taken of
REST = 2.0  # times that a GPU was at work: then its power stays under the cap on average

Call = Callable[..., Any]
Clock = Callable[[], float]
Batch = Callable[[], float]  # runs one batch and returns seconds per call

_one_at_a_time = free_in_child(threading.RLock())  # two timings on one machine would measure each other
_last_busy: dict[int, float] = {}  # GPU index -> when it was last known to be warm


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples of one call and how they were taken."""

    samples: tuple[float, ...]  # seconds per call, one for each batch
    ended: Literal["converged", "budget"]  # the spread came under the bound, or the time was up
    mode: Mode
    device: str
    captured: bool = False  # whether the batch was replayed from a CUDA graph
    calls: int = 1  # in one batch
    sets: int = 1  # of inputs, used in turn
    bytes: int = 0  # that all sets touch together
    threads: int | None = None  # of torch on the CPU; None on a GPU
    clocks: Clocks | None = None  # read while the GPU was at work; None where nothing tells
    notes: tuple[str, ...] = ()  # departures from the protocol, in words

    @property
    def seconds(self) -> float:
        """The median."""
        return self.summary.median

    @property
    def summary(self) -> Summary:
        return summarise(self.samples)


def measure(
    call: Call,
    inputs: Inputs,
    *,
    device: torch.device | str,
    mode: Mode = "cold",
    rrs: float = RRS_BOUND,
    budget: float = BUDGET,
    capture: bool = True,
    threads: int | None = None,
    quick: bool = False,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Time ``call(*arguments)`` on `device`.

    `inputs` is a function that makes one set of arguments, or a sequence of sets; put an output into the set
    (``out=`` bound by a lambda) unless allocating it belongs to what is timed. `mode` "cold" rotates over sets that
    exceed the last cache several times, "hot" reuses one. Sampling ends when the relative robust spread falls under
    `rrs`, or after `budget` seconds of calls; rests, making inputs, warming up and capturing come on top.
    `capture=False` keeps the calls out of a CUDA graph, which then includes what the host spends on each launch.
    `threads` pins torch's CPU threads for the duration (default: as many as are set). `quick` is for telling candidates
    apart: batches of a third of the usual length, and the clocks are not read. `clock` is the CPU's clock.

    What `call` raises leaves unchanged. `UnsupportedError` on devices other than "cpu" and "cuda", and while another
    graph is being captured.
    """
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"nothing here times calls on device '{device}'")
    if mode not in ("cold", "hot"):
        raise ValueError(f"mode {mode!r} is neither 'cold' nor 'hot'")
    with _one_at_a_time:
        if device.type == "cpu":
            return _measure_cpu(call, inputs, mode, rrs, budget, threads, quick, clock)
        return _measure_gpu(call, inputs, device, mode, rrs, budget, capture, quick)


def glance(call: Call, arguments: InputSet, device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Seconds of one call, the faster of two, with whatever the cache holds: only to tell what is far too slow."""
    with _one_at_a_time:
        if device.type == "cpu":
            return min(_on_clock(lambda: call(*arguments), clock) for _ in range(2))
        with torch.cuda.device(device):
            return min(_between_events(lambda: call(*arguments)) for _ in range(2))


def host_time(call: Call, arguments: InputSet, device: torch.device) -> float:
    """Seconds that the host spends to issue a call on a GPU, which is idle when it comes: the median of `ISSUES`."""
    with _one_at_a_time, torch.cuda.device(device), _no_garbage_collection():
        taken = []
        for _ in range(ISSUES):
            torch.cuda.synchronize()
            taken.append(_on_clock(lambda: call(*arguments), time.perf_counter))
        torch.cuda.synchronize()
    return summarise(taken).median


def sample(
    batch: Batch, *, rrs: float, budget: float, clock: Clock = time.perf_counter
) -> tuple[tuple[float, ...], Literal["converged", "budget"]]:
    """Run `batch` until its results' relative robust spread is at most `rrs` or `budget` seconds are over."""
    start = clock()
    samples: list[float] = []
    while True:
        samples.append(batch())
        if len(samples) >= ENOUGH_SAMPLES and relative_robust_spread(samples) <= rrs:
            return tuple(samples), "converged"
        if len(samples) >= FEWEST_SAMPLES and clock() - start >= budget:
            return tuple(samples), "budget"


def measure_together(
    call: Callable[[], Any], largest: Callable[[float], float], *, device: torch.device | str,
    rrs: float = RRS_BOUND, budget: float = BUDGET, threads: int | None = None,
) -> Timing:  # fmt: skip
    """Time a call that several processes make together, each of which calls this.

    `largest` gives every process the largest of the numbers that they bring, and none before all have come. A sample is
    one call, from the moment on that all are there until the last is done: the time of the slowest. It begins with the
    device idle and ends with it idle; what the host does is in it. All processes take the same samples, so they stop
    together. `rrs`, `budget` and `threads` as for `measure`; operands stay where they are, so the mode is "hot".
    """
    device = torch.device(device)
    spent = [0.0]

    def once() -> float:
        _settled(device)
        largest(0.0)
        begun = time.perf_counter()
        call()
        _settled(device)
        spent[0] += (seconds := largest(time.perf_counter() - begun))
        return seconds

    with _one_at_a_time, _pinned_threads(threads) as pinned, _no_garbage_collection():
        for _ in range(2):  # compilation, first touches, kernels made to measure
            once()
        spent[0] = 0.0
        samples, ended = sample(once, rrs=rrs, budget=budget, clock=lambda: spent[0])
    return Timing(samples, ended, "hot", str(device), threads=pinned if device.type == "cpu" else None)


def _settled(device: torch.device) -> None:
    """Wait until the device has nothing to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def passes_in_batch(pass_seconds: float, sets: int, wanted: float) -> int:
    """How often a batch goes through all sets: long enough to time well, of at most `MOST_CALLS` calls."""
    fitting = max(1, MOST_CALLS // sets)
    return min(fitting, max(1, math.ceil(wanted / pass_seconds))) if pass_seconds > 0 else fitting


def _measure_cpu(
    call: Call, inputs: Inputs, mode: Mode, rrs: float, budget: float, threads: int | None, quick: bool, clock: Clock
) -> Timing:
    device = torch.device("cpu")
    chosen = rotation(inputs, mode, cache=cache_bytes(device), memory=memory_bytes(device))
    with _pinned_threads(threads) as pinned, _no_garbage_collection():
        _run(call, chosen.sets, 1)
        seconds = _on_clock(lambda: _run(call, chosen.sets, 1), clock)
        passes = passes_in_batch(seconds, len(chosen.sets), _batch_seconds("cpu", quick))
        calls = passes * len(chosen.sets)
        batch = partial(_run, call, chosen.sets, passes)
        samples, ended = sample(lambda: _on_clock(batch, clock) / calls, rrs=rrs, budget=budget, clock=clock)
    return Timing(
        samples, ended, mode, str(device), calls=calls, sets=len(chosen.sets), bytes=chosen.bytes, threads=pinned,
        notes=chosen.notes,
    )  # fmt: skip


def _measure_gpu(
    call: Call, inputs: Inputs, device: torch.device, mode: Mode, rrs: float, budget: float, capture: bool, quick: bool
) -> Timing:
    with torch.cuda.device(device):
        refuse_capture(device, "a call cannot be timed")
        chosen = rotation(inputs, mode, cache=cache_bytes(device), memory=memory_bytes(device))
        _run(call, chosen.sets, 1)
        pass_seconds = _between_events(lambda: _run(call, chosen.sets, 1))
        passes = passes_in_batch(pass_seconds, len(chosen.sets), _batch_seconds("cuda", quick))
        calls = passes * len(chosen.sets)
        notes = list(chosen.notes)
        graph = _captured(lambda: _run(call, chosen.sets, passes), notes) if capture else None
        work = graph.replay if graph is not None else lambda: _run(call, chosen.sets, passes)
        work()
        _warm(work)
        with _no_garbage_collection():
            samples, ended = sample(lambda: _rested(work) / calls, rrs=rrs, budget=budget * (1 + REST))
        clocks = None if quick else _clocks_at(work, device)
        _last_busy[torch.cuda.current_device()] = time.perf_counter()
    return Timing(
        samples, ended, mode, str(device), graph is not None, calls, len(chosen.sets), chosen.bytes, clocks=clocks,
        notes=tuple(notes),
    )  # fmt: skip


def _batch_seconds(kind: str, quick: bool) -> float:
    return BATCH_SECONDS[kind] / (3 if quick else 1)


def _on_clock(work: Callable[[], Any], clock: Clock) -> float:
    start = clock()
    work()
    return clock() - start


def _run(call: Call, sets: Sequence[InputSet], passes: int) -> None:
    for _ in range(passes):
        for arguments in sets:
            call(*arguments)


def _between_events(work: Callable[[], None]) -> float:
    """Seconds of the current stream between the beginning and the end of `work`."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def _captured(work: Callable[[], None], notes: list[str]) -> torch.cuda.CUDAGraph | None:
    """`work` as a CUDA graph, or None with a note when it cannot be captured (it synchronises, say)."""
    try:
        return captured(work)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        notes.append(f"not captured in a CUDA graph, host time included: {type(error).__name__}: {reason}")
        return None


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """`work` as a CUDA graph; raises what keeps it from being one, and all is then as before."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
    except BaseException:
        torch.cuda.set_stream(stream)  # torch leaves the capturing stream current when a capture fails
        torch.cuda.synchronize()
        _release_generator()
        raise
    return graph


def _release_generator() -> None:
    """Let torch's random numbers of the GPU go on.

    A capture that fails leaves its generator as if within one (torch 2.11: `CUDAGraph::capture_end` raises before it
    tells the generator), which then refuses every call. A clone of its state is outside.
    """
    generators = torch.cuda.default_generators  # empty where no GPU was touched
    for generator in generators[torch.cuda.current_device() :][:1]:
        generator.graphsafe_set_state(generator.clone_state())


def _clocks_at(work: Callable[[], None], device: torch.device) -> Clocks | None:
    """The clocks while the GPU is at `work`, which is not timed; then it rests."""
    start = time.perf_counter()
    for _ in range(4):
        work()
    clocks = read_clocks(device)
    torch.cuda.synchronize()
    time.sleep(REST * (time.perf_counter() - start))
    return clocks


def _rested(work: Callable[[], None]) -> float:
    """Seconds of the current stream that `work` takes; then the GPU rests."""
    seconds = _between_events(work)
    time.sleep(REST * seconds)
    return seconds


def _warm(work: Callable[[], None]) -> None:
    """Give the GPU this work for `WARM_SECONDS`, unless it had some a moment ago."""
    index = torch.cuda.current_device()
    if time.perf_counter() - _last_busy.get(index, -math.inf) < IDLE_SECONDS:
        return
    end = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < end:
        _rested(work)
    _last_busy[index] = time.perf_counter()


@contextmanager
def _pinned_threads(threads: int | None) -> Iterator[int]:
    """Set torch's number of CPU threads and put the old one back."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if threads is None else threads)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
