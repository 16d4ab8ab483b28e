"""`trace` and the recorded function on the CPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fn.function_cases import CASES, Case
from weft.errors import DTypeError, UnsupportedError
from weft.fn import trace

RUNS = [pytest.param(case, dtype, id=f"{case}-{dtype}") for case in CASES for dtype in case.dtypes]


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("case", "dtype"), RUNS)
def test_the_graph_does_what_the_function_does(case: Case, dtype: torch.dtype) -> None:
    function, inputs = case.trace(dtype), case.inputs(dtype)
    expected = case.fn(*(tensor.clone() for tensor in inputs))
    if not isinstance(expected, torch.Tensor):
        expected = torch.full_like(inputs[0], expected)
    out = function(*inputs)
    assert out.dtype == function.result
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (4, 1, 2), (2, 3, 4, 5)])
def test_a_graph_runs_on_any_shape(shape: tuple[int, ...]) -> None:
    function = trace(lambda x: F.elu(x) * 2, (torch.float64,))
    x = torch.randn(shape, dtype=torch.float64)
    assert torch.equal(function(x), F.elu(x) * 2)


def test_operands_come_by_name_and_broadcast() -> None:
    def fn(acc: torch.Tensor, *, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return acc * scale + bias

    function = trace(fn, (torch.float32,) * 3, names=("bias", "scale"), hook="epilogue")
    assert function.inputs == ("acc", "bias", "scale")
    assert function.dtypes == (torch.float32,) * 3
    acc, bias, scale = torch.randn(4, 5), torch.randn(5), torch.randn(4, 1)
    torch.testing.assert_close(function(acc, bias, scale), acc * scale + bias)


def test_operands_of_other_dtypes_promote_as_blocks() -> None:
    function = trace(lambda x, b, i: x + b * i, (torch.float16, torch.float32, torch.int64), names=("b", "i"))
    assert function.result == torch.float32
    x, b, i = torch.randn(3).half(), torch.tensor(0.5), torch.arange(3)
    assert torch.equal(function(x, b, i), x + b.expand(3) * i)


@pytest.mark.parametrize(("number", "dtype", "result"), [
    (2.5, torch.float16, torch.float16),
    (2, torch.int32, torch.int32),
    (0.5, torch.int32, torch.float32),
    (True, torch.float64, torch.float64),
    (1j, torch.complex64, torch.complex64),
])  # fmt: skip
def test_a_number_is_a_constant_function(number: Any, dtype: torch.dtype, result: torch.dtype) -> None:
    function = trace(lambda x: number, (dtype,))
    out = function(torch.zeros(2, 3, dtype=dtype))
    assert function.result == result == out.dtype
    assert out.shape == (2, 3)
    assert (out == number).all()


def test_a_constant_function_has_the_shape_of_all_inputs() -> None:
    function = trace(lambda x, b: b, (torch.float32,) * 2, names=("b",))
    assert function(torch.zeros(4, 3), torch.ones(3)).shape == (4, 3)


def test_several_results() -> None:
    function = trace(lambda x: (x + 1, x > 0, 2.0), (torch.float32,))
    first, second, third = function(torch.tensor([1.0, -1.0]))
    assert function.result == (torch.float32, torch.bool, torch.float32)
    assert first.tolist() == [2, 0]
    assert second.tolist() == [True, False]
    assert third.tolist() == [2, 2]


def test_an_in_place_function_leaves_its_argument_alone() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.detach()
        y.mul_(2).add_(1)  # x is the same memory
        return x

    function = trace(fn, (torch.float32,))
    x = torch.tensor([1.0, 2.0])
    assert function(x).tolist() == [3, 5]
    assert x.tolist() == [1, 2]


def test_in_place_keeps_the_dtype_of_the_memory() -> None:
    function = trace(lambda x, b: x.mul_(b), (torch.float16, torch.float32), names=("b",))
    assert function.result == torch.float16


@pytest.mark.parametrize("fn", [
    torch.tanh,
    F.elu,
    functools.partial(F.leaky_relu, negative_slope=0.3),
    functools.partial(torch.clamp, min=0.0),
    torch.nn.GELU(),
    torch.nn.ReLU(inplace=True),
    torch.nn.Dropout(0.5).eval(),
    lambda x, slope=0.1: torch.where(x > 0, x, x * slope),
    torch.Tensor.exp,
])  # fmt: skip
def test_callables_of_every_kind(fn: Callable[..., Any]) -> None:
    x = torch.linspace(-2, 2, 7)
    assert torch.equal(trace(fn, (torch.float32,))(x), fn(x.clone()))


def test_constants_made_inside_the_function() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        two = torch.tensor(2.0, device=x.device)
        tenth = torch.full((), 0.1, dtype=x.dtype)
        ones = torch.ones(x.shape, dtype=x.dtype)
        return x * two.item() * tenth + ones * float(two) + x.new_zeros(())

    x = torch.randn(5, dtype=torch.float64)
    torch.testing.assert_close(trace(fn, (torch.float64,))(x), fn(x), rtol=0, atol=0)


def test_constants_changed_in_place() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        two = torch.tensor(2.0)
        three = two.clone().add_(1)
        zero = two.clone().zero_()
        assert (two.item(), three.item(), zero.item()) == (2, 3, 0)
        return x * two + three + zero

    assert trace(fn, (torch.float32,))(torch.ones(1)).item() == 5


def test_divisors_that_happen_to_be_zero_while_recording() -> None:
    function = trace(lambda x: 10 // (x - x.clamp(max=103)).clamp(min=0), (torch.int32,))
    assert function(torch.tensor([104, 105], dtype=torch.int32)).tolist() == [10, 5]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_values_are_cast_before_they_are_used(dtype: torch.dtype) -> None:
    function = trace(lambda x: x.float() * 0.5, (dtype,))
    assert function.result == torch.float32
    assert function(torch.ones(2).to(dtype)).tolist() == [0.5, 0.5]
    assert "x0.to(tl.float32)" in function.source


def test_the_identity_function_is_nothing() -> None:
    function = trace(lambda x: x, (torch.bfloat16,))
    assert function.source.splitlines()[-1] == "    return x0"
    x = torch.randn(3, dtype=torch.bfloat16)
    assert torch.equal(function(x), x)


def test_numbers_closed_over_are_baked_in() -> None:
    alpha = 0.25
    function = trace(lambda x: x * alpha, (torch.float32,))
    assert function(torch.ones(1)).item() == 0.25


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("fn", [
    lambda z: z.conj() * 2,
    torch.conj,
    lambda z: z.real - z.imag,
    lambda z: z.conj().imag,
    torch.abs,
    torch.angle,
    torch.exp,
    lambda z: z * (1 + 2j) + 3,
    lambda z: torch.complex(z.imag, z.real),
    lambda z: torch.polar(z.real, z.imag),
    torch.sgn,
    torch.sigmoid,
])  # fmt: skip
def test_complex_values_on_the_cpu_only(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    function = trace(fn, (dtype,))
    z = torch.randn(6, dtype=dtype)
    out = function(z)
    assert not out.is_conj()
    torch.testing.assert_close(out, fn(z).resolve_conj(), rtol=0, atol=0)
    with pytest.raises(UnsupportedError, match="complex values do not run on the Triton backend yet"):
        _ = function.source
    assert function.flops >= 0


def test_wrong_dtypes_are_refused() -> None:
    with pytest.raises(DTypeError, match=r"traced for \(torch.float32,\)"):
        trace(torch.exp, (torch.float32,))(torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize(("fn", "flops"), [
    (torch.relu, 1),
    (lambda x: x, 0),
    (lambda x: 1.0, 0),
    (lambda x: x.double(), 0),
    (lambda x: x * 2 + 1, 2),
    (F.leaky_relu, 2),  # multiply, maximum
    (F.elu, 1),  # one elementary function
    (lambda x: F.elu(x, 0.5), 1),
])  # fmt: skip
def test_flops_count_operations_for_each_element(fn: Callable[..., Any], flops: int) -> None:
    assert trace(fn, (torch.float32,)).flops == flops


def test_a_trace_does_not_see_the_modes_around_it() -> None:
    """Autocast, inference mode, gradients and a fake mode around the call change nothing in the graph or its run."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def fresh() -> Any:
        return trace(
            eval("lambda x: (x * 0.5).exp() + torch.pow(x, 2).to(x.dtype)", {"torch": torch}), (torch.float32,)
        )

    plain, x = fresh(), torch.randn(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fresh().identity == plain.identity
        assert plain(x).dtype == torch.float32
    with torch.inference_mode():
        assert fresh().identity == plain.identity
    with torch.enable_grad():
        assert fresh().identity == plain.identity
    with FakeTensorMode():
        assert fresh().identity == plain.identity


def test_the_default_dtype_belongs_to_the_trace() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x / 3

    assert trace(fn, (torch.int32,)).result == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert trace(fn, (torch.int32,)).result == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_infinite_constants_reach_the_cpu_graph() -> None:
    function = trace(lambda x: torch.where(x > 0, x, -math.inf), (torch.float32,))
    assert function(torch.tensor([1.0, -1.0])).tolist() == [1, -math.inf]
