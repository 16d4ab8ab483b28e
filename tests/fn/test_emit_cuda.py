"""Emitted CUDA C++, compiled for the CPU, against float64: the same list as for Triton and for numba."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from fn.compiled_cuda import HOST, library
from fn.function_cases import CASES, wrong_elements
from weft.errors import UnsupportedError
from weft.fn import Pointwise, trace
from weft.fn.cuda import CudaWriter, conversions, loading, stored_type
from weft.fn.pointwise import inlined
from weft.fn.writer import SHORT, Held

N = 512
RUNS = [(case, dtype) for case in CASES for dtype in case.dtypes]


def loop(name: str, function: Pointwise) -> str:
    """A loop over elements of a function's inputs and results."""
    w = CudaWriter()
    given = [
        Held(w.typed(f"{loading(dtype)}(x{at}[i])", torch.float32 if dtype in SHORT else dtype), dtype)
        for at, dtype in enumerate(function.dtypes)
    ]
    for at, value in enumerate(inlined(w, function, given)):
        w.line(f"y{at}[i] = {w.stored(value.name, value.dtype, value.dtype)};")
    inputs = [f"const {stored_type(dtype)}* x{at}" for at, dtype in enumerate(function.dtypes)]
    results = [f"{stored_type(dtype)}* y{at}" for at, dtype in enumerate(function.results)]
    body = "\n    ".join(w.lines)
    head = f'extern "C" void {name}({", ".join(inputs + results)})'
    return f"{head} {{\n  for (int i = 0; i < {N}; ++i) {{\n    {body}\n  }}\n}}\n"


@pytest.fixture(scope="module")
def loops() -> Any:
    """All loops in one library, which is compiled once."""
    texts = []
    for at, (case, dtype) in enumerate(RUNS):
        function = case.trace(dtype)
        text = loop(f"f{at}", function)
        if "erfinv" not in text:  # of which C++ has none
            texts.append(text)
    return library(HOST + conversions() + "".join(texts))


@pytest.mark.parametrize("at", range(len(RUNS)), ids=[f"{case}-{dtype}" for case, dtype in RUNS])
def test_every_operation_against_double_precision(at: int, loops: Any) -> None:
    """Special values included: signed zeros, subnormals, infinities, NaN, the largest numbers."""
    case, dtype = RUNS[at]
    function, inputs = case.trace(dtype), case.inputs(dtype)
    if not hasattr(loops, f"f{at}"):
        pytest.skip("C++ has no inverse of the error function")
    assert isinstance(function.result, torch.dtype)
    out = torch.full((N,), 77).to(function.result)
    getattr(loops, f"f{at}")(*(ctypes.c_void_p(each.data_ptr()) for each in (*inputs, out)))
    wrong = wrong_elements(case, function, inputs, out)
    assert not wrong, wrong


@pytest.mark.parametrize("dtype", SHORT)
def test_short_types_there_and_back(dtype: torch.dtype) -> None:
    """Every number of a type, and roundings of numbers between them, subnormal and past the largest ones."""
    bits = torch.arange(2 ** (8 * dtype.itemsize) - N if dtype.itemsize == 2 else 0, 2 ** (8 * dtype.itemsize))
    numbers = bits.repeat(2)[:N].to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype)
    spread = torch.randn(N, generator=torch.Generator().manual_seed(0)) * torch.logspace(-9, 6, N)
    spread[:6] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3e38])
    text = loop("widened", trace(lambda x: x.float(), (dtype,), hook="fn"))
    text += loop("rounded", trace(lambda x: x.to(dtype), (torch.float32,), hook="fn"))
    made = library(HOST + conversions() + text)
    wide, narrow = torch.empty(N), torch.empty(N, dtype=dtype)
    made.widened(ctypes.c_void_p(numbers.data_ptr()), ctypes.c_void_p(wide.data_ptr()))
    made.rounded(ctypes.c_void_p(spread.data_ptr()), ctypes.c_void_p(narrow.data_ptr()))
    torch.testing.assert_close(wide, numbers.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(narrow.float(), spread.to(dtype).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("fn", "dtype", "sentence"),
    [
        (lambda x, y: x * y, torch.complex64, "a function of complex values has no code in CUDA C"),
        (lambda x, y: x**y, torch.int32, "an integer to the power of a tensor has no code in CUDA C"),
    ],
    ids=["complex", "power"],
)
def test_what_has_no_code_is_named(fn: Any, dtype: torch.dtype, sentence: str) -> None:
    function = trace(fn, (dtype, dtype), names=("y",), hook="fn")
    with pytest.raises(UnsupportedError, match=sentence):
        inlined(CudaWriter(), function, [Held("x", dtype), Held("y", dtype)])
