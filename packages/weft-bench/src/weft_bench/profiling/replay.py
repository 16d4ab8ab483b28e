"""A process that makes one call between the profiler's marks: ``python -m weft_bench.profiling.replay FILE``.

The file holds a recipe of `weft_bench.profiling.subject`. Two calls come before, in which all is planned and compiled.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import torch


def main(file: str) -> None:
    """Make the call that the recipe in `file` describes."""
    call, tensors = pickle.loads(Path(file).read_bytes()).make()
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
