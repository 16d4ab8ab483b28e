"""`make sanitize`: what sanitizers write is read whole, and only findings that were judged pass."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from pages import ROOT
from sanitize import instrumented, report, ring, run
from sanitize.jobs import jobs, small_target
from sanitize.layout import BASE, Region, name_of, regions
from sanitize.log import read
from sanitize.problems import contracted, problems
from sanitize.verdicts import Verdict, known
from weft.gpu.common.launch import collected
from weft.oracle.problem import Problem
from weft.planner.schedule import Target
from weft.planner.target import interpreting

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
HAZARD = """\
========= Error: Potential WAW hazard detected at __shared__ {address} in block (0,0,0) :
=========     Write Thread (23,0,0) at stationary_kernel+0x1a0 in stationary_kernel.py:321
=========     Write Thread (160,0,0) at stationary_kernel+0x9b0 in stationary_kernel.py:321
=========     Current Value : 2, Incoming Value : 3
=========
"""
MEMCHECK = """\
========= COMPUTE-SANITIZER
@job product: gett 64x64
========= Invalid __global__ read of size 16 bytes
=========     at gett_kernel+0x1230 in kernel.py:101
=========     by thread (33,0,0) in block (2,0,0)
=========     Access at 0x7f5e4ba00200 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f5e4ba00000 of size 512 bytes
=========
========= Invalid __global__ read of size 16 bytes
=========     at gett_kernel+0x1230 in kernel.py:101
=========     by thread (34,0,0) in block (2,0,0)
=========
some words of torch's
@job product: simt 64x64
@refused it needs too much
@job product: ws.pingpong 64x64
@failed RuntimeError: no
@done
========= ERROR SUMMARY: 2 errors
"""
MLIR = """\
// -----// IR Dump Before TritonGPUProxyFenceInsertion (x) //----- //
    %old = ttg.local_alloc {allocation.offset = 4 : i32} : () -> !ttg.memdesc<2x1xi64, #s, #smem, mutable>
// -----// IR Dump Before ConvertTritonGPUToLLVM (convert-triton-gpu-to-llvm) //----- //
  tt.func public @stationary_kernel(%a: i32 loc("a")) attributes {allocation.offset = 640 : i32, noinline = false} {
    %ring = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<4x16x4xf16, #s, #smem, mutable> loc(#l)
    %full = ttg.local_alloc {allocation.offset = 512 : i32} : () -> !ttg.memdesc<2x1xi64, #s, #smem, mutable> loc(#l)
    ttg.warp_specialize(%ring) attributes {allocation.offset = 512 : i32}
// -----// IR Dump Before Canonicalizer (canonicalize) //----- //
    %new = ttg.local_alloc {allocation.offset = 8 : i32} : () -> !ttg.memdesc<2x1xi64, #s, #smem, mutable>
"""


def test_reports_are_gathered_by_kernel_and_kind() -> None:
    log = read("memcheck", MEMCHECK.splitlines(keepends=True))
    (finding,) = log.findings
    assert (finding.kernel, finding.kind) == ("gett_kernel", "Invalid __global__ read of size 16 bytes")
    assert finding.count == 2
    assert dict(finding.jobs) == {"product: gett 64x64": 2}
    assert dict(finding.places) == {"kernel.py:101": 2}
    assert log.ran == ["product: gett 64x64", "product: simt 64x64", "product: ws.pingpong 64x64"]
    assert log.refused == {"product: simt 64x64": "it needs too much"}
    assert log.failed == {"product: ws.pingpong 64x64": "RuntimeError: no"}
    assert log.done
    assert log.summary == "ERROR SUMMARY: 2 errors"


@pytest.mark.parametrize(
    ("line", "kernel", "kind", "severity"),
    [
        ("Error: Potential RAW hazard detected at __shared__ 0x404 in block (0,0,0) :\n"
         "    Write Thread (0,0,0) at stationary_kernel+0x1a0 in k.py:3",
         "stationary_kernel", "Potential RAW hazard detected", "error"),
        ("Warning: Race reported between Write access at stationary_kernel+0x1a0 in k.py:3\n"
         "    and Read access at stationary_kernel+0x9b0 in k.py:3 [4 hazards]", "stationary_kernel",
         "Race reported between read and write", "warning"),
        ("Barrier error detected. Divergent thread(s) in block\n    at 0x90 in /src/k.py:3:square_kernel",
         "square_kernel", "Barrier error detected. Divergent thread(s) in block", ""),
        ("Uninitialized __global__ memory read of size 4 bytes\n    at helper+0x40 in k.py:3\n"
         "    Device Frame: reduce_splits_kernel",
         "reduce_splits_kernel", "Uninitialized __global__ memory read of size 4 bytes", ""),
        ("Warning: Detected overflow of tracked cuda::barrier structures. Results might be incorrect.", "",
         "Detected overflow of tracked cuda::barrier structures. Results might be incorrect.", "warning"),
    ],
)  # fmt: skip
def test_every_tool_s_reports_are_read(line: str, kernel: str, kind: str, severity: str) -> None:
    lines = [f"========= {text}\n" for text in line.split("\n")]
    (finding,) = read("any", lines).findings
    assert (finding.kernel, finding.kind, finding.severity) == (kernel, kind, severity)


def test_regions_of_shared_memory_are_those_of_the_last_code_that_names_them() -> None:
    known_regions = regions(MLIR.splitlines(keepends=True))["stationary_kernel"]
    assert known_regions == [
        Region("roles of warps", 640, None),
        Region("ring", 0, 512),
        Region("full", 512, 16),
        Region("captures of roles", 512, None),
    ]
    assert name_of(BASE + 511, known_regions) == "ring"
    assert name_of(BASE + 520, known_regions) == "captures of roles or full"
    assert name_of(BASE + 600, known_regions) == "captures of roles"
    assert name_of(BASE + 643, known_regions) == "roles of warps"


def test_a_verdict_covers_a_finding_only_where_all_of_it_lies() -> None:
    kinds = "Potential .* hazard detected"
    verdict = Verdict("racecheck", "stationary_kernel", kinds, "roles of warps", "harmless", "why")
    kind = "Potential WAW hazard detected"
    assert verdict.covers("racecheck", "stationary_kernel", kind, ["roles of warps"])
    assert not verdict.covers("racecheck", "stationary_kernel", kind, ["roles of warps", "x_ring"])
    assert not verdict.covers("racecheck", "stationary_kernel", kind, [])
    assert not verdict.covers("racecheck", "ws_kernel", kind, ["roles of warps"])
    assert not verdict.covers("initcheck", "stationary_kernel", kind, ["roles of warps"])


def test_verdicts_on_file_say_what_was_concluded_and_why() -> None:
    for verdict in known():
        assert verdict.tool in (*run.TOOLS, *instrumented.MODES)
        assert verdict.verdict in ("false report", "harmless")
        assert len(verdict.reason.split()) > 10


Command = Callable[[str, str, Path], Sequence[str]]


def played(text: str, seconds: float = 0.0) -> Command:
    """A stand-in for a tool that writes a text."""
    code = f"import sys, time; sys.stdout.write({text!r}); sys.stdout.flush(); time.sleep({seconds})"
    return lambda program, tool, jobs: [sys.executable, "-c", code]


def outcome_of(
    monkeypatch: pytest.MonkeyPatch, folder: Path, command: Command, limit: float = 60.0
) -> report.Outcome:
    monkeypatch.setattr(run, "sanitizer", lambda: "tool")
    monkeypatch.setattr(run, "command", command)
    monkeypatch.setattr(run, "PROCESSES", {"racecheck": 1})
    outcome = report.Outcome("racecheck")
    for _, ended in run.run(["racecheck"], ["product: stationary"], folder, limit):
        outcome.add(ended)
    return outcome


def test_findings_stand_where_their_addresses_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hazards = HAZARD.format(address=hex(BASE + 640)) + HAZARD.format(address=hex(BASE))
    summary = "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n"
    text = f"@job product: stationary\n{hazards}@done\n{summary}"
    outcome = outcome_of(monkeypatch, tmp_path, played(text))
    assert outcome.troubles == []
    monkeypatch.setattr(report, "of_job", lambda job, architecture: regions(MLIR.splitlines(keepends=True)))
    report._layouts.cache_clear()
    (finding,) = report.judged(outcome, "sm_90")
    assert finding["shared memory"] == {"roles of warps": 1, "ring": 1}
    assert finding["verdict"] is None
    verdict = Verdict("racecheck", "stationary_kernel", ".*", "ring|roles of warps", "harmless", "why")
    monkeypatch.setattr(report, "known", lambda: [verdict])
    (finding,) = report.judged(outcome, "sm_90")
    assert finding["verdict"] == "harmless"


def test_what_is_not_judged_of_the_recorded_run_is_said() -> None:
    """Two findings have verdicts by now; the third has a place that none is about."""
    found = json.loads((ROOT / "results" / "h200" / "sanitize.json").read_text())["findings"]
    open_ones = {}
    for each in found:
        where, about = each["shared memory"], (each["tool"], each["kernel"], each["kind"])
        if not any(verdict.covers(*about, list(where)) for verdict in known()):
            judged = [place for place in where if any(verdict.covers(*about, [place]) for verdict in known())]
            open_ones[each["kernel"]] = {place: count for place, count in where.items() if place not in judged}
    assert {each["kernel"] for each in found} == {"ws_kernel", "stationary_kernel", "smem_transform_kernel"}
    assert open_ones == {"ws_kernel": {"0": 3040}}
    said = " ".join((ROOT / "tools" / "sanitize" / "README.md").read_text().split())
    assert "3040 reports of `ws_kernel` lie in `0`" in said
    assert "its finding has no verdict" in said


@pytest.mark.parametrize(
    ("text", "seconds", "said"),
    [
        ("@job product: stationary\n", 60.0, "not finished after 1 s (1 of 1 jobs were begun"),
        ("@job product: stationary\nSegmentation fault\n", 0.0, "the workload ended early, with 0: Segmentation fault"),
        ("@job product: stationary\n@done\n", 0.0, "the tool gave no summary"),
        ("@job a\n@done\n========= ERROR SUMMARY: 7 errors\n", 0.0, "counts 7 errors, none of which could be read"),
    ],
)
def test_what_did_not_come_to_its_end_is_said(
    text: str, seconds: float, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (trouble,) = outcome_of(monkeypatch, tmp_path, played(text, seconds), limit=1.0 if seconds else 60.0).troubles
    assert said in trouble


ASSERTED = (
    "/a/kernel.py:280: ws_kernel: block: [3,0,0], thread: [5,0,0] Assertion "
    "`Buffer being accessed has outstanding writes` failed.\n"
)


def test_an_assertion_on_the_device_is_a_finding_and_the_jobs_after_it_run_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun = []

    def workload(mode: str, jobs: Path, file: Path, until: float) -> None:
        names = json.loads(jobs.read_text())
        begun.append(names)
        lines = "@job p: ws.a\n" + ASSERTED * 2 + "@failed RuntimeError: CUDA error\n@lost\n"
        file.write_text(lines if "p: ws.a" in names else "@job p: ws.b\n@done\n")

    monkeypatch.setattr(instrumented, "_workload", workload)
    outcome = report.Outcome("consan")
    for ended in instrumented.run("consan", ["p: ws.a", "p: ws.b"], tmp_path, 60.0, 1):
        outcome.add(ended)
    assert begun == [["p: ws.a", "p: ws.b"], ["p: ws.b"]]
    assert (outcome.jobs, outcome.ran, outcome.troubles) == (2, 2, [])
    (finding,) = outcome.findings.values()
    assert (finding.kernel, finding.kind) == ("ws_kernel", "Buffer being accessed has outstanding writes")
    assert (finding.count, dict(finding.places)) == (2, {"kernel.py:280": 2})
    assert list(finding.jobs) == ["p: ws.a"]


def test_a_process_that_ends_with_no_word_is_a_trouble_and_time_that_is_up_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(instrumented, "_workload", lambda mode, jobs, file, until: file.write_text("@job p: ws.a\n"))
    (ended,) = instrumented.run("consan", ["p: ws.a"], tmp_path, 60.0, 1)
    assert ended.log.failed == {"p: ws.a": "it ended its process"}
    (ended,) = instrumented.run("consan", ["p: ws.a"], tmp_path, 0.0, 1)
    assert (ended.jobs, ended.log.ran, ended.log.failed) == (1, [], {})


def test_bits_are_held_against_the_reference_or_most_schedules() -> None:
    bits = {"p: gett 1": "x", "p: ws.a 1": "y", "q: gett 1": "z", "q: ws.a 1": "z", "q: simt 1": "w"}
    found = list(instrumented.compared(bits, {"p: gett 1": "y"}))
    assert [(each.kernel, each.kind, list(each.jobs)) for each in found] == [
        ("gett", instrumented.DIFFERS, ["p: gett 1"]),
        ("simt", instrumented.ALONE, ["q: simt 1"]),
    ]


def test_each_problem_and_family_comes_before_the_others_of_its_kind() -> None:
    names = ["p: ws.a 1", "p: ws.a 2", "p: simt 1", "q: ws.a 1", "q: gett 1"]
    assert instrumented.chosen("consan", names) == ["p: ws.a 1", "q: ws.a 1", "p: ws.a 2"]
    assert instrumented.chosen("fpsan", names)[-1] == "p: ws.a 2"
    assert "p: simt 1" not in instrumented.chosen("iisan", names)


def test_an_older_triton_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrumented, "RELEASE", (3, 6))
    assert instrumented.missing() == "it needs Triton 3.9 or newer, here is 3.6"
    outcome = report.Outcome("fpsan", missing=instrumented.missing())
    monkeypatch.setattr(report, "device_stamp", lambda device: {"name": "", "driver": "", "torch": "", "triton": ""})
    written = report.record([outcome], [], [], 0.0)
    assert "not run: it needs Triton 3.9" in report.table(written)


@pytest.mark.parametrize(
    ("equation", "dtype"),
    [("mk,kn->mn", torch.float64), ("bmk,bkn->mbn", torch.float16), ("iik,kn->in", torch.float32),
     ("mkx,kn->mn", torch.float32), ("ab,ba->ab", torch.float32)],
)  # fmt: skip
def test_the_plain_kernel_computes_contractions(equation: str, dtype: torch.dtype) -> None:
    if not interpreting():
        pytest.skip("the kernel is run by Triton's interpreter")
    extents = {label: 3 + at for at, label in enumerate("mknbixa") if label in equation}
    description = contracted(equation, extents, dtype=dtype)
    assert ring.covers(description)
    given = Problem(description, torch.device("cpu")).operands(1)
    assert given.b is not None
    wanted = torch.einsum(equation, given.a.double(), given.b.double())
    bound = 1e-2 if dtype is torch.float16 else 1e-6
    torch.testing.assert_close(ring.computed(description, given).double(), wanted, rtol=bound, atol=bound)


def test_the_plain_kernel_stands_for_nothing_else() -> None:
    named = problems()
    assert not any(ring.covers(named[name]()) for name in ("tf32x3", "with C", "operands", "log", "permuted float16"))


@pytest.mark.slow
def test_jobs_run_every_kernel_on_hopper() -> None:
    target = small_target(H200)
    found = set()
    for job in jobs(target, lambda family: True):
        with collected() as launches:
            job.build(target)
        found |= {launch.kernel.fn.__name__ for launch in launches}
    assert found >= {
        "ws_kernel", "stationary_kernel", "gett_kernel", "simt_kernel",
        "semiring_kernel", "reduce_splits_kernel", "permute_kernel", "permute_pair_kernel", "interleaved_kernel",
        "complex_direct_kernel",
    }  # fmt: skip
