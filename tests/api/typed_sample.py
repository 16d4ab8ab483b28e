"""A program that uses weft's types: mypy (and pyright, where it is installed) read it, see test_types.py."""

from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import weft

a, b = torch.ones(2, 3), torch.ones(3, 4)
x: np.ndarray[tuple[int, int], np.dtype[np.float64]] = np.ones((2, 3))


def relu(value: torch.Tensor) -> torch.Tensor:
    return torch.relu(value)


def both(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return value, value + 1


equation: weft.Equation = "mk,kn->mn"
function: weft.Function = relu
algebra: weft.Algebra = weft.algebra.max_plus

assert_type(weft.contract(equation, a, b), torch.Tensor)
assert_type(weft.contract(equation, a, b, precision="tf32", backend="cpu", out_dtype="fp16"), torch.Tensor)
assert_type(weft.contract(equation, a, b, epilogue=relu, operands={"bias": ("n", b[0])}), torch.Tensor)
assert_type(weft.contract(equation, a, b, epilogue=both), tuple[torch.Tensor, ...])
assert_type(weft.matmul(a, b, transpose_a=False), torch.Tensor)
assert_type(weft.permute(a, "ab->ba", fn=relu), torch.Tensor)
y: NDArray[Any] = weft.contract(equation, x, x.T)
assert_type(weft.plan(equation, a, b, algebra=algebra, tune="model"), weft.Plan)
assert_type(weft.plan(equation, a, b).report(), weft.Report)
d, k = weft.contract(equation, a, b, algebra="max_plus", return_arg=True)
assert_type(d, torch.Tensor)

weft.contract(equation, a, b, backend="gpu")  # error: no such backend
weft.contract(equation, a, b, bias=b)  # error: no such keyword
weft.plan(equation, a, b, tune="fast")  # error: no such way to tune
weft.permute(a, "ab->ba", epilogue=relu)  # error: no such keyword
