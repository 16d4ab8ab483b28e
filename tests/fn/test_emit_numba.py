"""The emitted loops, compiled by numba, against float64: the same list as for Triton."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fn.function_cases import CASES, Case
from weft.errors import UnsupportedError
from weft.fn import Pointwise

pytest.importorskip("numba")

N = 512
QUICK = (torch.float32, torch.float64, torch.int64, torch.bool)  # slow runs compile for all


def taken(case: Case) -> Iterator[Any]:
    """A run for each type, quick ones for those of `QUICK` that the case has."""
    quick = [dtype for dtype in QUICK if dtype in case.dtypes] or case.dtypes[:1]
    for dtype in case.dtypes:
        marks = () if dtype in quick else pytest.mark.slow
        yield pytest.param(case, dtype, id=f"{case}-{dtype}", marks=marks)


RUNS = [run for case in CASES for run in taken(case)]


def run(function: Pointwise, *tensors: torch.Tensor) -> torch.Tensor:
    """The function's results, over poison."""
    from weft.cpu.gett.stages import loop_of, words_of
    from weft.cpu.jit import compiled

    assert isinstance(function.result, torch.dtype)
    out = torch.full((N,), 77).to(function.result)
    try:
        loop = loop_of(function, (0,))
    except UnsupportedError as error:
        pytest.skip(str(error))
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(compiled(loop.source))
    pointers = (ctypes.c_int64 * (len(tensors) + 1))(*(each.data_ptr() for each in (*tensors, out)))
    constants = words_of(loop.constants)
    entry(pointers, N, (ctypes.c_int64 * 1)(constants.ctypes.data))
    return out


def in_double(case: Case, inputs: list[torch.Tensor], eager: torch.Tensor) -> torch.Tensor:
    """The function of the same elements in float64; where the dtype is part of the function, what torch gives."""
    if not inputs[0].dtype.is_floating_point:
        return eager.double()
    result = (case.truth or case.fn)(*(tensor.double() for tensor in inputs))
    return result.double() if isinstance(result, torch.Tensor) else eager.double()


@pytest.mark.parametrize(("case", "dtype"), RUNS)
def test_every_operation_against_double_precision(case: Case, dtype: torch.dtype) -> None:
    """Special values included: signed zeros, subnormals, infinities, NaN, the largest numbers."""
    function, inputs = case.trace(dtype), case.inputs(dtype)
    out, eager = run(function, *inputs), function(*inputs)
    assert isinstance(eager, torch.Tensor)
    assert out.dtype == eager.dtype == function.result
    if not out.dtype.is_floating_point:
        torch.testing.assert_close(out, eager, rtol=0, atol=0)
        return
    truth, info = in_double(case, inputs, eager), torch.finfo(out.dtype)
    terms = torch.stack([truth.abs()] + [x.double().abs() for x in inputs if case.cancels]).nan_to_num(0).amax(0)
    ulp = (terms * info.eps).clamp(min=info.tiny * info.eps)
    bound = (1 if dtype == torch.float16 else 4) * ulp + 2 * (eager.double() - truth).abs().nan_to_num(0)
    close = (out.double() - truth).abs() <= bound
    same = (out == eager) | (out.double() == truth) | (out.isnan() & (eager.isnan() | truth.isnan()))
    unseen = torch.stack([x.abs() > case.reach for x in inputs]).any(0)
    wrong = ~(close | same | unseen)
    assert not wrong.any(), [
        f"f{tuple(x[i].item() for x in inputs)} = {out[i].item()}, torch {eager[i].item()}, truth {truth[i].item()}"
        for i in wrong.nonzero().flatten()[:4].tolist()
    ]
