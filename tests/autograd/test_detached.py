"""Values that a function detaches have no gradient, as in torch: straight-through estimators, factors held fixed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft

Function = Callable[[torch.Tensor], torch.Tensor]


def straight_through(s: torch.Tensor) -> torch.Tensor:
    return s + (torch.round(s) - s).detach()


def where_gradients_are_off(s: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        rest = torch.round(s) - s
    return s + rest


def by_data(s: torch.Tensor) -> torch.Tensor:
    return s * torch.sigmoid(s.data)


def a_copy_of_what_is_detached(s: torch.Tensor) -> torch.Tensor:
    return s * s.detach().clone() + s.detach().expand_as(s)


FUNCTIONS = (straight_through, where_gradients_are_off, by_data, a_copy_of_what_is_detached)


def gradients(call: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[torch.Tensor]:
    leaves = [each.clone().requires_grad_() for each in tensors]
    found = call(*leaves)
    return [found.detach(), *torch.autograd.grad((found * torch.arange(found.numel()).view(found.shape)).sum(), leaves)]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("tier", ["now", "library"])
def test_in_every_hook(function: Function, tier: str) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    hooks: dict[str, Callable[..., torch.Tensor]] = {
        "a_fn": lambda x, y: function(x) @ y,
        "b_fn": lambda x, y: x @ function(y),
        "epilogue": lambda x, y: function(x @ y),
    }
    for hook, plain in hooks.items():
        words = {hook: function, "specialize": tier}
        for _ in range(3):
            found = gradients(lambda x, y, words=words: weft.contract("mk,kn->mn", x, y, **words), a, b)
            for ours, theirs in zip(found, gradients(plain, a, b), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_of_operands_permutations_complex_values_and_networks() -> None:
    a, b, scale = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    found = gradients(
        lambda x, y, s: weft.contract("mk,kn->mn", x, y, epilogue=lambda v, scale: v * scale.detach() + scale,
                                      operands={"scale": ("n", s)}), a, b, scale)  # fmt: skip
    wanted = gradients(lambda x, y, s: (x @ y) * s.detach() + s, a, b, scale)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    moved = gradients(lambda x: weft.permute(x, "mk->km", fn=straight_through), a)
    torch.testing.assert_close(moved, gradients(lambda x: straight_through(x).T, a))
    z = torch.randn(3, 4, dtype=torch.complex64)
    held = gradients(lambda x: weft.permute(x, "mk->km", fn=lambda v: v * v.detach().conj()).real, z)
    torch.testing.assert_close(held, gradients(lambda x: (x * x.detach().conj()).T.real, z))
    net = weft.network(
        "ab,bc,cd->ad", a, b, torch.randn(5, 2), functions={3: straight_through}, optimize=[(0, 1), (0, 1)]
    )
    (x, y, w), seen = (torch.randn(each, requires_grad=True) for each in ((3, 4), (4, 5), (5, 2))), []
    for call in (lambda: net(x, y, w), lambda: straight_through(x @ y) @ w):
        seen.append(torch.autograd.grad(call().sum(), (x, y, w)))
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-4)


def test_the_second_derivative_sees_the_factor_as_fixed() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def second(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    found = second(lambda v: weft.permute(v, "mk->km", fn=lambda s: s**3 * s.detach()))
    torch.testing.assert_close(found, second(lambda v: (v**3 * v.detach()).T))
    torch.testing.assert_close(found, 6 * x.detach() ** 2)


def test_memory_that_is_shared_is_written() -> None:
    def fn(s: torch.Tensor) -> torch.Tensor:
        s.detach().mul_(2)
        return s

    x = torch.randn(3, 4)
    torch.testing.assert_close(weft.permute(x, "mk->km", fn=fn), 2 * x.T)
