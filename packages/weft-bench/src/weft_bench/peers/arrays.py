"""NumPy and opt_einsum as peers on the CPU. Their products go to the BLAS that NumPy was built with."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from weft.errors import UnsupportedError
from weft_bench.cases import Case
from weft_bench.peers.pytorch import working_type
from weft_bench.peers.registry import Prepared, Tensors, Way, first_line
from weft_bench.peers.views import einsum_text


class _ArrayPeer:
    """Common base of both: tensors as arrays without a copy, half precision widened to what BLAS can multiply."""

    name: str

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        if tensors.a.device.type != "cpu":
            return f"{self.name} runs on the CPU"
        if case.algebra != "plus_times":
            return f"products and sums alone, not {case.algebra}"
        if any(dtype is torch.bfloat16 for dtype in case.dtypes):
            return "NumPy has no bfloat16"
        if case.a_fn or case.b_fn or case.c_fn or case.epilogue:
            return "the functions are PyTorch's"
        if isinstance(case.precision, torch.dtype):
            return f"NumPy does not round operands to {case.precision}"
        try:
            text = einsum_text(case)
        except UnsupportedError as error:
            return first_line(error)
        work = _array_type(torch.float32 if working_type(case) is torch.float16 else working_type(case))
        contiguous = case.layouts[3] == "contiguous"

        def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
            x, y = (z.resolve_conj().numpy().astype(work, copy=False) for z in (a, b))
            value = self.einsum(text, x, y)
            if case.alpha != 1:
                value = value * case.alpha
            if c is not None and case.beta != 0:
                value = value + case.beta * c.numpy()
            target = d.numpy() if not contiguous else np.empty(d.shape, _array_type(d.dtype))
            np.copyto(target, value, casting="unsafe")
            return torch.from_numpy(target)

        try:
            run(*tensors)
        except (TypeError, ValueError) as error:
            return first_line(error)
        return Prepared([Way("", run)], note="in float32" if torch.float16 in case.dtypes[:2] else "")

    def einsum(self, text: str, x: np.ndarray, y: np.ndarray) -> Any:
        raise NotImplementedError

    def settings(self, case: Case) -> AbstractContextManager[Any]:
        return nullcontext()


class NumpyEinsum(_ArrayPeer):
    """`numpy.einsum`, allowed to use BLAS."""

    name = "numpy"

    def einsum(self, text: str, x: np.ndarray, y: np.ndarray) -> Any:
        return np.einsum(text, x, y, optimize=True)


class OptEinsum(_ArrayPeer):
    """`opt_einsum.contract` on NumPy arrays."""

    name = "opt_einsum"

    def einsum(self, text: str, x: np.ndarray, y: np.ndarray) -> Any:
        import opt_einsum

        return opt_einsum.contract(text, x, y)


def _array_type(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype
