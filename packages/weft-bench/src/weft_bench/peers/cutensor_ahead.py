"""cuTENSOR's kernels, compiled by other processes before a suite begins.

Just in time the library takes seconds for each contraction, on one core; the measuring takes less. A process for each
core compiles a share of the suite's contractions and writes what the library then holds to a file, and the library of
this process reads the files. Its plans find their kernels there, the same as they would have compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.tune.compile_pool import default_jobs
from weft_bench.cases import Case
from weft_bench.compile_ahead import meta
from weft_bench.peers import cutensor_library
from weft_bench.peers.cutensor import Cutensor
from weft_bench.peers.cutensor_library import CutensorError, Library
from weft_bench.peers.registry import Tensors, first_line

_WORTH = 2  # contractions a process: importing torch and waking the library take as long


def compile_kernels(sides: Iterable[Any], cases: Sequence[Any], device: torch.device, jobs: int | None = None) -> None:
    """Have the kernels that cuTENSOR among `sides` needs for `cases` compiled, and wait for them.

    `jobs`: processes at once, by default one for each core but one. What goes wrong in one is warned of, and its
    kernels are compiled when their cases come.
    """
    peer = next((side for side in sides if isinstance(side, Cutensor)), None)
    alike = _alike(case for case in cases if isinstance(case, Case))
    jobs = min(default_jobs() if jobs is None else jobs, len(alike) // _WORTH)
    library = peer.opened() if peer is not None and device.type == "cuda" and jobs > 1 else None
    if peer is None or library is None:
        return
    with TemporaryDirectory(prefix="weft-cutensor-") as folder:
        files = [Path(folder) / f"{number}.kernels" for number in range(jobs)]
        shares = [([*chain(*alike[number::jobs])], file, device, peer.quick) for number, file in enumerate(files)]
        with _processes(jobs) as pool:
            futures = [pool.submit(_compile_share, *share) for share in shares]
        for future, file in zip(futures, files, strict=True):
            try:
                future.result()
                library.read_kernels(file)
            except Exception as error:  # of another process: anything
                warnings.warn(f"cuTENSOR's kernels are not all compiled ahead: {first_line(error)}", stacklevel=2)


def compile_into(library: Library, cases: Iterable[Case], file: Path, quick: bool = False) -> None:
    """Compile the kernels of `cases` and write all that the library holds to `file`."""
    peer = Cutensor(library, quick=quick)
    for case in cases:
        with suppress(CutensorError, UnsupportedError, RuntimeError):  # its measurement will say what is wrong
            peer.compile(case, meta_tensors(case))
    library.write_kernels(file)


def meta_tensors(case: Case) -> Tensors:
    """Tensors that lie as the case's do, without memory."""
    shapes = (*case.shapes, case.d_shape, case.d_shape)
    dtypes = (*case.dtypes, case.dtypes[2])
    a, b, c, d = map(meta, shapes, dtypes, case.layouts, (*case.conjugate, False, False))
    return Tensors(a, b, c if case.add else None, d)


def _alike(cases: Iterable[Case]) -> list[list[Case]]:
    """Cases that may share kernels, together: they differ in nothing but functions and factors."""
    found: dict[Any, list[Case]] = {}
    for case in cases:
        key = (case.equation, case.shapes, case.dtypes, case.precision, case.layouts, case.conjugate)
        found.setdefault(key, []).append(case)
    return list(found.values())


def _processes(jobs: int) -> Executor:
    return ProcessPoolExecutor(jobs, get_context("spawn"))  # a forked process cannot use the GPU


def _compile_share(cases: Sequence[Case], file: Path, device: torch.device, quick: bool) -> None:
    with torch.cuda.device(device):
        torch.zeros(1, device=device)  # makes the context that the library asks for
        compile_into(cutensor_library.load(), cases, file, quick)
