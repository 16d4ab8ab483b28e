"""The GPU path step by step, on a stand-in for `torch.cuda` that keeps time and counts what it is asked to do."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from weft.errors import UnsupportedError
from weft.machine import timing
from weft.machine.timing import BATCH_SECONDS, measure


class FakeGpu:
    """A device whose calls take `seconds` each, and whose host adds `overhead` to every call outside a graph."""

    def __init__(self, seconds: float, overhead: float) -> None:
        self.seconds, self.overhead = seconds, overhead
        self.now = 0.0
        self.stream = "user's"
        self.recorded: list[int] | None = None  # calls of the graph being captured
        self.rests: list[float] = []
        self.synchronises = False  # whether the call does what no capture allows

    def call(self, *arguments: object) -> None:
        if self.recorded is None:
            self.now += self.seconds + self.overhead
        elif self.synchronises:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
        else:
            self.recorded[0] += 1

    def install(self, patch: pytest.MonkeyPatch) -> None:
        gpu = self

        class Graph:
            calls = 0

            def replay(self) -> None:
                gpu.now += self.calls * gpu.seconds

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = gpu.now

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: "Event") -> float:
                return 1e3 * (end.at - self.at)

        @contextmanager
        def graph(target: Graph, capture_error_mode: str):
            gpu.stream, gpu.recorded = "capturing", [0]
            try:
                yield
            finally:
                (target.calls,), gpu.recorded = gpu.recorded, None
            gpu.stream = "user's"  # as in torch, not reached when a capture fails

        fakes = {
            "device": lambda device: nullcontext(),
            "is_current_stream_capturing": lambda: self.recorded is not None,
            "current_stream": lambda: self.stream,
            "set_stream": lambda stream: setattr(self, "stream", stream),
            "current_device": lambda: 0,
            "synchronize": lambda: None,
            "Event": Event,
            "CUDAGraph": Graph,
            "graph": graph,
        }
        for name, fake in fakes.items():
            patch.setattr(torch.cuda, name, fake)
        patch.setattr(timing, "cache_bytes", lambda device: 1000)
        patch.setattr(timing, "memory_bytes", lambda device: 1 << 20)
        patch.setattr(timing, "read_clocks", lambda device: None)
        patch.setattr(timing, "_last_busy", {0: float("inf")})  # warm already
        patch.setattr(timing.time, "sleep", self.rests.append)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu(seconds=1e-5, overhead=9e-5)
    gpu.install(monkeypatch)
    return gpu


def make() -> tuple[torch.Tensor]:
    return (torch.empty(600, dtype=torch.uint8),)


def test_a_captured_call_takes_its_time_on_the_device(gpu: FakeGpu) -> None:
    result = measure(gpu.call, make, device="cuda")
    assert result.captured
    assert result.seconds == pytest.approx(gpu.seconds)
    assert result.sets == 5  # 3000 bytes are wanted, a set has 600
    assert result.calls == 5 * round(BATCH_SECONDS["cuda"] / (5 * 1e-4))
    assert (result.ended, result.notes, result.threads) == ("converged", (), None)


def test_a_call_that_synchronises_is_timed_with_the_host(gpu: FakeGpu) -> None:
    gpu.synchronises = True
    result = measure(gpu.call, make, device="cuda")
    assert not result.captured
    assert result.seconds == pytest.approx(gpu.seconds + gpu.overhead)
    assert result.notes == (
        "not captured in a CUDA graph, host time included: RuntimeError: "
        "operation not permitted when stream is capturing",
    )
    assert gpu.stream == "user's"


def test_capture_may_be_declined(gpu: FakeGpu) -> None:
    result = measure(gpu.call, make, device="cuda", mode="hot", capture=False)
    assert (result.captured, result.notes, result.sets) == (False, (), 1)
    assert result.seconds == pytest.approx(gpu.seconds + gpu.overhead)


def test_nothing_is_timed_during_a_capture(gpu: FakeGpu) -> None:
    gpu.recorded = [0]
    with pytest.raises(UnsupportedError, match="being captured"):
        measure(gpu.call, make, device="cuda")


def test_a_gpu_is_warmed_once_and_again_after_a_long_rest(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[float] = []
    clock = [100.0]

    def tick() -> float:
        clock[0] += 0.01
        return clock[0]

    monkeypatch.setattr(timing, "_last_busy", {})
    monkeypatch.setattr(timing.time, "perf_counter", tick)

    def work() -> None:
        runs.append(clock[0])

    timing._warm(work)
    assert runs[-1] - runs[0] >= 0.9 * timing.WARM_SECONDS
    warmed = len(runs)
    timing._warm(work)
    assert len(runs) == warmed
    clock[0] += timing.IDLE_SECONDS
    timing._warm(work)
    assert len(runs) > warmed


def test_a_gpu_rests_after_every_batch(gpu: FakeGpu) -> None:
    result = measure(gpu.call, make, device="cuda", quick=True)
    batch = result.calls * result.seconds
    assert gpu.rests == pytest.approx([timing.REST * batch] * len(result.samples))


def test_a_gpu_rests_while_it_is_warmed_and_after_its_clocks_were_read(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "WARM_SECONDS", 0.0)
    samples = len(measure(gpu.call, make, device="cuda").samples)
    assert len(gpu.rests) == samples + 1
    gpu.rests.clear()
    seconds = [0.0]
    monkeypatch.setattr(timing, "_last_busy", {})
    monkeypatch.setattr(timing, "WARM_SECONDS", 1.0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: seconds.__setitem__(0, seconds[0] + 0.1) or seconds[0])
    timing._warm(lambda: gpu.call())
    assert len(gpu.rests) >= 9


def test_the_budget_is_of_calls_and_rests_come_on_top(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[float] = []
    taken = timing.sample

    def sample(batch, *, rrs, budget):
        allowed.append(budget)
        return taken(batch, rrs=rrs, budget=budget)

    monkeypatch.setattr(timing, "sample", sample)
    measure(gpu.call, make, device="cuda", budget=0.1)
    assert allowed == [pytest.approx(0.1 * (1 + timing.REST))]
