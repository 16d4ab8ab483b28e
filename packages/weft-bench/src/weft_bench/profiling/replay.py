"""A process that makes one call between the profiler's marks: ``python -m weft_bench.profiling.replay FILE``.

The file holds a recipe of `weft_bench.profiling.subject`. Two calls come before, in which all is planned and compiled.
Where several such processes are under way, `WEFT_REPLAY_TURN` names a file that the one at work on the GPU has locked.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

TURN = "WEFT_REPLAY_TURN"
LONGEST_TURN = 60.0  # seconds: a process that hangs must not hold up the others


def main(file: str) -> None:
    """Make the call that the recipe in `file` describes."""
    recipe = pickle.loads(Path(file).read_bytes())
    with turn(os.environ.get(TURN)):
        _replay(recipe)


@contextmanager
def turn(name: str | None, longest: float = LONGEST_TURN) -> Iterator[None]:
    """The time in which no other process works that waits for the same file; without a name there is nobody else."""
    if name is None:
        yield
        return
    import fcntl  # not on Windows, where a name is never given: there is no profiler to run side by side

    until = time.monotonic() + longest
    with Path(name).open("w") as file:
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
        yield


def _replay(recipe: Any) -> None:
    call, tensors = recipe.make()
    on_gpu = torch.cuda.is_available() and any(
        isinstance(each, torch.Tensor) and each.device.type == "cuda" for each in tensors
    )
    for _ in range(2):
        call(*tensors)
    if not on_gpu:
        return
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    call(*tensors)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main(sys.argv[1])
