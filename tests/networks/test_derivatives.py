"""Derivatives of networks against torch's, whole and in slices, within a limit of memory, and twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from nets import chain, net_of, random_net


def gradients(function: Any, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    given = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    result = function(*given)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
    return torch.autograd.grad((result * weights).sum(), given)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slices", [0, 2])
def test_gradients_are_those_of_torch(seed: int, slices: int) -> None:
    net = random_net(seed)
    labels = sorted({label for label in net.equation if label.isalpha()})[:slices]
    planned = weft.network(net.equation, *net.tensors, slices=labels)
    expected = gradients(lambda *given: torch.einsum(net.equation, *given), net.tensors)
    for found, exact in zip(gradients(planned, net.tensors), expected, strict=True):
        torch.testing.assert_close(found, exact)


def test_gradients_within_a_limit_of_memory() -> None:
    net = net_of("abcd,cdef,efgh,ghab->", dict.fromkeys("abcdefgh", 4))
    whole = weft.network(net.equation, *net.tensors)
    planned = weft.network(net.equation, *net.tensors, memory_limit=whole.memory)
    assert not planned.slices  # they are for going back alone, which keeps more
    for found, exact in zip(gradients(planned, net.tensors), gradients(whole, net.tensors), strict=True):
        torch.testing.assert_close(found, exact)


def test_second_derivatives_functions_and_constants() -> None:
    net = chain(3)
    path = [(0, 1), (0, 1)]
    planned = weft.network(net.equation, *net.tensors, functions={"ac": torch.tanh}, optimize=path)
    given = [tensor.clone().requires_grad_() for tensor in net.tensors]
    assert torch.autograd.gradcheck(planned, given)
    assert torch.autograd.gradgradcheck(planned, given)
    fixed = weft.network(net.equation, *net.tensors, constants=[1])
    assert torch.autograd.gradcheck(fixed, (given[0], given[2]))


def test_what_has_no_derivative_says_so() -> None:
    net = chain(3)
    given = [tensor.clone().requires_grad_() for tensor in net.tensors]
    with pytest.raises(weft.UnsupportedError, match="strip_exponent has no derivative"):
        weft.network(net.equation, *net.tensors, strip_exponent=True)(*given)
    with pytest.raises(weft.UnsupportedError, match="out= takes no part"):
        weft.network(net.equation, *net.tensors)(*given, out=torch.empty_like(net.expected))
    with torch.no_grad():
        torch.testing.assert_close(weft.network(net.equation, *net.tensors)(*given), net.expected)


def test_parameters_are_differentiated_after_calls_without() -> None:
    net = chain(3)
    given = [torch.nn.Parameter(tensor.clone()) for tensor in net.tensors]
    planned = weft.network(net.equation, *net.tensors)
    with torch.no_grad():
        for _ in range(3):
            planned(*given)
    assert planned(*given).requires_grad
