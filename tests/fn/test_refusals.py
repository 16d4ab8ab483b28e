"""What cannot be fused is refused with the operation, the line and what to write instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from weft.errors import FunctionError, WeftError
from weft.fn import trace

WEIGHTS = torch.ones(3)
SCALE = torch.tensor(2.0)
LINEAR = torch.nn.Linear(2, 2)


def branches(x: torch.Tensor) -> torch.Tensor:
    if x > 0:
        return x
    return -x


def swallows(x: torch.Tensor) -> torch.Tensor:
    try:
        return x.sum()
    except Exception:
        return x


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "sum": (lambda x: x.sum(), r"aten\.sum cannot be fused \(test_refusals\.py:\d+: .*x\.sum\(\).*reductions belong"),
    "mean": (lambda x: x - x.mean(), r"aten\.mean .*reductions belong"),
    "softmax": (lambda x: F.softmax(x, -1), r"aten\._softmax .*reductions belong"),
    "any": (lambda x: (x > 0).any(), r"aten\.any .*reductions belong"),
    "built-in": (torch.sum, r"fn: aten\.sum cannot be fused; reductions belong"),
    "swallowed": (swallows, r"aten\.sum cannot be fused"),
    "product": (lambda x: torch.mm(x, x), r"aten\.mm .*products over a mode belong into the equation"),
    "transpose": (lambda x: x.T, r"aten\.\w+ .*axes are arranged by the labels of the equation"),
    "index": (lambda x: x[0], r"aten\.select .*one element at a time"),
    "mask": (lambda x: x[x > 0], r"aten\.index .*torch\.where"),
    "view": (lambda x: x.view(-1), r"aten\.view makes a tensor of shape \(35,\) from elements of shape \(5, 7\)"),
    "unsqueeze": (lambda x: x.unsqueeze(0), r"aten\.unsqueeze .*one element at a time"),
    "arange": (lambda x: x + torch.arange(7), r"aten\.arange .*by indices="),
    "random": (lambda x: x + torch.rand_like(x), r"aten\.rand_like .*random numbers.*by operands="),
    "dropout": (F.dropout, r"aten\.bernoulli .*random numbers.*weft\.functions\.dropout"),
    "normal in place": (lambda x: x.normal_(), r"aten\.normal .*random numbers"),
    "if": (branches, r"reads a value into Python.*torch\.where \(test_refusals\.py:\d+: if x > 0:\)"),
    "item": (lambda x: x * x.item(), r"reads a value into Python"),
    "math": (lambda x: math.exp(x), r"reads a value into Python.*torch\.where"),
    "numpy": (lambda x: np.tanh(x), r"hands its value to NumPy"),
    "tensor": (lambda x: x * WEIGHTS, r"closes over a tensor of shape \(3,\), torch\.float32 .*by operands="),
    "0-d tensor": (lambda x: x + SCALE, r"closes over a tensor of shape \(\)"),
    "tensor in torch.where": (lambda x: torch.where(x > 0, x, WEIGHTS), r"closes over a tensor of shape \(3,\)"),
    "module": (LINEAR, r"the module Linear closes over tensors \(weight, bias\)"),
    "buffer": (torch.nn.BatchNorm1d(2, affine=False), r"closes over tensors \(running_mean"),
    "list": (lambda x: x * torch.tensor([1.0, 2.0]), r"must be 0-d, this one has shape \(2,\).*by operands="),
    "extent": (lambda x: x / x.shape[0], r"different things for different shapes"),
    "rank": (lambda x: x * x.dim(), r"different things for different shapes"),
    "bits of another width": (lambda x: x.view(torch.int16), r"aten\.view of torch\.float32 as torch\.int16 .*float64"),
    "out": (lambda x: torch.exp(x, out=x), r"aten\.exp with out= cannot be fused"),
    "nothing": (lambda x: None, r"the function returns nothing"),
    "text": (lambda x: "x", r"the function returns str"),
    "no results": (lambda x: (), r"the function returns nothing"),
    "no pointwise kernel": (torch.digamma, r"aten\.digamma cannot be fused; there is no code for one element of it: "),
    "its own error": (lambda x: x.no_such_method(), r"raised AttributeError: .*no_such_method.*test_refusals"),
    "missing operand": (lambda x, y: x + y, r"missing a required argument: 'y'; the function takes \(x, y\)"),
    "not callable": (3, r"int is not a function"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_fused(name: str) -> None:
    fn, message = REFUSED[name]
    with pytest.raises(FunctionError, match=message) as caught:
        trace(fn, (torch.float32,), hook="fn")
    assert str(caught.value).startswith("fn: ")
    assert isinstance(caught.value, WeftError)


def test_unknown_parameter() -> None:
    with pytest.raises(FunctionError, match=r"no parameter is called 'bias'; the function takes \(acc, b\)"):
        trace(lambda acc, b: acc + b, (torch.float32,) * 2, names=("bias",), hook="epilogue")


def test_dtypes_and_names_must_match() -> None:
    with pytest.raises(FunctionError, match="parameters value, b need as many dtypes"):
        trace(lambda x, b: x + b, (torch.float32,), names=("b",))


def test_moving_to_a_device() -> None:
    with pytest.raises(FunctionError, match=r"fn: .*(moving a value to|cuda)"):
        trace(lambda x: x.to("cuda"), (torch.float32,), hook="fn")


def test_in_place_on_a_value_seen_in_parts() -> None:
    def fn(z: torch.Tensor) -> torch.Tensor:
        real = z.real
        z.mul_(2)
        return real

    with pytest.raises(FunctionError, match=r"aten\.mul_ on memory that is seen through"):
        trace(fn, (torch.complex64,), hook="fn")


def test_a_value_kept_from_an_earlier_recording() -> None:
    kept = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x + kept[0]

    with pytest.raises(FunctionError, match="closes over a tensor"):
        trace(fn, (torch.float32,))
    with pytest.raises(FunctionError, match="kept and used after the recording"):
        kept[0].exp()


@pytest.mark.parametrize("value", [1e39, -1e300, 1e39j, 10**400], ids=["1e39", "-1e300", "1e39j", "long"])
@pytest.mark.parametrize("several", [False, True])
def test_numbers_that_the_type_of_values_does_not_hold(value: complex, several: bool) -> None:
    with pytest.raises(FunctionError, match="a number that float32 does not hold"):
        trace(lambda x: (x, value) if several else value, [torch.float32], hook="epilogue")
