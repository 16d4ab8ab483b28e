"""Who runs programs: weft as it is called, torch's plain way, and that compiled."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft_bench.cases.programs import ProgramCase
from weft_bench.peers.pytorch import exact_products, peak_bytes
from weft_bench.peers.registry import Call, Prepared, Way, first_line

CALLS = 20  # before a way is timed: weft's tiers change what serves a call that comes again


class TorchProgram:
    """torch's plain way."""

    name = "torch"

    def prepare(self, case: ProgramCase, tensors: tuple[Tensor, ...]) -> Prepared | str:
        ways, refused = [], {}
        for label, run in self.calls(case).items():
            try:
                for _ in range(CALLS):
                    run(*tensors)
                ways.append(Way(label, run, peak_bytes(run, tensors)))
            except Exception as error:  # of compilers, which know no one class of them
                refused[label] = first_line(error)
        return Prepared(ways, refused) if ways else "; ".join(refused.values())

    def calls(self, case: ProgramCase) -> dict[str, Call]:
        """Ways by their labels."""
        return {"": case.plain}

    def settings(self, case: ProgramCase) -> AbstractContextManager[Any]:
        return exact_products(tf32=False)


class CompiledProgram(TorchProgram):
    """torch's plain way through `torch.compile`."""

    name = "compile"

    def calls(self, case: ProgramCase) -> dict[str, Call]:
        torch.compiler.reset()
        return {"": torch.compile(case.plain, dynamic=False)}


class CupyProgram(TorchProgram):
    """`cupy.einsum` on torch's stream: by cuTENSOR where the variable CUPY_ACCELERATORS names it."""

    name = "cupy"

    def prepare(self, case: ProgramCase, tensors: tuple[Tensor, ...]) -> Prepared | str:
        try:
            import cupy
        except ImportError:
            return "CuPy is not installed"
        if not tensors[0].is_cuda:
            return "it computes on a GPU"
        self._cupy = cupy
        return super().prepare(case, tensors)

    def calls(self, case: ProgramCase) -> dict[str, Call]:
        cupy = self._cupy

        def run(*tensors: Tensor) -> Tensor:
            with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                found = cupy.einsum(case.equation, *map(cupy.from_dlpack, tensors))
                return torch.from_dlpack(cupy.ascontiguousarray(found))

        return {os.environ.get("CUPY_ACCELERATORS", ""): run}


class WeftProgram(TorchProgram):
    """weft's lines as they are, and with kernels that are specialised at once; the faster counts."""

    name = "weft"

    def calls(self, case: ProgramCase) -> dict[str, Call]:
        now = {"now": partial(case.weft, specialize="now")} if case.tiers else {}
        return {"as called": case.weft, **now}
