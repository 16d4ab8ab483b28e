"""The emitted loops, compiled by numba, against float64: the same list as for Triton."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fn.function_cases import CASES, Case, wrong_elements
from weft.errors import UnsupportedError
from weft.fn import Pointwise

pytest.importorskip("numba")

N = 512
QUICK = (torch.float32, torch.int64, torch.bool)  # slow runs compile for all, float64 too


def taken(case: Case) -> Iterator[Any]:
    """A run for each type, quick ones for those of `QUICK` that the case has."""
    quick = [dtype for dtype in QUICK if dtype in case.dtypes] or case.dtypes[:1]
    for dtype in case.dtypes:
        marks = () if dtype in quick else pytest.mark.slow
        yield pytest.param(case, dtype, id=f"{case}-{dtype}", marks=marks)


RUNS = [run for case in CASES for run in taken(case)]


def run(function: Pointwise, *tensors: torch.Tensor) -> torch.Tensor:
    """The function's results, over poison."""
    from weft.cpu.gett.stages import StageSource, words_of
    from weft.cpu.jit import compiled
    from weft.fn.pointwise import inlined

    assert isinstance(function.result, torch.dtype)
    out = torch.full((N,), 77).to(function.result)
    try:
        loop = StageSource(function.dtypes[0], (0,))
        (found,) = inlined(loop.writer, function, [loop.value, *(loop.read(dtype) for dtype in function.dtypes[1:])])
        loop.write(found, found.dtype)
    except UnsupportedError as error:
        pytest.skip(str(error))
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(compiled(loop.source))
    pointers = (ctypes.c_int64 * (len(tensors) + 1))(*(each.data_ptr() for each in (*tensors, out)))
    constants = words_of(loop.constants)
    entry(pointers, N, (ctypes.c_int64 * 1)(constants.ctypes.data))
    return out


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("case", "dtype"), RUNS)
def test_every_operation_against_double_precision(case: Case, dtype: torch.dtype) -> None:
    """Special values included: signed zeros, subnormals, infinities, NaN, the largest numbers."""
    function, inputs = case.trace(dtype), case.inputs(dtype)
    wrong = wrong_elements(case, function, inputs, run(function, *inputs))
    assert not wrong, wrong
