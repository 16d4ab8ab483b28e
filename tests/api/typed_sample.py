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

assert_type(weft.plan(equation, a, b)(a, b), torch.Tensor)
assert_type(weft.plan(equation, a, b, epilogue=lambda total: torch.relu(total))(a, b, out=d), torch.Tensor)
assert_type(weft.plan(equation, x, x)(x, x), np.ndarray)
assert_type(weft.plan(equation, a, b, epilogue=both)(a, b), tuple[torch.Tensor, ...])
best, place = weft.plan(equation, a, b, algebra="max_plus", return_arg=True)(a, b)
assert_type(best, torch.Tensor)


def kept(p: weft.Plan, q: weft.Network, r: weft.PermutePlan) -> None:
    assert_type(p(a, b, c=d, alpha=0.5, operands={"bias": b[0]}), torch.Tensor)
    assert_type(q(a, b), torch.Tensor)
    assert_type(r(x, beta=0.5), np.ndarray)


def layer(value: torch.Tensor, activation: weft.Function, maybe: weft.Function | None) -> torch.Tensor:
    """A function of which nothing is known but that it is one yields one tensor, as nearly all do."""
    assert_type(weft.contract(equation, value, b, epilogue=activation), torch.Tensor)
    assert_type(weft.einsum("mk,kn->mn", value, b, epilogue=maybe), torch.Tensor)
    assert_type(weft.plan(equation, value, b, epilogue=activation)(value, b), torch.Tensor)
    assert_type(weft.contract(equation, x, x.T, epilogue=activation), np.ndarray)
    return weft.contract(equation, value, b, epilogue=maybe)


net = weft.network("ab,bc,cd->ad", a, b, b, memory_limit="1GB")
assert_type(net, weft.Network)
assert_type(net(a, b, b), torch.Tensor)
assert_type(net(*[a, b, b]), torch.Tensor)
assert_type(net(x, x, x), np.ndarray)
scaled, exponent = weft.network("ab,bc->ac", a, b, strip_exponent=True)(a, b)
assert_type(exponent, torch.Tensor)
assert_type(weft.einsum("ab,bc,cd->ad", a, b, b, optimize="greedy"), torch.Tensor)
assert_type(weft.einsum("ab,bc->ac", *[a, b]), torch.Tensor)
assert_type(weft.einsum("ab->b", x), np.ndarray)
assert_type(weft.einsum(a, (0, 1), b, (1, 2), (0, 2)), torch.Tensor)
assert_type(weft.einsum("ab,bc->ac", a, b, epilogue=both), tuple[torch.Tensor, ...])
assert_type(weft.tensordot(a, b, axes=1), torch.Tensor)
assert_type(weft.inner(x, x), np.ndarray)
assert_type(weft.outer(a, b), torch.Tensor)
assert_type(weft.trace(a), torch.Tensor)
assert_type(weft.transpose(x), np.ndarray)
assert_type(weft.transpose_(a), torch.Tensor)
assert_type(weft.grouped(equation, [(a, b), (a, b)]), list[torch.Tensor])
assert_type(weft.grouped(equation, [(x, x)]), list[np.ndarray])
assert_type(weft.chain("pq,bqc,cr->bpr", a, b, b), torch.Tensor)
assert_type(weft.operator_sum([(None, a, None)], x), np.ndarray)
assert_type(weft.plan_permute(a, "ab->ba")(a), torch.Tensor)

weft.contract(equation, a, b, backend="gpu")  # error: no such backend
weft.contract(equation, a, b, bias=b)  # error: no such keyword
weft.plan(equation, a, b, tune="fast")  # error: no such way to tune
weft.permute(a, "ab->ba", epilogue=relu)  # error: no such keyword
weft.einsum("ab,bc->ac", a, b, path="greedy")  # error: no such keyword
weft.network("ab,bc->ac", a, b, workspace=1)  # error: no such keyword
net(a, b, b, bias=a)  # error: no such keyword
