"""A run checks before it times, counts the fastest way, keeps what was measured, and fails where weft is wrong."""

import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.sides import CEILINGS, CPU, QUICK, Side
from weft.errors import UnsupportedError
from weft.selftest.case import PermuteCase
from weft_bench import runner as module
from weft_bench import timed_sets
from weft_bench.cases import Case, from_letters
from weft_bench.checking import CALLS
from weft_bench.entry import Entry
from weft_bench.peers.registry import Call, Prepared, Tensors, Way
from weft_bench.problems import ContractionProblem, PermutationProblem, TransposeProblem, copied_set
from weft_bench.records import Run, csv_text, load, save
from weft_bench.report.page import case_table
from weft_bench.runner import DeviceLost, Runner
from weft_bench.suites import entries
from weft_bench.timed_sets import Sampling

PRODUCT = from_letters("product", "mk,kn->mn", m=8, k=4, n=6)


def right(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b, out=d)


def wrong(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
    return right(a, b, c, d).mul_(1.001)


def lazy(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
    """Writes all but the last row."""
    d[:-1] = torch.mm(a, b)[:-1]
    return d


def broken(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("an error of the kernel\nand its stack")


def go(*sides: Any, cases: tuple[Case, ...] = (PRODUCT,), **options: Any) -> Run:
    run = Run("test", "a CPU", [side.name for side in sides], {})
    given: dict[str, Any] = {"ceilings": CEILINGS, "sampling": QUICK} | options
    Runner(run, sides, CPU, **given).go([Entry(case, "group", case.name) for case in cases])
    return run


def test_a_case_is_described_checked_and_timed() -> None:
    run = go(Side("weft", right), Side("torch", right))
    (case,) = run.cases
    assert run.ended == "finished"
    assert case.modes == {"m": 8, "n": 6, "k": 4, "batch": 1}
    assert case.work == {"flops": 2 * 8 * 6 * 4, "function_flops": 0, "bytes": 4 * (32 + 24 + 48)}
    assert case.floor["seconds"] == pytest.approx(416e-9 + 1e-6)
    assert case.floor["binds"] == "launch"
    for result in case.results.values():
        assert len(result.samples) >= 3
        assert result.error_over_bound is not None
        assert result.error_over_bound <= 1
        assert result.timing["mode"] == "hot"
        assert result.timing["threads"] == torch.get_num_threads()
    assert list(run.failures()) == []


class Meter:
    """A sensor whose counter tells 100 W by the real clock, in steps of a millisecond."""

    def joules(self) -> float:
        return 100 * round(time.perf_counter(), 3)

    def watts(self) -> float:
        return 100.0


def test_energy_is_recorded_where_there_is_a_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each contender: joules a call are watts by seconds; they have columns, and are read again."""
    monkeypatch.setattr(module, "ENERGY_SECONDS", 0.05)
    monkeypatch.setattr("weft_bench.machine.energy.idle_watts", lambda sensor: 20.0)
    run = go(Side("weft", right), Side("torch", right), sensor=Meter())
    for energy in (result.about["energy"] for result in run.cases[0].results.values()):
        assert energy["source"] == "energy counter"
        assert energy["watts"] == pytest.approx(100, rel=0.1)
        seconds = energy["joules"] / energy["watts"]
        assert 0 < seconds < 1e-3
        assert energy["edp"] == pytest.approx(energy["joules"] * seconds)
        assert energy["flops_per_joule"] == pytest.approx(2 * 8 * 6 * 4 / energy["joules"])
    table = case_table(run)
    joules = dict(zip(table.heads, table.rows[0], strict=True))["weft J"]
    assert joules.key == run.cases[0].results["weft"].about["energy"]["joules"]
    assert csv_text(run).splitlines()[0].endswith(",joules")
    assert "energy" not in go(Side("weft", right)).cases[0].results["weft"].about


def test_a_sensor_that_fails_leaves_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(sensor: Any) -> float:
        raise UnsupportedError("NVML does not tell this GPU's power")

    monkeypatch.setattr("weft_bench.machine.energy.idle_watts", silent)
    result = go(Side("weft", right), sensor=Meter()).cases[0].results["weft"]
    assert result.samples
    assert result.about["energy missing"] == "NVML does not tell this GPU's power"


@pytest.mark.parametrize(("way", "said"), [(wrong, "elements are off"), (lazy, "6 of 48 elements are off"),
                                           (broken, "RuntimeError: an error of the kernel")])  # fmt: skip
def test_a_wrong_result_is_never_timed_and_fails_the_run(way: Call, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Any] = []
    measure = module.measure
    monkeypatch.setattr(
        module, "measure", lambda call, *rest, **more: timed.append(call) or measure(call, *rest, **more)
    )
    run = go(Side("weft", way), Side("torch", right))
    assert timed == [right]
    assert [said_of_it for _, said_of_it in run.failures()] == [run.cases[0].results["weft"].wrong]
    assert said in run.cases[0].results["weft"].wrong
    assert run.cases[0].results["weft"].samples == ()


def test_what_is_checked_is_not_what_is_timed() -> None:
    """The first calls of each are the check: other values, other places for the result, poisoned."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watched(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
        if len(seen) <= CALLS:
            assert d.isnan().all()
        seen.append((a.clone(), d))
        return right(a, b, c, d)

    go(Side("weft", watched))
    checked, timed = seen[:CALLS], seen[CALLS:]
    assert not any(
        torch.equal(one, a) or place.data_ptr() == d.data_ptr() for one, place in checked for a, d in timed
    )


def test_a_contender_that_leaves_its_result_from_some_call_on_is_wrong() -> None:
    calls = count(1)

    def leaving(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
        return right(a, b, c, d) if next(calls) < CALLS else d

    run = go(Side("weft", leaving))
    assert "elements not written" in run.cases[0].results["weft"].wrong


def test_less_than_the_device_allows_is_no_time() -> None:
    slow = replace(CEILINGS, read=1e3, write=1e3, copy=1e3)  # bytes a second
    for mode, kept in (("cold", False), ("hot", True)):
        run = go(Side("weft", right), ceilings=slow, sampling=replace(QUICK, mode=mode))
        result = run.cases[0].results["weft"]
        assert bool(result.samples) == kept
        assert ("least time that the device allows: something was left out" in result.wrong) != kept


def test_no_time_is_held_against_ceilings_of_a_busy_device() -> None:
    busy = replace(CEILINGS, read=1e3, write=1e3, copy=1e3, spread=0.58)
    assert go(Side("weft", right), ceilings=busy).cases[0].results["weft"].samples


def test_a_byte_outside_the_result_is_wrong() -> None:
    def too_many(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
        right(a, b, c, d)
        d.as_strided((1,), (1,), d.storage_offset() + d.numel()).fill_(0)
        return d

    run = go(Side("weft", too_many), Side("torch", right))
    assert "4 bytes outside the tensor were written" in run.cases[0].results["weft"].wrong
    assert run.cases[0].results["torch"].samples, "what one side wrote outside is held against another"


def test_a_wrong_result_says_how_far_off_it_is() -> None:
    run = go(Side("weft", wrong), Side("torch", lazy))
    off, missing = run.cases[0].results.values()
    assert off.error_over_bound is not None
    assert off.error_over_bound > 1
    assert f"error {off.error_over_bound:.3g} times its bound" in off.wrong
    assert missing.error_over_bound is None
    assert "not written, or not finite" in missing.wrong


def test_ways_less_exact_than_a_yardstick_are_timed_and_do_not_count(tmp_path: Path) -> None:
    def nearly(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
        return right(a, b, c, d).mul_(1 + 2.0**-21)

    run = go(Side("weft", right), Side("peer", Way("ieee", right), Way("short", nearly), yardstick="ieee"))
    save(run, tmp_path)
    found = load(tmp_path).cases[0].results["peer"]
    assert found.way == "ieee"
    assert found.errors["ieee"] < found.errors["short"] < 1
    assert "above that of IEEE sums" in str(found.ways["short"])
    assert found.beyond["short"] > 0


def test_a_way_may_be_timed_by_another_call() -> None:
    timed: list[None] = []

    def allocating(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
        timed.append(None)
        return torch.mm(a, b)

    checked = Way("", right, timed=allocating)
    assert go(Side("weft", checked)).cases[0].results["weft"].samples
    assert timed


def test_a_wrong_peer_is_reported_and_not_counted() -> None:
    run = go(Side("weft", right), Side("torch", wrong))
    assert "elements are off" in run.cases[0].results["torch"].wrong
    assert list(run.failures()) == []
    assert run.pairs("torch") == []


def test_what_a_contender_cannot_do_is_kept_in_its_words() -> None:
    run = go(Side("weft", right), Side("torch", answer="no such thing"), Side("odd", answer=OSError("no library")))
    assert run.cases[0].results["torch"].cannot == "no such thing"
    assert run.cases[0].results["odd"].wrong == "OSError: no library"


def test_the_fastest_right_way_counts() -> None:
    def slow(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            right(a, b, c, d)
        return d

    ways = (Way("slow", slow), Way("wrong", wrong), Way("fast", right, {"workspace bytes": 3}), Way("broken", broken))
    result = go(Side("weft", right), Side("cutensor", *ways)).cases[0].results["cutensor"]
    assert result.way == "fast"
    assert result.about == {"workspace bytes": 3}
    assert result.ways["other"] == "not supported"
    assert "elements are off" in str(result.ways["wrong"])
    assert "an error of the kernel" in str(result.ways["broken"])
    assert float(result.ways["slow"]) > 5 * float(result.ways["fast"])
    assert result.summary.median == pytest.approx(float(result.ways["fast"]), rel=1e-3)


def test_settings_hold_while_a_contender_is_at_work_even_if_it_raises() -> None:
    side = Side("weft", answer=ValueError("no"))
    go(side)
    assert side.settled == ["on", "off"]


def test_an_interruption_keeps_what_was_measured(tmp_path: Path) -> None:
    cases = tuple(from_letters(f"case-{at}", "mk,kn->mn", m=8, k=4, n=6) for at in range(3))

    class Impatient(Side):
        def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
            if case.name == "case-1":
                raise KeyboardInterrupt
            return super().prepare(case, tensors)

    begun: list[str] = []
    go(
        Side("weft", right),
        Impatient("torch", right),
        cases=cases,
        begun=begun.append,
        kept=lambda run: save(run, tmp_path),
    )
    kept = load(tmp_path)
    assert kept.ended == "interrupted"
    assert begun == ["group case-0", "group case-1"]
    assert kept.cases[0].results.keys() == {"weft", "torch"}
    assert kept.cases[1].results.keys() == {"weft"}
    assert kept.cases[1].results["weft"].samples


def test_seconds_are_those_of_all_pieces() -> None:
    first, second = (from_letters(name, "mk,kn->mn", m=8, k=4, n=6) for name in ("first", "second"))
    run = go(Side("weft", right), cases=(first,))
    assert run.seconds is not None
    assert 0 < run.seconds < 60
    for before in (1000.0, None):  # what an old record took nobody knows
        run.seconds = before
        entries_of_both = [Entry(case, "group", case.name) for case in (first, second)]
        Runner(run, [Side("weft", right)], CPU, sampling=QUICK).go(entries_of_both)
        assert run.seconds is None if before is None else 1000 < run.seconds < 1060
        del run.cases[1:]


def test_records_are_written_as_they_come() -> None:
    cases = tuple(from_letters(f"case-{at}", "mk,kn->mn", m=8, k=4, n=6) for at in range(3))
    seen: list[tuple[int, str]] = []
    go(Side("weft", right), cases=cases, kept=lambda run: seen.append((len(run.cases), run.ended)))
    assert seen == [(1, "running"), (2, "running"), (3, "running"), (3, "finished")]


def test_a_lost_device_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: Runner, error: Exception) -> None:
        raise DeviceLost("illegal address")

    monkeypatch.setattr(Runner, "_survives", lost)
    run = go(Side("weft", broken), Side("torch", right), cases=(PRODUCT, PRODUCT))
    assert run.ended == "the device was lost: illegal address"
    assert len(run.cases) == 1


def test_a_case_that_does_not_fit_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Runner, "_too_large", lambda self, problem: "needs 60 GiB" if problem.case.name == "big" else ""
    )
    big = from_letters("big", "mk,kn->mn", m=8, k=4, n=6)
    run = go(Side("weft", right), cases=(big, PRODUCT))
    assert run.skipped == {"group big": "needs 60 GiB"}
    assert [case.name for case in run.cases] == ["product"]

    def full(self: ContractionProblem, tensors: Tensors) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ContractionProblem, "check", full)
    assert "out of memory" in go(Side("weft", right)).skipped["group product"]


def test_without_ceilings_there_is_no_floor() -> None:
    assert go(Side("weft", right), ceilings=None).cases[0].floor == {}


def test_a_type_without_a_known_rate_has_a_floor_of_finite_numbers(tmp_path: Path) -> None:
    case = from_letters("z", "mk,kn->mn", m=8, k=4, n=6, dtypes=(torch.float64,) * 3)
    run = go(Side("weft", right), cases=(case,))
    assert "ridge" not in run.cases[0].floor
    save(run, tmp_path)
    assert load(tmp_path) == run


def test_cold_operands_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_sets, "cache_bytes", lambda device: 4 * 416)  # four times what the case touches
    cold = Sampling(mode="cold", budget=0.0, rrs=1e9)
    result = go(Side("weft", right), sampling=cold).cases[0].results["weft"]
    assert result.timing["sets"] == 12  # three caches full
    assert result.timing["mode"] == "cold"


def test_sets_may_be_limited_which_the_timing_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_sets, "cache_bytes", lambda device: 4 * 416)
    few = Sampling(mode="cold", budget=0.0, rrs=1e9, most_sets=3)
    timing = go(Side("weft", right), sampling=few).cases[0].results["weft"].timing
    assert timing["sets"] == 3
    assert "3 input sets touch 1248 bytes" in timing["notes"][0]


def test_a_slow_call_has_no_more_sets_than_its_budget_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return right(a, b, c, d)

    monkeypatch.setattr(timed_sets, "cache_bytes", lambda device: 100 * 416)
    cold = Sampling(mode="cold", budget=0.1, rrs=1e9, within_budget=True)
    timing = go(Side("weft", slow), sampling=cold).cases[0].results["weft"].timing
    assert 2 <= timing["sets"] <= 5
    assert "would be needed for a cold cache" in timing["notes"][0]


def test_what_turns_out_unsupported_in_the_call_is_no_wrong_result() -> None:
    def unsupported(*tensors: Any) -> torch.Tensor:
        raise UnsupportedError("not for such tensors")

    run = go(Side("weft", unsupported), Side("torch", Way("slow", unsupported), Way("fast", right)))
    assert run.cases[0].results["weft"].cannot == "not for such tensors"
    assert list(run.failures()) == []
    assert run.cases[0].results["torch"].way == "fast"
    assert run.cases[0].results["torch"].ways["slow"] == "not for such tensors"


def test_memory_that_a_case_needs() -> None:
    assert ContractionProblem(PRODUCT).memory == 24 * (32 + 24 + 48)
    moved = PermuteCase("moved", "ab->ba", (5, 7), torch.float16)
    assert PermutationProblem(moved).memory == TransposeProblem(moved).memory == 6 * 2 * 70


def test_later_sets_are_copies_at_other_addresses() -> None:
    case = from_letters("mixed", "mk,kn->mn", m=4, k=5, n=6, dtypes=(torch.complex64,) * 3, conjugate=(True, False),
                        layouts=("padded", "strided", "contiguous", "permuted"))  # fmt: skip
    first = ContractionProblem(case).inputs(CPU)
    other = copied_set(first)
    assert other.c is None
    for x, y in ((first.a, other.a), (first.b, other.b)):
        assert torch.equal(x, y)
        assert (x.stride(), x.storage_offset(), x.is_conj()) == (y.stride(), y.storage_offset(), y.is_conj())
        assert x.data_ptr() != y.data_ptr()
    assert other.d.stride() == first.d.stride()
    other.d.fill_(1)
    assert first.d.isnan().all()
    (plain,) = copied_set((first.a,))
    assert torch.equal(plain, first.a)
    assert plain.data_ptr() != first.a.data_ptr()


@pytest.mark.gpu
def test_on_a_gpu_weft_and_torch_are_checked_and_timed() -> None:
    from weft_bench.peers.registry import contender

    sides = [contender("weft"), contender("torch"), contender("cutensor", quick=True)]
    run = Run("tccg", "a GPU", [side.name for side in sides], {})
    Runner(run, sides, torch.device("cuda"), sampling=Sampling(budget=0.1)).go(entries("tccg", only=["1", "13"]))
    assert run.ended == "finished"
    assert list(run.failures()) == []
    assert len(run.pairs("torch")) == 4
    assert all(mine.timing["captured"] for _, _, mine in run.pairs("torch"))
