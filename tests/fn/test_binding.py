"""Which names go to which function."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import weft
from weft.fn.binding import bind, parameters


def two(x: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return x * p + q


class Layer(torch.nn.Module):
    def forward(self, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return x * p


class Object:
    def __call__(self, x: torch.Tensor, p: torch.Tensor, *more: Any, **rest: Any) -> torch.Tensor:
        return x * p

    def method(self, x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return x + q


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (two, ("p", "q")),
        (lambda x, *, p=1.0: x * p, ("p",)),
        (functools.partial(two, q=1.0), ("p", "q")),
        (functools.partial(two, torch.ones(())), ("q",)),
        (Layer(), ("p",)),
        (Object(), ("p",)),
        (Object().method, ("q",)),
        (lambda x, p, /: x * p, ()),
        (lambda x: x, ()),
        (torch.relu, None),
    ],
)
def test_parameters(function: Any, names: Any) -> None:
    assert parameters(function) == names


def test_order_is_the_functions_own() -> None:
    functions = {"a_fn": two, "b_fn": None, "epilogue": lambda x, q: x + q}
    bound = bind(functions, ["q", "p"])
    assert bound == {"a_fn": ("p", "q"), "b_fn": (), "epilogue": ("q",)}


def test_a_name_that_nobody_takes() -> None:
    with pytest.raises(
        weft.FunctionError, match="no function takes 'r': a_fn takes p, q; epilogue takes nothing beside"
    ):
        bind({"a_fn": two, "epilogue": lambda x: x}, ["p", "r"])


def test_triton_functions() -> None:
    """They are taken as they are; the plan's arguments stand in the order of their own parameters."""
    triton = pytest.importorskip("triton")

    @triton.jit
    def shifted(x, i, bias):
        return x * i + bias

    assert parameters(shifted) == ("i", "bias")
    plan = weft.plan(
        "mk,kn->mn", torch.ones(4, 5), torch.ones(5, 6), epilogue=shifted,
        operands={"bias": ("n", torch.ones(6))}, indices={"i": "m"}, backend="reference",
    )  # fmt: skip
    contraction = plan.contraction
    assert contraction.epilogue is not None
    assert contraction.epilogue.inputs == ("x", "i", "bias")
    assert [contraction.aux[at].name for at in contraction.epilogue_args] == ["i", "bias"]
