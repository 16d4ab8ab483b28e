"""The process that a tool looks at: it runs the jobs that a file names, one after the other, each to its end.

Before each job its name goes to standard output, after `MARK`; a line of the tool's that follows belongs to it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
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
SETTLE = 0.02  # seconds for a tool to write what it found


def main() -> None:
    names = json.loads(Path(sys.argv[1]).read_text())
    device = torch.device("cuda", torch.cuda.current_device())
    target = small_target(target_of("triton", device))
    torch.zeros(1, device=device)  # the context, before the first mark
    for job in jobs(target, lambda family: True, set(names)):
        _say(f"{MARK}{job}")
        _attempt(partial(_run, job, target))
    for rows, columns in MATRICES:
        if (name := in_place(rows, columns)) in names:
            _say(f"{MARK}{name}")
            _attempt(partial(_transpose, rows, columns, device))
    _say(DONE)


def _run(job: Job, target: Target) -> None:
    launch = job.build(target)
    Problem(job.description, target.device).call(launch)(*operands(job.description, target.device))


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
    time.sleep(SETTLE)


def in_place(rows: int, columns: int) -> str:
    """The name of the job that transposes a matrix where it lies."""
    return f"{IN_PLACE}: {rows}x{columns}"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
