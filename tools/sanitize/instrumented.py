"""Triton's own sanitizers, from 3.9 on: the workload with kernels that the compiler instruments; no tool around it.

    fpsan    floats are elements of a ring, in which sums and products are exact: all schedules of a problem, and the
             plain kernel of `ring`, give the same bits
    consan   accesses to shared memory that nothing orders, in kernels with roles of warps
    iisan    what the compiler takes on trust of tensor maps: alignment of addresses, strides and coordinates

An assertion on the device ends the CUDA context, so the jobs after it are run by a process anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sanitize.log import Finding, Log, read
from sanitize.run import Ended
from sanitize.workload import MODE
from weft.gpu.common.release import RELEASE

MODES = ("fpsan", "consan", "iisan")
FIRST = (3, 9)  # version of Triton that has all three
ONLY = {"fpsan": ("",), "consan": ("ws.",), "iisan": ("ws.",)}  # words in names of jobs that a mode looks at
DIFFERS = "other bits than the reference in the ring"
ALONE = "other bits than most schedules of the problem"


def missing() -> str:
    """Why these sanitizers cannot be run here; empty where they can."""
    if RELEASE >= FIRST:
        return ""
    return f"it needs Triton {'.'.join(map(str, FIRST))} or newer, here is {'.'.join(map(str, RELEASE))}"


def chosen(mode: str, names: Sequence[str]) -> list[str]:
    """The jobs for a mode: one of each problem and family first, then their others."""
    wanted = [name for name in names if any(word in name for word in ONLY[mode])]
    seen: Counter[tuple[str, str]] = Counter()
    turn = {}
    for name in wanted:
        problem, _, schedule = name.partition(": ")
        key = problem, schedule.split()[0]
        turn[name] = seen[key]
        seen[key] += 1
    return sorted(wanted, key=turn.__getitem__)


def run(mode: str, names: Sequence[str], folder: Path, limit: float, processes: int) -> Iterator[Ended]:
    """Run jobs under a mode in several processes; jobs that are not reached in `limit` seconds are left out."""
    until = time.monotonic() + limit
    problems = list(dict.fromkeys(name.partition(": ")[0] for name in names))
    place = {problem: at % processes for at, problem in enumerate(problems)}  # few problems each: all are planned anew
    parts = [[name for name in names if place[name.partition(": ")[0]] == at]
             for at in range(min(processes, len(problems)))]  # fmt: skip
    with ThreadPoolExecutor(max(len(parts), 1)) as pool:
        yield from pool.map(lambda at: _part(mode, parts[at], folder / f"{mode}-{at}", until), range(len(parts)))


def _part(mode: str, names: list[str], stem: Path, until: float) -> Ended:
    began, log = time.monotonic(), Log(mode, done=True)
    left, round_ = list(names), 0
    while left and time.monotonic() < until:
        jobs, file = stem.with_suffix(f".{round_}.json"), stem.with_suffix(f".{round_}.log")
        jobs.write_text(json.dumps(left))
        _workload(mode, jobs, file, until)
        with file.open(errors="replace") as lines:
            found = read(mode, lines)
        _merge(log, found)
        ended_at = found.ran[-1] if found.ran else left[0]
        log.done = found.done or time.monotonic() >= until
        if found.done:
            left = []
        elif time.monotonic() >= until:
            left = [name for name in left if name not in found.ran[:-1]]
        else:  # that job took the process along
            left = [name for name in left if name not in found.ran and name != ended_at]
            log.failed.setdefault(ended_at, "it ended its process")
        round_ += 1
    log.ran = [name for name in log.ran if name not in left]
    told = {job for finding in log.findings for job in finding.jobs}
    log.failed = {job: why for job, why in log.failed.items() if job not in told}
    return Ended(log, len(names), time.monotonic() - began, "")


def _workload(mode: str, jobs: Path, file: Path, until: float) -> None:
    settings = {MODE: mode, "TRITON_FPSAN_HOMOMORPHIC_CASTS": "1", "WEFT_SELFTEST": "0", "OMP_NUM_THREADS": "1"}
    with file.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sanitize.workload", str(jobs)], stdout=output, stderr=subprocess.STDOUT,
            env=os.environ | settings,
        )  # fmt: skip
        try:
            process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _merge(log: Log, more: Log) -> None:
    log.ran += more.ran
    log.findings += more.findings
    for mine, other in (
        (log.refused, more.refused), (log.failed, more.failed), (log.bits, more.bits), (log.reference, more.reference),
    ):  # fmt: skip
        mine.update(other)


def compared(bits: dict[str, str], reference: dict[str, str]) -> Iterator[Finding]:
    """A finding for each family of a problem whose results are not those of the reference, or of most schedules."""
    for problem in dict.fromkeys(name.partition(": ")[0] for name in bits):
        own = {name: found for name, found in bits.items() if name.partition(": ")[0] == problem}
        wanted = next((reference[name] for name in own if name in reference), None)
        kind = ALONE if wanted is None else DIFFERS
        wanted = wanted or Counter(own.values()).most_common(1)[0][0]
        for name, found in own.items():
            if found != wanted:
                yield Finding("fpsan", name.partition(": ")[2].split()[0], kind, "error", 1, Counter((name,)),
                              Counter((problem,)), first=[f"{name}: {found}, wanted {wanted}"])  # fmt: skip
