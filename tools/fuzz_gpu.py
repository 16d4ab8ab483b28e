#!/usr/bin/env python3
"""Random calls on a GPU for some minutes, each held against float64 on the device.

    PYTHONPATH=src python tools/fuzz_gpu.py [--minutes 8.5] [--seed 0] [--workers 8] [--device cuda] [--out FOLDER]

Contractions by torch's operations and by specialised kernels, algebras, permutations, transpositions in place, groups,
networks and chains; a part of them captured first (then eager, then replayed, then replayed on other values), a part by
several host threads at once, each on a stream of its own. Operands and results lie in poisoned memory of any layout,
and nothing beside a result may change. A bound grows with the length of the sum.

Every worker is a process with structures of its own (equation, types, functions) and draws their shapes; few problems
have specialised kernels, which are compiled. Families are not self-tested here, unless WEFT_SELFTEST says so. Prints a
table last and writes `fuzz_gpu.json` to FOLDER, or $OUT. Exit code 1 where anything was wrong. With `--device cpu` the
same runs on the CPU, captures and streams left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("WEFT_SELFTEST", "0")

import torch

import fuzz_jobs as jobs
import weft
from weft.machine.stamp import command, commit

THREADS = 4
CALLS = 4  # of an eager job
FAULTS = 40  # that are kept of a worker, in full
WEIGHTS = {
    "library": 24, "specialised": 12, "auto": 8, "algebra": 9, "permutation": 12, "in place": 5, "group": 7,
    "network": 8, "chain": 3,
}  # fmt: skip
MODES = {"eager": 80, "captured": 12, "threads": 8}


class Tally:
    """The findings of a worker."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()  # by kind and mode
        self.refused: Counter[str] = Counter()
        self.faults: list[dict[str, Any]] = []
        self.wrong: Counter[str] = Counter()
        self.worst: dict[str, float] = defaultdict(float)  # error over bound

    def fault(self, kind: str, mode: str, job: Any, what: str) -> None:
        self.wrong[f"{kind} / {mode}"] += 1
        if len(self.faults) < FAULTS:
            self.faults.append({"kind": kind, "mode": mode, "case": getattr(job, "text", str(job)), "what": what})


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def judged(tally: Tally, kind: str, mode: str, job: jobs.Job, when: str) -> None:
    """Hold what is there against float64."""
    error, what = job.check()
    tally.worst[kind] = max(tally.worst[kind], error)
    if what is not None:
        tally.fault(kind, mode, job, f"{when}: {what}")


def eager(tally: Tally, kind: str, drawn: list[jobs.Job], device: str) -> None:
    """Calls on other values each: what the first ones note serves the later ones."""
    for job in drawn:
        for call in range(1, CALLS + 1):
            if call > 1:
                job.renew()
                job.reset()
            job.run()
            synchronize(device)
            judged(tally, kind, "eager", job, f"eager, call {call}")


def captured(tally: Tally, kind: str, drawn: list[jobs.Job], device: str) -> None:
    """The first call is captured; an eager one comes before the replay."""
    for job in drawn:
        if job.before_capture:
            job.run()
            job.reset()
        graph = graph_of(job.run)
        job.reset()
        job.run()
        synchronize(device)
        judged(tally, kind, "captured", job, "eager, before the replay")
        for when in ("replayed", "replayed on other values"):
            job.reset()
            if when != "replayed":
                job.renew()
            graph.replay()
            synchronize(device)
            judged(tally, kind, "captured", job, when)
        job.reset()
        job.run()
        synchronize(device)
        judged(tally, kind, "captured", job, "eager, after the replay")


def graph_of(work: Callable[[], None]) -> Any:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph, capture_error_mode=random.choice(["global", "thread_local", "relaxed"])):
            work()
    except BaseException:
        torch.cuda.set_stream(stream)  # torch leaves the capturing stream current when a capture fails
        raise
    return graph


def threads(tally: Tally, kind: str, drawn: list[jobs.Job], device: str) -> None:
    """All at once, each on a thread and a stream of its own, twice."""
    errors: dict[int, BaseException] = {}
    gate = threading.Barrier(len(drawn))
    streams = [torch.cuda.Stream() if device == "cuda" else None for _ in drawn]
    synchronize(device)

    def work(at: int) -> None:
        try:
            gate.wait()
            with torch.cuda.stream(streams[at]):
                for _ in range(2):
                    if drawn[at].repeats:
                        drawn[at].run()
                if not drawn[at].repeats:
                    drawn[at].run()
        except BaseException as error:
            errors[at] = error

    every = [threading.Thread(target=work, args=(at,)) for at in range(len(drawn))]
    for one in every:
        one.start()
    for one in every:
        one.join()
    synchronize(device)
    for at, job in enumerate(drawn):
        if (error := errors.get(at)) is None:
            judged(tally, kind, "threads", job, "threads")
        elif isinstance(error, weft.UnsupportedError):
            tally.refused[f"{kind}: {first_line(error)}"] += 1
        else:
            tally.fault(kind, "threads", job, f"{type(error).__name__}: {first_line(error)}")


HOW = {"eager": (eager, 1), "captured": (captured, 1), "threads": (threads, THREADS)}


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]


def worker(number: int, count: int, seconds: float, seed: int, device: str, file: Path, work: int) -> None:
    """Cases until the time is over, and what they found into a file, also now and then."""
    rng = random.Random(seed * 1000 + number)
    random.seed(seed * 1000 + number)
    draw = jobs.Draw(rng, number, count, seed, device, work)
    tally, began, told = Tally(), time.monotonic(), time.monotonic()
    kinds, modes = list(WEIGHTS), [mode for mode in MODES if mode != "captured" or device == "cuda"]
    while time.monotonic() - began < seconds:
        kind = rng.choices(kinds, list(WEIGHTS.values()))[0]
        mode = rng.choices(modes, [MODES[each] for each in modes])[0]
        run, size = HOW[mode]
        drawn: list[jobs.Job] = []
        try:
            drawn = [draw.job(kind) for _ in range(size)]
            run(tally, kind, drawn, device)
        except weft.UnsupportedError as error:
            tally.refused[f"{kind}: {first_line(error)}"] += 1
            continue
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        except Exception as error:
            tally.fault(kind, mode, drawn[-1] if drawn else kind, f"{type(error).__name__}: {first_line(error)}")
            if "CUDA error" in str(error) and "captur" not in str(error):
                break  # nothing that follows would be told from it
        tally.tried[f"{kind} / {mode}"] += size
        if time.monotonic() - told > 10:
            told = time.monotonic()
            save(tally, file)
    save(tally, file)


def save(tally: Tally, file: Path) -> None:
    found = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(tally).items()}
    file.with_suffix(".new").write_text(json.dumps(found))
    file.with_suffix(".new").replace(file)


def gathered(files: list[Path], ended: list[int]) -> dict[str, Any]:
    """All workers' findings as one; a worker that ended by itself is a fault."""
    total: dict[str, Any] = {"tried": Counter(), "refused": Counter(), "wrong": Counter(), "worst": {}, "faults": []}
    for number, (file, status) in enumerate(zip(files, ended, strict=True)):
        found = json.loads(file.read_text()) if file.exists() else {}
        for name in ("tried", "refused", "wrong"):
            total[name].update(found.get(name, {}))
        for kind, value in found.get("worst", {}).items():
            total["worst"][kind] = max(value, total["worst"].get(kind, 0.0))
        total["faults"] += found.get("faults", [])
        if status:
            total["wrong"][f"worker / {number}"] += 1
            total["faults"].append({"kind": "worker", "case": number, "what": f"ended with status {status}"})
    return total


def table(found: dict[str, Any], seconds: float) -> str:
    """A line for each kind: cases by mode, wrong ones, and the largest error over its bound."""
    names = list(WEIGHTS) + (["worker"] if any(name.startswith("worker") for name in found["wrong"]) else [])
    heads = " ".join(f"{head:>8}" for head in (*MODES, "refused"))
    lines = [f"{'kind':<16} {heads} {'wrong':>6} {'error/bound':>12}"]
    for kind in names:
        tried = [found["tried"].get(f"{kind} / {mode}", 0) for mode in MODES]
        refused = sum(count for name, count in found["refused"].items() if name.startswith(f"{kind}:"))
        wrong = sum(count for name, count in found["wrong"].items() if name.startswith(f"{kind} /"))
        counts = " ".join(f"{count:>8}" for count in (*tried, refused))
        lines.append(f"{kind:<16} {counts} {wrong:>6} {found['worst'].get(kind, 0.0):>12.3g}")
    total, wrong = sum(found["tried"].values()), sum(found["wrong"].values())
    return "\n".join([*lines, f"{total} cases in {seconds:.0f} s, {wrong} wrong"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--work", type=int, default=1 << 22, help="most multiply-adds of a case")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", tempfile.gettempdir())))
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    seconds, began = 60 * given.minutes, time.monotonic()
    if given.number is not None:
        worker(given.number, given.workers, seconds, given.seed, given.device, given.file, given.work)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.json" for number in range(given.workers)]
        running = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--workers", str(given.workers),
                              "--number", str(number), "--file", str(file)])
            for number, file in enumerate(files)
        ]  # fmt: skip
        ended = []
        for process in running:
            try:
                ended.append(process.wait(max(1.0, seconds + 30 - (time.monotonic() - began))))
            except subprocess.TimeoutExpired:  # it hangs, or compiles
                process.kill()
                ended.append(process.wait())
        found = gathered(files, ended)
    given.out.mkdir(parents=True, exist_ok=True)
    spent = time.monotonic() - began
    about = {"command": command(), "commit": commit(), "device": device_name(given.device)}
    text = {**about, "seed": given.seed, "seconds": spent, **found}
    (given.out / "fuzz_gpu.json").write_text(json.dumps(text, indent=1))
    for fault in found["faults"][:20]:
        print(json.dumps(fault))
    print(table(found, spent))
    return 1 if found["wrong"] else 0


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


if __name__ == "__main__":
    sys.exit(main())
