"""The timing protocol: sampling logic under a fake clock, the CPU path for real, the GPU path where there is one."""

import gc
from collections.abc import Callable

import pytest
import torch

from weft.errors import UnsupportedError
from weft.machine import timing
from weft.machine.timing import (
    BATCH_SECONDS,
    ENOUGH_SAMPLES,
    FEWEST_SAMPLES,
    MOST_CALLS,
    measure,
    passes_in_batch,
    sample,
)


class FakeClock:
    """Stands still but for what a fake call takes."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def call_taking(self, *seconds: float) -> Callable[..., None]:
        """A call that takes each of `seconds` in turn, over and over."""
        calls = 0

        def call(*arguments: object) -> None:
            nonlocal calls
            self.now += seconds[calls % len(seconds)]
            calls += 1

        return call


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> int:
    """A machine whose cache holds 4096 bytes."""
    monkeypatch.setattr(timing, "cache_bytes", lambda device: 4096)
    return 4096


def batches(clock: FakeClock, *seconds: float) -> Callable[[], float]:
    call = clock.call_taking(*seconds)

    def batch() -> float:
        start = clock()
        call()
        return clock() - start

    return batch


def test_equal_samples_converge_at_the_first_chance(clock: FakeClock) -> None:
    samples, ended = sample(batches(clock, 0.25), rrs=0.02, budget=1000.0, clock=clock)
    assert ended == "converged"
    assert samples == (0.25,) * ENOUGH_SAMPLES


def test_noise_ends_with_the_budget(clock: FakeClock) -> None:
    samples, ended = sample(batches(clock, 0.5, 1.0, 1.5), rrs=0.02, budget=39.0, clock=clock)
    assert ended == "budget"
    assert len(samples) == 39
    assert clock.now == 139.0


def test_noise_that_settles_converges_later(clock: FakeClock) -> None:
    samples, ended = sample(batches(clock, *[1.0, 3.0] * 5, *[2.0] * 100), rrs=0.02, budget=1000.0, clock=clock)
    assert ended == "converged"
    assert ENOUGH_SAMPLES < len(samples) <= 30


def test_a_bound_of_zero_asks_for_the_whole_budget(clock: FakeClock) -> None:
    samples, ended = sample(batches(clock, 1.0, 1.001, 0.999), rrs=0.0, budget=30.0, clock=clock)
    assert ended == "budget"
    assert len(samples) == 30


def test_a_call_longer_than_the_budget_is_still_sampled(clock: FakeClock) -> None:
    samples, ended = sample(batches(clock, 60.0), rrs=0.02, budget=1.0, clock=clock)
    assert ended == "budget"
    assert samples == (60.0,) * FEWEST_SAMPLES


def test_a_batch_is_as_long_as_wanted_and_goes_through_all_sets() -> None:
    assert passes_in_batch(0.001, sets=3, wanted=0.005) == 5
    assert passes_in_batch(0.0011, sets=3, wanted=0.005) == 5
    assert passes_in_batch(9.0, sets=3, wanted=0.005) == 1
    assert passes_in_batch(1e-9, sets=3, wanted=0.005) == MOST_CALLS // 3
    assert passes_in_batch(0.0, sets=2 * MOST_CALLS, wanted=0.005) == 1


def test_seconds_are_those_of_one_call(clock: FakeClock) -> None:
    result = measure(clock.call_taking(3e-4), [()], device="cpu", clock=clock)
    assert result.seconds == pytest.approx(3e-4)
    assert result.ended == "converged"
    assert result.calls == 7  # the fewest that take BATCH_SECONDS
    assert result.calls * 3e-4 >= BATCH_SECONDS["cpu"]
    assert (result.device, result.captured, result.clocks) == ("cpu", False, None)


def test_first_calls_are_not_timed(clock: FakeClock) -> None:
    slow_start = clock.call_taking(5.0, *[0.01] * 1000)
    assert max(measure(slow_start, [()], device="cpu", clock=clock).samples) == pytest.approx(0.01)


def test_cold_calls_take_the_sets_in_turn(clock: FakeClock, small_cache: int) -> None:
    used: list[int] = []
    advance = clock.call_taking(0.01)

    def call(x: torch.Tensor) -> None:
        used.append(x.data_ptr())
        advance()

    made: list[torch.Tensor] = []

    def make() -> tuple[torch.Tensor]:
        made.append(torch.empty(1024, dtype=torch.uint8))
        return (made[-1],)

    result = measure(call, make, device="cpu", mode="cold", clock=clock)
    assert result.sets == len(made) == 12  # three caches full
    assert result.bytes == 3 * small_cache
    assert result.calls % 12 == 0
    assert used == [x.data_ptr() for x in made] * (len(used) // 12)


def test_hot_calls_use_one_set(clock: FakeClock, small_cache: int) -> None:
    used: set[int] = set()
    advance = clock.call_taking(0.01)

    def call(x: torch.Tensor) -> None:
        used.add(x.data_ptr())
        advance()

    result = measure(call, [(torch.empty(8),), (torch.empty(8),)], device="cpu", mode="hot", clock=clock)
    assert (len(used), result.sets, result.mode) == (1, 1, "hot")


def test_quick_batches_are_a_third_as_long(clock: FakeClock) -> None:
    call = clock.call_taking(1e-5)
    usual = measure(call, [()], device="cpu", mode="hot", clock=clock)
    quick = measure(call, [()], device="cpu", mode="hot", clock=clock, quick=True, budget=0.0)
    assert usual.calls == pytest.approx(BATCH_SECONDS["cpu"] / 1e-5, abs=1)
    assert quick.calls == pytest.approx(usual.calls / 3, abs=1)
    assert len(quick.samples) == FEWEST_SAMPLES
    assert quick.seconds == pytest.approx(1e-5)


def test_a_glance_is_the_faster_of_two_calls(clock: FakeClock) -> None:
    assert timing.glance(clock.call_taking(3.0, 2.0), (), torch.device("cpu"), clock) == pytest.approx(2.0)


def test_threads_are_pinned_for_the_duration_and_put_back() -> None:
    before = torch.get_num_threads()
    seen: set[int] = set()
    result = measure(lambda: seen.add(torch.get_num_threads()), [()], device="cpu", threads=1, budget=0.01)
    assert seen == {1}
    assert result.threads == 1
    assert torch.get_num_threads() == before
    assert measure(lambda: None, [()], device="cpu", budget=0.01).threads == before


def test_a_failing_call_leaves_everything_as_it_was() -> None:
    before = torch.get_num_threads()

    def fail() -> None:
        raise KeyError("from the call")

    with pytest.raises(KeyError, match="from the call"):
        measure(fail, [()], device="cpu", threads=1)
    assert torch.get_num_threads() == before
    assert gc.isenabled()


def test_collector_rests_while_samples_are_taken() -> None:
    seen: set[bool] = set()
    measure(lambda: seen.add(gc.isenabled()), [()], device="cpu", budget=0.01)
    assert seen == {False}
    assert gc.isenabled()


def test_more_work_takes_more_time() -> None:
    x, y = torch.randn(64, 64), torch.randn(512, 512)
    small = measure(torch.mm, [(x, x)], device="cpu", mode="hot", budget=0.1, threads=1)
    large = measure(torch.mm, [(y, y)], device="cpu", mode="hot", budget=0.1, threads=1)
    assert large.seconds > 20 * small.seconds  # 512 times the work
    assert small.summary.count == len(small.samples)


def test_what_cannot_be_timed_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="meta"):
        measure(lambda: None, [()], device="meta")
    with pytest.raises(ValueError, match="lukewarm"):
        measure(lambda: None, [()], device="cpu", mode="lukewarm")  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.alone
class TestOnGpu:
    def test_a_capturable_call_is_replayed_from_a_graph(self) -> None:
        result = measure(
            lambda x, y: torch.add(x, 1.0, out=y),
            lambda: (torch.randn(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")),
            device="cuda",
        )
        assert result.captured
        assert not result.notes
        assert result.bytes >= 3 * torch.cuda.get_device_properties(0).L2_cache_size
        assert 1e-7 < result.seconds < 1e-3

    def test_a_call_that_synchronises_is_timed_eagerly_and_says_so(self) -> None:
        stream = torch.cuda.current_stream()
        result = measure(lambda x: x.sum().item(), [(torch.ones(8, device="cuda"),)], device="cuda", mode="hot")
        assert not result.captured
        assert "not captured" in result.notes[0]
        assert torch.cuda.current_stream() == stream
        assert measure(lambda x: x.add_(1), [(torch.ones(8, device="cuda"),)], device="cuda", mode="hot").captured
        torch.randn(4, device="cuda")  # random numbers go on after the capture that failed

    def test_cold_memory_is_slower_than_hot_cache(self) -> None:
        elements = torch.cuda.get_device_properties(0).L2_cache_size // 16  # a quarter of the L2 in fp32

        def make() -> tuple[torch.Tensor]:
            return (torch.randn(elements, device="cuda"),)

        cold = measure(torch.sum, make, device="cuda", mode="cold")
        hot = measure(torch.sum, make, device="cuda", mode="hot")
        assert cold.summary.low > hot.summary.high

    def test_launches_cost_more_outside_a_graph(self) -> None:
        x = torch.ones(1, device="cuda")
        graph = measure(lambda: x.add_(1), [()], device="cuda", mode="hot")
        eager = measure(lambda: x.add_(1), [()], device="cuda", mode="hot", capture=False)
        assert graph.captured
        assert not eager.captured
        assert eager.seconds > graph.seconds

    def test_nothing_is_timed_during_a_capture(self) -> None:
        x = torch.ones(8, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.add_(1)
            with pytest.raises(UnsupportedError, match="captured"):
                measure(lambda: x.add_(1), [()], device="cuda")
