"""The tools side by side on one GPU, each in several processes that share its jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from sanitize.log import Log, read

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PROCESSES = {"memcheck": 3, "racecheck": 6, "initcheck": 3, "synccheck": 3}  # shares of 16 cores
MOST_REPORTS = 5000  # of a process
BARRIERS = "1024"  # that a tool keeps account of: it cannot count them in code that Triton made

# Kernels are ended by an error and not the process, so that every job is run. What torch's kernels do is not looked at,
# but by initcheck, which must see what they write.
_COMMON = ("--target-processes", "application-only", "--show-backtrace", "device", "--print-limit", str(MOST_REPORTS))
_OURS = ("--kernel-name", "regex=^[a-z_]+_kernel$")  # names of weft's kernels, and of no others
_ON_ERROR = ("--destroy-on-device-error", "kernel")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "memcheck": (*_OURS, *_ON_ERROR, "--padding", "512", "--report-api-errors", "no"),
    "racecheck": (*_OURS, "--racecheck-report", "hazard", "--num-cuda-barriers", BARRIERS),
    "initcheck": (),
    "synccheck": (*_OURS, *_ON_ERROR, "--num-cuda-barriers", BARRIERS),
}
# torch's allocator hands out parts of one large allocation: a tool would see no end of a tensor, and old values in it.
_SETTINGS = {
    "memcheck": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "initcheck": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}


class Ended(NamedTuple):
    """The end of a process."""

    log: Log
    jobs: int  # that it had
    seconds: float
    trouble: str  # why it did not come to its end, or ""


@dataclass
class _Process:
    tool: str
    names: list[str]
    file: Path
    started: float
    process: subprocess.Popen[bytes]
    output: IO[bytes]


def sanitizer() -> str:
    """The program; `FileNotFoundError` where there is none."""
    beside = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "compute-sanitizer"
    found = shutil.which("compute-sanitizer") or (str(beside) if beside.exists() else None)
    if found is None:
        raise FileNotFoundError("compute-sanitizer is on no PATH: it comes with the CUDA toolkit")
    return found


def command(program: str, tool: str, jobs: Path) -> list[str]:
    """The command that runs the jobs of a file under a tool."""
    workload = (sys.executable, "-m", "sanitize.workload", str(jobs))
    return [program, "--tool", tool, *_COMMON, *_OPTIONS[tool], *workload]


def run(tools: Sequence[str], names: Sequence[str], folder: Path, limit: float) -> Iterator[tuple[str, Ended]]:
    """Run all jobs under each tool; a process that takes more than `limit` seconds is ended."""
    program = sanitizer()
    waiting = [_start(program, tool, part, names, folder) for tool in tools for part in range(PROCESSES[tool])]
    while waiting:
        for each in list(waiting):
            code = each.process.poll()
            late = time.monotonic() - each.started > limit
            if code is None and not late:
                continue
            waiting.remove(each)
            yield each.tool, _end(each, code, limit)
        time.sleep(0.1)


def _start(program: str, tool: str, part: int, names: Sequence[str], folder: Path) -> _Process:
    own = list(names[part :: PROCESSES[tool]])
    jobs, file = folder / f"{tool}-{part}.json", folder / f"{tool}-{part}.log"
    jobs.write_text(json.dumps(own))
    output = file.open("wb")
    process = subprocess.Popen(
        command(program, tool, jobs), stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        env=os.environ | _SETTINGS.get(tool, {}) | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return _Process(tool, own, file, time.monotonic(), process, output)


def _end(each: _Process, code: int | None, limit: float) -> Ended:
    if code is None:
        os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()
    each.output.close()
    with each.file.open(errors="replace") as lines:
        log = read(each.tool, lines)
    trouble = ""
    if code is None:
        trouble = f"not finished after {limit:.0f} s"
    elif not log.done:
        trouble = f"the workload ended early, with {code}: {_last(each.file)}"
    elif not log.summary:
        trouble = "the tool gave no summary"
    if trouble:
        trouble += f" ({len(log.ran)} of {len(each.names)} jobs were begun; see {each.file.name})"
    return Ended(log, len(each.names), time.monotonic() - each.started, trouble)


def _last(file: Path) -> str:
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip(" =")]
    return lines[-1] if lines else "no output"
