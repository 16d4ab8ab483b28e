"""Models of the microbenchmarks, their kernels as compiled, and the one that a CPU can run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from commands import told
from weft.errors import UnsupportedError, WeftError
from weft.machine.statistics import summarise
from weft_bench.environment import missing
from weft_bench.kernels import machine_code
from weft_bench.micro import cuda, launching, memory, numa, published
from weft_bench.micro.cuda import SOURCES
from weft_bench.micro.models import break_even, conflicts, fit_transfer, knee
from weft_bench.micro.page import picture, save
from weft_bench.micro.record import Micro, Micros, column, load
from weft_bench.micro.suite import MICROS, run

CPU = torch.device("cpu")


def test_latency_and_bandwidth_are_found_again() -> None:
    sizes = [1 << at for at in range(10, 28, 3)]
    found = fit_transfer(sizes, [8e-6 + size / 50e9 for size in sizes])
    assert found.latency == pytest.approx(8e-6)
    assert found.bandwidth == pytest.approx(50e9)
    assert found.worst < 1e-9
    assert found.seconds(5e9) == pytest.approx(0.100008)
    assert fit_transfer(sizes, [size / 50e9 * (1 - 1e3 / size) for size in sizes]).latency == 0


def test_break_even_intensity() -> None:
    """At it both ways take equally long."""
    intensity = break_even(50e9, 50e12, 1e12)
    size = 1e9
    assert size / 50e9 + intensity * size / 50e12 == pytest.approx(intensity * size / 1e12)
    assert break_even(50e9, 50e12) == 1000
    assert break_even(50e9, 1e12, 2e12) == math.inf


def test_the_size_of_a_cache_is_where_rates_fall() -> None:
    sizes = [float(1 << at) for at in range(20, 30)]
    rates = [10.0] * 6 + [7.0, 4.5, 4.0, 4.0]
    assert 2**26 <= knee(sizes, rates) <= 2**27
    assert knee(sizes, [4.0] * 10) == math.inf


def test_lanes_that_meet_in_a_bank() -> None:
    assert [conflicts(stride) for stride in (1, 2, 3, 8, 32, 33, 64)] == [1, 2, 1, 8, 32, 1, 32]


def test_published_tables_are_whole() -> None:
    """Speed-ups, ratios and effects that the source derives follow from its own figures."""
    first, *_, last = published.LAUNCH
    assert float(first["separate us"] or 0) / float(first["grouped us"] or 1) == pytest.approx(46.7, abs=0.1)
    assert float(last["separate us"] or 0) / float(last["grouped us"] or 1) == pytest.approx(7.1, abs=0.05)
    rates = column(published.COALESCING, "GB/s")
    assert [round(rate / rates[0], 3) for rate in rates] == [1.0, 0.706, 0.444, 0.249, 0.131, 0.128, 0.180, 0.453]
    bytes_moved = [float(row["ms"] or 0) * float(row["GB/s"] or 0) for row in published.COALESCING]
    assert max(bytes_moved) == pytest.approx(min(bytes_moved), rel=1e-3)  # every stride moves as much


def compiled(
    name: str, folder: Path, **macros: int
) -> tuple[machine_code.Resources, list[machine_code.Instruction | str]]:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc on this machine")
    lines = [f"#define {macro} {value}" for macro, value in macros.items()]
    (folder / "kernel.cu").write_text("\n".join([*lines, SOURCES[name]]))
    subprocess.run([compiler, "-arch=sm_90", "-cubin", "kernel.cu"], cwd=folder, check=True, timeout=120)
    cubin = (folder / "kernel.cubin").read_bytes()
    return machine_code.resources(cubin, name), machine_code.read_sass(machine_code.sass(cubin))


def test_arguments_reach_a_kernel_as_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through CuPy, on torch's current stream; a stand-in for it writes down what comes."""
    log: list[Any] = []

    class RawKernel:
        num_regs = 17

        def __init__(self, source: str, name: str) -> None:
            log.append((name, source.splitlines()[0]))

        def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], words: tuple[Any, ...]) -> None:
            log.append((grid, block, [type(word).__name__ for word in words]))

    def entered(_: Any) -> Any:
        return contextlib.nullcontext()

    cupy = SimpleNamespace(RawKernel=RawKernel, cuda=SimpleNamespace(Device=entered, ExternalStream=entered))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    cuda.kernel.cache_clear()
    made = cuda.kernel("live_sums", LIVE=8, HELD=0)
    made(4, 256, torch.zeros(3), 10, 0.5, 2.0)
    cuda.kernel.cache_clear()
    assert made.registers == 17
    assert log == [
        ("live_sums", "#define LIVE 8"), ((4,), (256,), ["uint64", "int32", "float32", "float32"])
    ]  # fmt: skip


def test_sums_live_in_registers(tmp_path: Path) -> None:
    """As many as were asked for, none spilled, and each step of the loop adds to each."""
    taken = []
    for live in (8, 64, 160):
        resources, lines = compiled("live_sums", tmp_path, LIVE=live, HELD=0)
        loop = machine_code.loop_of(lines)
        assert resources.stack == 0
        assert loop.mix["fp32"] == live
        taken.append(resources.registers - live)
    assert all(0 < more < 16 for more in taken)
    fewest, most = (compiled("live_sums", tmp_path, LIVE=8, HELD=held) for held in (0, 128))
    assert 128 <= most[0].registers - fewest[0].registers < 144
    assert most[0].stack == 0
    assert machine_code.loop_of(most[1]).mix["fp32"] == machine_code.loop_of(fewest[1]).mix["fp32"] == 8  # equal work


def test_both_sides_of_the_branch_stay(tmp_path: Path) -> None:
    """The compiler has not made one loop of the two."""
    _, lines = compiled("branch", tmp_path)
    text = [each.text for each in lines if not isinstance(each, str)]
    assert sum("FFMA" in each for each in text) >= 16
    assert any(", 0.25," in each for each in text)
    assert any("1.001" in each for each in text)


def test_every_read_of_a_bank_is_made(tmp_path: Path) -> None:
    _, lines = compiled("banks", tmp_path)
    assert machine_code.loop_of(lines).mix["ld.shared 4 B"] == 8


def test_kernels_touch_what_they_say() -> None:
    """In Triton's interpreter: strided copies, and every tile read once in each pass, also where tiles are odd."""
    pytest.importorskip("triton")
    from weft_bench.micro.kernels import read_again_kernel, strided_copy_kernel

    x, y = torch.randn(1024), torch.full((1024,), torch.nan)
    strided_copy_kernel[(4,)](x, y, 8, ELEMENTS=1024, BLOCK=256)
    assert torch.equal(y[::8], x[::8])
    assert y.isnan().sum() == 1024 - 128
    for tiles in (3, 11):
        data, out = torch.randn(tiles * 64), torch.empty(4 * 64)
        read_again_kernel[(4,)](data, out, tiles, 3, PROGRAMS=4, BLOCK=64)
        assert torch.allclose(out.sum(), 3 * data.sum(), atol=1e-3)


def test_launches_on_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "SIZES", (1, 4))
    monkeypatch.setattr(launching, "held_up", lambda rows: [])  # on a busy machine times may contradict others
    micros = run(["launch"], CPU, 0.001)
    (found,) = micros.found
    assert [row["n"] for row in found.rows] == [1, 4]
    assert all(float(row["separate us"] or 0) > 0 for row in found.rows)
    assert found.figures["us a launch"] > 0
    assert found.published == published.LAUNCH
    assert missing(micros.environment) == []
    assert micros.environment["workloads"]["microbenchmarks"] == ["launch"]


def test_overhead_is_never_negative_and_doubt_is_said() -> None:
    quick, slow, wide = summarise([1.0, 1.01, 1.02]), summarise([2.0, 2.01, 2.02]), summarise([0.5, 1.5, 2.5])
    assert launching.overhead(slow, quick) == pytest.approx(100 * (1 - 1.01 / 2.01))
    assert launching.overhead(quick, slow) == 0  # grouping takes longer, and no launch costs less than nothing
    assert launching.overhead(quick, wide) is None
    rows = [{"n": n, "separate us": us, "overhead %": 90.0} for n, us in ((1, 1000.0), (2, 2200.0), (4, 1100.0))]
    assert launching.held_up([rows[0], rows[2]]) == []
    assert launching.held_up(rows) == [2]
    assert launching.held_up([rows[0] | {"overhead %": None}, *rows[1:]]) == [1, 2]


def test_what_contradicts_other_rows_is_measured_again_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "SIZES", (1, 2, 4))
    asked: list[int] = []

    def row(n: int, us: float) -> dict[str, Any]:
        asked.append(n)
        return {"n": n, "separate us": us, "overhead %": 90.0}

    rows, doubt = launching.agreeing(lambda n: row(n, 1000.0 if n != 2 or asked.count(2) else 3000.0))
    assert ([each["n"] for each in rows], doubt, asked) == ([1, 2, 4], "", [1, 2, 4, 2])
    rows, doubt = launching.agreeing(lambda n: row(n, 3000.0 if n == 2 else 1000.0))
    assert [each["n"] for each in rows] == [1, 4]
    assert doubt.startswith("left out: n = 2, ")
    with pytest.raises(UnsupportedError, match="too busy to say anything"):
        launching.agreeing(lambda n: row(n, 1000.0) | {"overhead %": None})


def test_what_a_cpu_cannot_run_is_said() -> None:
    with pytest.raises(UnsupportedError, match="the microbenchmark 'l2' is of a GPU, not of 'cpu'"):
        run(["l2"], CPU)
    with pytest.raises(UnsupportedError, match="no microbenchmark is called 'l3': there are launch, coalescing"):
        run(["l3"], CPU)


def made() -> list[Micro]:
    rows = [{"stride": row["stride"], "GB/s": 3 * float(row["GB/s"] or 0)} for row in published.COALESCING]
    return [
        Micro("coalescing", "NVIDIA H200", "copies", "stride", ("GB/s",), rows, {"worst": 0.1}, "apart is slow",
              published.COALESCING, published.SOURCE),
        Micro("l2", "NVIDIA H200", "", "", (), (), missing="no <GPU>"),
    ]  # fmt: skip


def test_page_and_json(tmp_path: Path) -> None:
    found = made()
    rows = [*found[0].rows, {"stride": 256, "GB/s": 1.0, "separate us": 11610.0}]
    found[0] = replace(found[0], rows=rows, doubt="busy")
    environment = {"date": "2026-11-27T00:00:00+00:00", "artifacts": {"commit": "abc123"}}
    page = save(Micros(found, environment), tmp_path / "micro").read_text()
    assert "NVIDIA H200, 2026-11-27T00:00:00+00:00, commit abc123: one mechanism each" in page
    assert "How it was measured" in page
    assert ">11.6 ms<" in page
    assert ">separate</button>" in page
    assert "busy" in page
    assert page.count("<table") == 3
    assert "data:image/png;base64" in page
    assert "not run: no &lt;GPU&gt;" in page
    assert "Threats to validity" in page
    again = load(tmp_path / "micro")
    assert (again.commit, again.date) == ("abc123", environment["date"])
    first, second = again.found
    assert first.published[0]["GB/s"] == 1245.34
    assert first == found[0]
    assert second.missing == "no <GPU>"
    figure = picture(made()[0])
    assert figure is not None
    assert len(figure.axes[0].lines) == 2
    assert picture(made()[1]) is None


def test_records_without_an_environment_are_read(tmp_path: Path) -> None:
    """Those of before it was kept are lists; their page says what they lack."""
    (tmp_path / "micro.json").write_text(json.dumps([each.to_dict() for each in made()]))
    old = load(tmp_path)
    assert old.found[0] == made()[0]
    assert (old.commit, old.date) == (None, None)
    told("report", tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "The record says neither date, commit nor versions." in page
    assert "How it was measured" not in page
    assert "Not run: 1 of 2 microbenchmarks." in page


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "micro.json").write_text('{"format": 99}')
    with pytest.raises(WeftError, match="these microbenchmarks have format 99, this version reads 1"):
        load(tmp_path)
    (tmp_path / "micro.json").write_text('{"format": 1}')
    with pytest.raises(WeftError, match=r"micro.json is no record of weft micro"):
        load(tmp_path)


def test_the_command_says_what_it_cannot() -> None:
    assert "is of a GPU" in told("micro", "shared", "--device", "cpu", code=2)


@pytest.mark.gpu
@pytest.mark.alone
def test_all_of_them_on_a_gpu() -> None:
    found = {each.name: each for each in run(["all"], torch.device("cuda"), 0.02).found}
    assert found.keys() == MICROS.keys()
    assert {name: each.missing for name, each in found.items() if each.missing and name != "pairs"} == {}
    strides = column(found["coalescing"].rows, "GB/s")
    assert strides[0] > 2 * min(strides)
    assert found["divergence"].figures["times as long"] > 1.5
    assert found["shared"].figures["times as long with 32 lanes a bank"] > 8
    launches = found["launch"].rows[0]
    assert float(launches["separate us"] or 0) > float(launches["grouped us"] or 0)


def host_of_two_nodes(root: Path, near: int) -> Any:
    """A system whose two nodes share the processors of this process."""
    mine = sorted(os.sched_getaffinity(0))
    for number, processors in enumerate((mine[:1], mine[-1:])):
        folder = root / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{processors[0]},100000-100001\n")
    (root / "bus/pci/devices/0000:1b:00.0").mkdir(parents=True)
    (root / "bus/pci/devices/0000:1b:00.0/numa_node").write_text(f"{near}\n")
    return SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no thread to processors")
def test_nodes_of_the_host_are_classes_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = host_of_two_nodes(tmp_path, near=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    found = numa.nodes(torch.device("cuda", 0), tmp_path)
    assert [node.text for node in found] == ["node 1, near", "node 0, far"]
    before = os.sched_getaffinity(0)
    with numa.bound(found[0]):
        assert os.sched_getaffinity(0) == found[0].processors
    assert os.sched_getaffinity(0) == before
    assert [node.near for node in numa.nodes(CPU, tmp_path)] == [False, False]

    rates = {"node 1, near": 40e9, "node 0, far": 10e9}
    bound = []

    @contextlib.contextmanager
    def noted(node: Any) -> Iterator[None]:
        bound.append(node.text)
        yield

    monkeypatch.setattr(numa, "nodes", lambda device: found)
    monkeypatch.setattr(numa, "bound", noted)
    monkeypatch.setattr(memory, "_host", lambda size, pinned: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(memory, "_copied", lambda to, source, *how: 1e-5 + to.numel() / rates[bound[-1]])
    measured = memory.transfer(CPU, "a card", 0.0)
    assert measured.figures["pinned node 1, near to device: GB/s"] == pytest.approx(40)
    assert measured.figures["pageable node 0, far to host: GB/s"] == pytest.approx(10)
    assert measured.finding.startswith("pinned memory moves at 40 GB/s, that of node 0, far at 0.25 of it")


def test_one_node_alone_is_no_class(tmp_path: Path) -> None:
    (tmp_path / "devices/system/node/node0").mkdir(parents=True)
    (tmp_path / "devices/system/node/node0/cpulist").write_text("0-3\n")
    assert numa.nodes(CPU, tmp_path) == []
    assert numa.nodes(CPU, tmp_path / "nowhere") == []
