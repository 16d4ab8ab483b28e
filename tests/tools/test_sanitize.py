"""`make sanitize`: what compute-sanitizer writes is read whole, and only findings that were judged pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("triton")

from sanitize import report, run
from sanitize.jobs import jobs, small_target
from sanitize.layout import BASE, Region, name_of, regions
from sanitize.log import read
from sanitize.verdicts import Verdict, known
from weft.gpu.common.launch import collected
from weft.planner.schedule import Target

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
@job product: tma 64x64
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
    assert log.ran == ["product: gett 64x64", "product: simt 64x64", "product: tma 64x64"]
    assert log.refused == {"product: simt 64x64": "it needs too much"}
    assert log.failed == {"product: tma 64x64": "RuntimeError: no"}
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
    assert not verdict.covers("racecheck", "smem_transform_kernel", kind, ["roles of warps"])
    assert not verdict.covers("initcheck", "stationary_kernel", kind, ["roles of warps"])


def test_verdicts_on_file_say_what_was_concluded_and_why() -> None:
    for verdict in known():
        assert verdict.tool in run.TOOLS
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


@pytest.mark.slow
def test_jobs_run_every_kernel_on_hopper() -> None:
    target = small_target(H200)
    found = set()
    for job in jobs(target, lambda family: True):
        with collected() as launches:
            job.build(target)
        found |= {launch.kernel.fn.__name__ for launch in launches}
    assert found >= {
        "tma_kernel", "ws_kernel", "smem_transform_kernel", "stationary_kernel", "gett_kernel", "simt_kernel",
        "semiring_kernel", "reduce_splits_kernel", "permute_kernel", "permute_pair_kernel", "interleaved_kernel",
        "complex_direct_kernel",
    }  # fmt: skip
