"""The process that a tool looks at: it runs the jobs that a file names, one after the other, each to its end.

Before each job its name goes to standard output, after `MARK`; a line of the tool's that follows belongs to it. Where
Triton instruments kernels by `fpsan`, digests of the results follow, of the reference's too where there is one. A
kernel that ends the CUDA context ends the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

import weft
from sanitize.jobs import IN_PLACE, MATRICES, Job, jobs, small_target
from sanitize.tensors import operands
from weft.oracle.problem import Problem
from weft.planner.schedule import ResourceError, Target
from weft.planner.target import target_of

MARK = "@job "
REFUSED = "@refused "
FAILED = "@failed "
DONE = "@done"
BITS = "@bits "
REFERENCE = "@reference "
LOST = "@lost"
MODE = "TRITON_INSTRUMENTATION_MODE"
SETTLE = 0.02  # seconds for a tool to write what it found


def main() -> None:
    names = json.loads(Path(sys.argv[1]).read_text())
    device = torch.device("cuda", torch.cuda.current_device())
    target = small_target(target_of("triton", device))
    torch.zeros(1, device=device)  # the context, before the first mark
    if MODE in os.environ:
        import triton

        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))
    for job in jobs(target, lambda family: True, set(names)):
        _say(f"{MARK}{job}")
        _attempt(partial(_hashed if os.environ.get(MODE) == "fpsan" else _run, job, target))
    for rows, columns in MATRICES:
        if (name := in_place(rows, columns)) in names:
            _say(f"{MARK}{name}")
            _attempt(partial(_transpose, rows, columns, device))
    _say(DONE)


def _run(job: Job, target: Target) -> None:
    launch = job.build(target)
    Problem(job.description, target.device).call(launch)(*operands(job.description, target.device))


def _hashed(job: Job, target: Target) -> None:
    """Random values instead of ones and noughts, which are those of the ring, too."""
    from sanitize import ring

    problem = Problem(job.description, target.device)
    launch, given = job.build(target), problem.operands(1)
    beta = problem.scalars[1]
    call = (given.a, given.c, given.d) if given.b is None else (given.a, given.b, given.c, given.d)
    launch(*call, *((1, beta) if given.b is None else (1, beta, given.aux)))
    _say(BITS + _digest([tensor for _, tensor in problem.results(given)]))
    if ring.covers(job.description):
        _say(REFERENCE + _digest([ring.computed(job.description, given)]))


def _digest(tensors: Sequence[torch.Tensor]) -> str:
    """A digest of the elements, whatever lies between them."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _transpose(rows: int, columns: int, device: torch.device) -> None:
    weft.transpose_(torch.arange(rows * columns, dtype=torch.float32).view(rows, columns).to(device))


def _attempt(work: Callable[[], None]) -> None:
    """One job must not keep the others from being run."""
    try:
        work()
        torch.cuda.synchronize()
    except ResourceError as error:
        _say(f"{REFUSED}{error}")
    except Exception as error:
        _say(f"{FAILED}{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            _say(LOST)
            os._exit(1)
    time.sleep(SETTLE)


def in_place(rows: int, columns: int) -> str:
    """The name of the job that transposes a matrix where it lies."""
    return f"{IN_PLACE}: {rows}x{columns}"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
