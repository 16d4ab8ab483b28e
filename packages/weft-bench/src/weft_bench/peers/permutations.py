"""Who moves data: weft, torch and NumPy, for permutations (ways run on x and d) and in place (ways run on x)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.selftest.case import PermuteCase
from weft_bench.cases import FUNCTIONS
from weft_bench.peers.registry import Prepared, Way, first_line
from weft_bench.problems import PermutationTensors, TransposeTensors


class _NoSettings:
    """Nothing has to be switched."""

    def settings(self, case: PermuteCase) -> AbstractContextManager[Any]:
        return nullcontext()


class WeftPermute(_NoSettings):
    """`weft.plan_permute`, planned once for each case."""

    name = "weft"

    def prepare(self, case: PermuteCase, tensors: PermutationTensors) -> Prepared | str:
        from weft.api.permute import plan_permute

        function = FUNCTIONS[case.fn] if case.fn else None
        try:
            planned = plan_permute(tensors.x, case.equation, fn=function, out=tensors.d, out_dtype=case.out_dtype)
        except UnsupportedError as error:
            return first_line(error)

        def run(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = planned(x, out=d)
            return result

        about = {"schedule": str(planned.schedule), "workspace bytes": planned.workspace_bytes}
        return Prepared([Way("", run, about)])


class TorchPermute(_NoSettings):
    """``d.copy_(x.permute(...))``: what ``x.permute(...).contiguous()`` does, into a place that is given.

    A function runs before, as an operation of its own; a cast is part of the copy.
    """

    name = "torch"

    def prepare(self, case: PermuteCase, tensors: PermutationTensors) -> Prepared | str:
        function = FUNCTIONS[case.fn] if case.fn else None

        def run(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
            return d.copy_((function(x) if function else x).permute(case.dims))

        try:
            run(*tensors)  # torch says what it lacks when it is called
        except RuntimeError as error:
            return first_line(error)
        return Prepared([Way("", run, {"separate kernels": [case.fn] if case.fn else []})])


class NumpyPermute(_NoSettings):
    """``numpy.copyto(d, x.transpose(...))``, on the CPU."""

    name = "numpy"

    def prepare(self, case: PermuteCase, tensors: PermutationTensors) -> Prepared | str:
        if tensors.x.device.type != "cpu":
            return "numpy runs on the CPU"
        if case.fn:
            return "the functions are PyTorch's"
        if torch.bfloat16 in (case.dtype, case.d_dtype):
            return "NumPy has no bfloat16"

        def run(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
            target = d.numpy()
            target[...] = x.numpy().transpose(case.dims)
            return d

        return Prepared([Way("", run)])


class WeftTranspose(_NoSettings):
    """`weft.transpose_`."""

    name = "weft"

    def prepare(self, case: PermuteCase, tensors: TransposeTensors) -> Prepared | str:
        from weft.api.transpose import transpose_

        def run(x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = transpose_(x)
            return result

        try:
            run(tensors.x)
        except UnsupportedError as error:
            return first_line(error)
        return Prepared([Way("", run)])


class TorchTranspose(_NoSettings):
    """Out of place into memory of the matrix's size, and copied back: torch has no transposition in place."""

    name = "torch"

    def prepare(self, case: PermuteCase, tensors: TransposeTensors) -> Prepared | str:
        rows, columns = case.shape

        def run(x: torch.Tensor) -> torch.Tensor:
            transposed = x.t().contiguous()
            return x.view(columns, rows).copy_(transposed)

        about = {"workspace bytes": tensors.x.nbytes, "separate kernels": ["transposition out of place", "copy back"]}
        return Prepared([Way("", run, about)], note="out of place, then copied back")
