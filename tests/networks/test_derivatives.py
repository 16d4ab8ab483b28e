"""Derivatives of networks against torch's, whole and in slices, within a limit of memory, and twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

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


@pytest.mark.parametrize("algebra", ["max_plus", "min_max", "log"])
@pytest.mark.parametrize("slices", ["b", "bc", "ac"])
def test_slices_of_algebras_are_reduced_by_theirs(algebra: str, slices: str) -> None:
    net = chain(3)
    whole = weft.network(net.equation, *net.tensors, algebra=algebra)
    planned = weft.network(net.equation, *net.tensors, algebra=algebra, slices=slices)
    given = [tensor.clone().requires_grad_() for tensor in net.tensors]
    torch.testing.assert_close(planned(*given).detach(), whole(*net.tensors))
    for found, exact in zip(gradients(planned, net.tensors), gradients(whole, net.tensors), strict=True):
        torch.testing.assert_close(found, exact)
    first, *others = net.tensors
    mapped = torch.func.vmap(lambda x: planned(x, *others))(torch.stack([first, first + 1]))
    torch.testing.assert_close(mapped[1], whole(first + 1, *others))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_slices_of_halves_are_added_up_in_float32(dtype: torch.dtype) -> None:
    net = net_of("ab,bc,cd->ad", {"a": 4, "b": 256, "c": 8, "d": 4})
    halves = [tensor.abs().to(dtype) for tensor in net.tensors]
    planned = weft.network(net.equation, *halves, slices="b")
    found = planned(*[tensor.clone().requires_grad_() for tensor in halves])
    assert found.dtype == dtype
    torch.testing.assert_close(found.detach(), planned(*halves))


@pytest.mark.parametrize("slices", ["a", "ac", "d"])
def test_gradients_where_a_sliced_label_has_one_index(slices: str) -> None:
    net = net_of("ab,bc,cd->ad", {"a": 1, "b": 3, "c": 4, "d": 1})
    planned = weft.network(net.equation, *net.tensors, slices=slices)
    expected = gradients(lambda *given: torch.einsum(net.equation, *given), net.tensors)
    for found, exact in zip(gradients(planned, net.tensors), expected, strict=True):
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


@pytest.mark.parametrize("calls", [1, 3, 12])
@pytest.mark.parametrize("specialize", ["now", "auto"])
def test_tangents_that_come_in_place_are_those_of_a_call_that_came_before(calls: int, specialize: Any) -> None:
    z, b, c = torch.zeros(3, 4), torch.rand(4, 5), torch.rand(5, 6)
    net = weft.network("ij,jk,kl->il", z, b, c, specialize=specialize)
    for _ in range(calls):
        net(z, b, c)
    x, t = torch.rand(3, 4), torch.rand(3, 4)
    with forward_ad.dual_level():
        z.copy_(forward_ad.make_dual(x, t))
        found = forward_ad.unpack_dual(net(z, b, c))
        torch.testing.assert_close(found.primal, x @ b @ c)
        torch.testing.assert_close(found.tangent, t @ b @ c)


@pytest.mark.parametrize("slices", ["b", "bc"])
def test_slices_are_transformed(slices: str) -> None:
    """torch.func takes no checkpoints: gradients of slices keep what they need."""
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in ((5, 6), (6, 4), (4, 3))]
    net = weft.network("ab,bc,cd->ad", *tensors, slices=slices)

    def both(transform: Callable[..., Any], *given: torch.Tensor) -> None:
        found, wanted = (transform(call)(*given) for call in (net, lambda a, b, c: a @ b @ c))
        torch.testing.assert_close(found, wanted)

    both(lambda call: torch.func.grad(lambda *given: (call(*given) ** 2).sum(), (0, 1, 2)), *tensors)
    both(torch.func.jacrev, *tensors)
    several = torch.randn(2, 5, 6, dtype=torch.float64)
    both(lambda call: torch.func.vmap(torch.func.jacrev(call), (0, None, None)), several, *tensors[1:])


def test_what_was_prepared_for_a_call_without_gradients_serves_none_with_them() -> None:
    a, b, c = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5), torch.randn(5, 2)
    net = weft.network("ab,bc,cd->ad", a, b, c)
    with torch.no_grad():
        for _ in range(2):
            assert not net(a, b, c).requires_grad
    net.warm(a, b, c)
    for _ in range(2):
        found = torch.autograd.grad(net(a, b, c).square().sum(), a)[0]
        torch.testing.assert_close(found, torch.autograd.grad((a @ b @ c).square().sum(), a)[0])
