"""What profilers print is read: Nsight Compute's tables, those of three benchmark pairs, traces of torch's."""

from __future__ import annotations

import json
import pickle
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.errors import UnsupportedError
from weft.machine.datasheets import LIMITS
from weft_bench.micro import computing, pairs, published
from weft_bench.micro.page import save
from weft_bench.micro.record import Micro, Micros
from weft_bench.micro.suite import run
from weft_bench.profiling import ncu
from weft_bench.profiling.counters import ALL, PACK, counted, metric_names
from weft_bench.profiling.launches import read
from weft_bench.profiling.replay import turn

# As ncu 2023 and later print `--page raw`: metrics are columns, the first row has their units.
WIDE = """==PROF== Connected to process 4711 (/opt/torch/.venv/bin/python3)
==PROF== Profiling "gett_kernel": 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","dram__bytes_write.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed",\
"gpu__time_duration.sum","l1tex__t_sector_hit_rate.pct","launch__occupancy_limit_registers",\
"lts__throughput.avg.pct_of_peak_sustained_elapsed","sm__throughput.avg.pct_of_peak_sustained_elapsed",\
"sm__warps_active.avg.pct_of_peak_sustained_active","smsp__issue_active.avg.pct_of_peak_sustained_active",\
"smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active","smsp__thread_inst_executed_per_inst_executed.pct",\
"smsp__warps_eligible.avg.per_cycle_active","sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","byte","byte","%","ns","%","block","%","%","%","%","%","%","warp","%"
"0","4711","python3","127.0.0.1","gett_kernel","1","7","(256, 1, 1)","(512, 1, 1)","0","9.0",\
"33,554,432","67,108,864","61.25","41,024","12.5","2","48.75","55.5","24.1","38.2","4.75","98.44","0.75","51.3"
"1","4711","python3","127.0.0.1","permute_kernel","1","7","(128, 1, 1)","(2048, 1, 1)","0","9.0",\
"1,048,576","1,048,576","80.5","2,048","n/a","16","70.25","20.5","88.25","15.75","(!) n/a","100","0.25","0"
"""

# As ncu 2020 to 2022 print it by default: a row for each launch and metric, with long units and older names.
LONG = """==PROF== Connected to process 12
"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context","Stream","Section Name",\
"Metric Name","Metric Unit","Metric Value"
"0","12","python3","127.0.0.1","naive","2021-Mar-01","1","7","Command line profiler metrics",\
"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","%","16.54"
"0","12","python3","127.0.0.1","naive","2021-Mar-01","1","7","Command line profiler metrics",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed","%","54.32"
"0","12","python3","127.0.0.1","naive","2021-Mar-01","1","7","Command line profiler metrics",\
"sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active","%","28.05"
"0","12","python3","127.0.0.1","naive","2021-Mar-01","1","7","Command line profiler metrics",\
"smsp__issue_active.avg.per_cycle_active","inst/cycle","0.315"
"0","12","python3","127.0.0.1","naive","2021-Mar-01","1","7","Command line profiler metrics",\
"smsp__thread_inst_executed_per_inst_executed.ratio","","16.112"
"0","12","python3","127.0.0.1","naive","2021-Mar-01","1","7","Command line profiler metrics",\
"smsp__warps_eligible.sum.per_cycle_active","warp","864"
"0","12","python3","127.0.0.1","naive","2021-Mar-01","1","7","Command line profiler metrics",\
"dram__bytes_read.sum","Mbyte","1,234.50"
"0","12","python3","127.0.0.1","naive","2021-Mar-01","1","7","Command line profiler metrics",\
"dram__bytes_write.sum","Kbyte","8.00"
"0","12","python3","127.0.0.1","naive","2021-Mar-01","1","7","Command line profiler metrics",\
"gpu__time_duration.sum","msecond","2.50"
"""


def test_new_tables_are_read() -> None:
    first, second = ncu.read(WIDE, processors=132, device="NVIDIA H200")
    assert (first.kernel, second.kernel) == ("gett_kernel", "permute_kernel")
    assert first.device == "NVIDIA H200"
    assert [first.get(counter.key) for counter in PACK] == [55.5, 61.25, 48.75, 12.5, 4.75, 24.1, 2, 0.75, 38.2, 98.44]
    assert first.get("tensor") == 51.3
    assert first.names["tensor"].startswith("sm__inst_executed_pipe_tensor")
    assert first.get("seconds") == pytest.approx(41.024e-6)
    assert first.dram_bytes == 33554432 + 67108864
    assert second.get("K4") is None  # n/a is no 0
    assert second.get("K5") is None
    assert second.get("tensor") == 0


def test_old_tables_and_old_names_are_read_in_the_same_units() -> None:
    (found,) = ncu.read(LONG, processors=108)
    assert found.get("K1") == 54.32
    assert found.get("K2") == 16.54
    assert found.names["K2"] == "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
    assert found.get("K5") == 28.05
    assert found.get("K8") == pytest.approx(2.0)  # of each of 4 x 108 schedulers
    assert found.get("K9") == pytest.approx(31.5)
    assert found.get("K10") == pytest.approx(50.35)
    assert found.dram_bytes == pytest.approx(1234.5e6 + 8e3)
    assert found.get("seconds") == pytest.approx(2.5e-3)


def test_a_sum_over_schedulers_needs_their_number() -> None:
    (found,) = ncu.read(LONG)
    assert found.get("K8") is None


def test_the_first_name_wins_and_none_stands_twice() -> None:
    names = metric_names()
    assert len(names) == len(set(names))
    for counter in ALL:
        every = counted("kernel", {name: float(at + 1) for at, (name, _) in enumerate(counter.names)}, processors=100)
        assert every.names[counter.key] == counter.names[0][0]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
         "the target device 0.", "keeps hardware counters for root .ERR_NVGPUCTRPERM.: run as root"),
        ("==WARNING== No kernels were profiled.", "saw no kernel"),
        ("==PROF== Connected\n==ERROR== The application returned an error code (1).", "application returned an error"),
        ("Traceback\nModuleNotFoundError: No module named 'weft'", "No module named 'weft'"),
        ("", "printed no table and no error"),
    ],
)  # fmt: skip
def test_why_there_are_no_counters(said: str, sentence: str) -> None:
    assert ncu.read(said) == []
    import re

    assert re.search(sentence, ncu.why_nothing(said))


def program(folder: Path, body: str) -> str:
    """A program that stands in for ncu."""
    file = folder / "ncu"
    file.write_text(f"#!{sys.executable}\nimport json, sys\nif '--version' in sys.argv:\n"
                    "    print('NVIDIA (R) Nsight Compute\\nVersion 2025.3.1.0 (build 1)'); sys.exit()\n"
                    f"{body}\n")  # fmt: skip
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_a_run_asks_for_one_filtered_replay(tmp_path: Path) -> None:
    asked = tmp_path / "asked.json"
    stub = program(tmp_path, f"open({str(asked)!r}, 'w').write(json.dumps(sys.argv)); print({WIDE!r})")
    found = ncu.count(tmp_path / "call", processors=132, device="NVIDIA H200", program=stub)
    assert [each.kernel for each in found.sets] == ["gett_kernel", "permute_kernel"]
    assert found.version == "2025.3.1.0"
    line = " ".join(json.loads(asked.read_text()))
    for part in (
        "--clock-control none",
        "--profile-from-start off",
        "--csv",
        "-m weft_bench.profiling.replay",
        "--launch-count",
    ):
        assert part in line
    assert all(name in line for name in metric_names())


def test_names_that_a_version_refuses_are_left_out(tmp_path: Path) -> None:
    """Some versions run nothing where they do not know a name: it is asked for once more without."""
    unknown = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
    body = (
        f"if any({unknown!r} in each for each in sys.argv):\n"
        f"    print('==ERROR== Failed to find metric {unknown}'); sys.exit(1)\n"
        f"print({WIDE!r})"
    )
    found = ncu.count(tmp_path / "call", processors=132, device="", program=program(tmp_path, body))
    assert len(found.sets) == 2
    assert not found.missing


def test_what_hangs_is_ended(tmp_path: Path) -> None:
    stub = program(tmp_path, "import time; time.sleep(60)")
    found = ncu.count(tmp_path / "call", processors=1, device="", program=stub, patience=0.5)
    assert found.missing == "ncu took more than 0 s and was ended"
    assert found.sets == ()


def test_without_ncu_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "found", lambda: None)
    assert "ncu` is not on PATH" in ncu.count(tmp_path / "call", processors=1, device="").missing


def test_processes_take_turns_and_one_that_hangs_holds_up_nobody_for_good(tmp_path: Path) -> None:
    inside: list[int] = []

    def work(longest: float) -> None:
        with turn(str(tmp_path / "turn"), longest):
            inside.append(1)
            time.sleep(0.05)
            inside.append(-1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [10.0] * 4))
    assert inside == [1, -1] * 4
    with turn(str(tmp_path / "turn")):
        work(0.05)
    assert inside == [1, -1] * 5


def event(name: str, at: float, duration: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": duration, "args": args}


TAKEN = {"grid": [256, 2, 1], "block": [128, 1, 1], "registers per thread": 96, "shared memory": 40960}


def test_each_launch_gets_the_median_of_its_times() -> None:
    events = []
    for call, (pack, product) in enumerate(((5.0, 50.0), (4.0, 41.0), (4.5, 40.0))):
        events += [event("permute_kernel", 100 * call, pack), event("gett_kernel", 100 * call + 10, product, **TAKEN)]
    events += [
        {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1},
        {"cat": "cuda_runtime", "name": "x", "ts": 2, "dur": 1},
    ]
    first, second = read({"traceEvents": events[::-1]}, 3)
    assert (first.name, first.seconds) == ("permute_kernel", pytest.approx(4.5e-6))
    assert (second.name, second.seconds) == ("gett_kernel", pytest.approx(41e-6))
    assert (second.programs, second.threads, second.registers, second.shared) == (512, 128, 96, 40960)
    assert first.programs is None
    placed = second.on(LIMITS[90], 132)
    assert placed.occupancy == 5 * 4 / 64  # 96 registers allow five blocks of four warps
    assert placed.waves == 512 / (5 * 132)
    assert first.on(LIMITS[90], 132) == first


def test_a_first_call_that_did_more_is_left_out() -> None:
    events = [event("warm-up", 0, 9.0), *(event("k", 10 * at, 1.0) for at in range(1, 4))]
    assert [each.name for each in read({"traceEvents": events}, 3)] == ["k"]


def test_without_launches_there_are_none() -> None:
    assert read({"traceEvents": []}, 5) == []
    assert read({}, 5) == []


SAMPLES = Path(__file__).with_name("data") / "pairs"
CUDA = torch.device("cuda", 0)


def variant_of(recipe: Any) -> str:
    """The pair and variant that a recipe of another process makes."""
    if isinstance(recipe, pairs.BranchRecipe):
        return f"divergence-by-{'lane' if recipe.by_lane else 'warp'}"
    known = {("multiply", 2): "product-naive", ("multiply", 14): "product-cuBLAS"}
    direct, ordered = (pairs.recipe("two-site", variant, "cuda:0") for variant in ("direct", "ordered"))
    known |= {("tensor", direct.number): "two-site-direct", ("tensor", ordered.number): "two-site-ordered"}  # type: ignore[attr-defined]
    return known[recipe.ladder, recipe.number]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose profiler prints the stored tables."""

    def count(replayed: Path, *, processors: int, device: str, environment: Any) -> ncu.Counted:
        table = (SAMPLES / f"{variant_of(pickle.loads(replayed.read_bytes()))}.csv").read_text()
        return ncu.Counted(tuple(ncu.read(table, processors=processors, device=device)), version="2025.3")

    monkeypatch.setattr(ncu, "count", count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))


def test_each_pair_has_its_ten_counters(counting: None) -> None:
    found = pairs.pairs(CUDA, "NVIDIA H200", 0.1)
    rows = {(row["pair"], row["variant"]): row for row in found.rows}
    assert list(rows) == [(pair.name, variant) for pair in pairs.PAIRS for variant in pair.variants]
    lane = rows["divergence", "by lane"]
    assert [lane[pairs.column(f"K{number}")] for number in range(1, 11)] == [
        46.5, 0.01, 0.06, 0, 46.2, 98.2, 16, pytest.approx(1.9), 93.1, pytest.approx(50.35)
    ]  # fmt: skip
    assert lane["kernel"] == "branch"
    assert lane["under the profiler us"] == pytest.approx(234.592)
    assert rows["divergence", "by warp"]["K10 %"] == 100
    assert rows["two-site", "ordered"]["kernel"] == "second"  # of two launches the longer


def test_a_finding_says_which_counters_do_not_part_a_pair(counting: None) -> None:
    """Direct sums of the sample issue more than the ordered products do, which is not what the thesis expects."""
    found = pairs.pairs(CUDA, "NVIDIA H200", 0.1)
    assert found.finding == "K9 does not part two-site"
    assert found.figures["divergence: K10 of by lane over by warp"] == pytest.approx(0.5035)
    assert found.figures["product: K1 of naive over cuBLAS"] == pytest.approx(54.32 / 98.45)


def test_published_values_stand_beside(counting: None, tmp_path: Path) -> None:
    page = save(Micros([pairs.pairs(CUDA, "NVIDIA H200", 0.1)]), tmp_path).read_text()
    assert "No counters were read." not in page
    assert page.count(">98.67<") == 2
    columns = {name for row in published.PAIRS for name in row} - {"pair", "variant"}
    assert columns <= {pairs.column(f"K{number}") for number in range(1, 11)}


def test_without_a_profiler_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "found", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    with pytest.raises(UnsupportedError, match="counters need Nsight Compute"):
        pairs.pairs(CUDA, "NVIDIA H200", 0.1)
    with pytest.raises(UnsupportedError, match="the microbenchmark 'pairs' is of a GPU, not of 'cpu'"):
        run(["pairs"], torch.device("cpu"))


def test_a_branch_is_called_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(computing.cuda, "kernel", lambda name: lambda *given: calls.append((name, *given)))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=2))
    for by_lane in (False, True):
        sent = pickle.dumps(pairs.recipe("divergence", "by lane" if by_lane else "by warp", "cpu"))
        call, tensors = pickle.loads(sent).make()
        call(*tensors)
        name, blocks, threads, out, side, _ = calls[-1]
        assert (name, blocks, threads, out.numel(), side) == ("branch", 32, 256, 32 * 256, int(by_lane))


def test_a_hit_rate_is_of_sectors_and_never_over_a_hundred() -> None:
    told = {"lts__t_sector_hit_rate.pct": 103.0, "l1tex__t_sector_hit_rate.pct": 100.4}
    assert counted("kernel", told).values == {}
    sectors = {"lts__t_sectors_lookup_hit.sum": 30.0, "lts__t_sectors_lookup_miss.sum": 10.0}
    assert counted("kernel", told | sectors).get("l2_hits") == 75


def test_a_missing_pair_of_values_is_named() -> None:
    sets = {(pair.name, variant): ncu.read((SAMPLES / f"{pair.name}-{variant.replace(' ', '-')}.csv").read_text())[0]
            for pair in pairs.PAIRS for variant in pair.variants}  # fmt: skip
    values = dict(sets["product", "naive"].values)
    del values["K5"]
    sets["product", "naive"] = type(sets["product", "naive"])("naive", values)
    found: Micro = pairs.compared(sets, "NVIDIA H200")
    assert "K5 of product is not known" in found.finding
    assert found.rows[1]["K5 %"] is None
