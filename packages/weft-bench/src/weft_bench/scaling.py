"""`weft bench scaling`: the same calls on 1, 2, 4, ... ranks, each number in processes of its own.

torch's launcher starts them (`torch.distributed.run`, which `torchrun` is, too): with NCCL on GPUs, a GPU each, with
gloo on a CPU, a thread each. A contender is weft on so many ranks; the first is that of the most.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.base.figures import counted
from weft.base.interpreter import command, environment
from weft.errors import UnsupportedError
from weft_bench.cases.scaling import PlacedCase, ScalingCase
from weft_bench.entry import Entry
from weft_bench.records import CaseRecord, Result, Run

SCALING = "scaling"  # the suite's name
_TAIL = 600  # characters of a launcher's last words
_LOOK = 0.1  # seconds between looks at what ranks have measured


@dataclass(frozen=True)
class Job:
    """The task of every rank, besides its cases."""

    device: torch.device
    types: Sequence[str] = ()
    work: int | None = None
    rrs: float = 0.02
    budget: float = 1.0
    threads: int | None = None  # of torch for each rank on a CPU: one


def contender(ranks: int) -> str:
    """The name of weft on so many ranks."""
    return counted(ranks, "rank")


def ranks_of(name: str) -> int:
    """The number in such a name."""
    return int(name.partition(" ")[0])


def read_ranks(text: str | None, device: torch.device) -> tuple[int, ...]:
    """Numbers of ranks in order, 1 among them: by default 1, 2, 4, ... up to the GPUs or processors that are there."""
    there = torch.cuda.device_count() if device.type == "cuda" else len(os.sched_getaffinity(0))
    if text is None:
        found = [1]
        while 2 * found[-1] <= there:
            found.append(2 * found[-1])
        return tuple(found)
    try:
        numbers = sorted({1, *(int(word) for word in text.split(","))})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise UnsupportedError(f"--ranks {text!r} is no list of numbers such as 1,2,4")
    if device.type == "cuda" and numbers[-1] > there:
        raise UnsupportedError(f"{numbers[-1]} ranks need as many GPUs: there are {there}")
    return tuple(numbers)


def measure_scaling(
    run: Run, chosen: Sequence[Entry], numbers: Sequence[int], job: Job,
    begun: Callable[[str], None] = lambda _: None, kept: Callable[[CaseRecord, str], None] = lambda *_: None,
) -> None:  # fmt: skip
    """Measure on each of these numbers of ranks what `run` has no samples of yet, into it.

    `begun` is called with each contender, `kept` with a case and the contender of which it has just got a result.
    """
    run.cases += [record_of(entry) for entry in run.missing(chosen)]
    known = {case.name: case for case in run.cases}
    try:
        for number in numbers:
            name = contender(number)
            begun(name)
            left = [case for case in known if known[case].measured(name) is None]
            for case, result in _launched(number, left, job) if left else ():
                known[case].results[name] = result
                kept(known[case], name)
        run.ended = "finished"
    except KeyboardInterrupt:
        run.ended = "interrupted"


def record_of(entry: Entry) -> CaseRecord:
    """All that is known of a case beforehand; work is that of one slice."""
    if isinstance(entry.case, PlacedCase):
        return _record_of_product(entry)
    case: ScalingCase = entry.case
    piece = case.slice
    return CaseRecord(
        name=case.name, group=entry.group, base=entry.base, equation=f"{piece.equation}, {case.slices(1)} slices",
        extents=[], dtypes=(str(piece.dtype).removeprefix("torch."),), precision=piece.precision or "", functions={},
        layouts=(), scaled=entry.scaled, modes={}, floor={},
        work={"flops": 2 * piece.work, "function_flops": 0, "bytes": piece.traffic},
    )  # fmt: skip


def _record_of_product(entry: Entry) -> CaseRecord:
    case: PlacedCase = entry.case
    extents = case.extents(1)
    moved = 2 * extents["k"] * (extents["m"] + extents["n"]) + 4 * extents["m"] * extents["n"]
    return CaseRecord(
        name=case.name, group=entry.group, base=entry.base, equation=case.equation, extents=list(extents.items()),
        dtypes=("float16", "float16", "float32"), precision="", functions={}, layouts=case.placements,
        scaled=entry.scaled, modes={"m": extents["m"], "n": extents["n"], "k": extents["k"], "batch": 1},
        work={"flops": 2 * case.work, "function_flops": 0, "bytes": moved}, floor={},
    )  # fmt: skip


def _launched(number: int, names: Sequence[str], job: Job) -> Iterator[tuple[str, Result]]:
    """The result of each case on so many ranks, as it is measured; last those of cases that the ranks did not reach."""
    with tempfile.TemporaryDirectory(prefix="weft-scaling-") as folder, tempfile.TemporaryFile("w+") as errors:
        file, out = Path(folder) / "job.json", Path(folder) / "found.jsonl"
        threads = None if job.device.type == "cuda" else (job.threads or 1)
        told = {
            "device": job.device.type, "types": list(job.types), "work": job.work, "cases": list(names),
            "rrs": job.rrs, "budget": job.budget, "threads": threads, "out": str(out),
        }  # fmt: skip
        file.write_text(json.dumps(told))
        out.touch()
        line = command(
            "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}",
            "-m", "weft_bench.scaling_rank", str(file),
        )  # fmt: skip
        given = environment(PYTHONSAFEPATH="1", **({"OMP_NUM_THREADS": str(threads)} if threads else {}))
        left = list(names)
        with subprocess.Popen(line, env=given, stderr=errors) as ranks:
            try:
                for entry in map(json.loads, _lines(out, lambda: ranks.poll() is not None)):
                    left.remove(entry["case"])
                    yield entry["case"], _result(entry, number)
            except BaseException:
                ranks.terminate()
                raise
        errors.seek(0)
        last = " ".join(errors.read().split())[-_TAIL:]
    for name in left:
        yield name, Result(wrong=f"the ranks ended with code {ranks.returncode} before this case: {last}")


def _lines(file: Path, ended: Callable[[], bool]) -> Iterator[str]:
    """The lines of a file that grows, until those who write to it have ended."""
    with file.open() as stream:
        text, last = "", False
        while not last:
            last = ended()
            text += stream.read()
            *lines, text = text.split("\n")
            yield from lines
            if not last and not lines:
                time.sleep(_LOOK)


def _result(entry: dict[str, Any], number: int) -> Result:
    if "wrong" in entry:
        return Result(wrong=entry["wrong"])
    samples = tuple(float(f"{sample:.7g}") for sample in entry["samples"])
    return Result(
        samples=samples, timing=entry["timing"], error_over_bound=entry["error_over_bound"],
        about={**entry["about"], "ranks": number},
    )  # fmt: skip
