"""Tensors without data, which a function is recorded on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from weft.errors import FunctionError


@dataclass(slots=True, eq=False)
class Value:
    """The value of an `Element`. Elements that share memory share one, so an in-place change reaches all of them."""

    node: fx.Node
    sample: torch.Tensor  # what torch's own rules of shapes and dtypes are asked with; any data, unless constant
    constant: bool = False  # no input enters the value, and the 0-d sample is the value
    as_real: bool = False  # real and imaginary part along a last axis of two, as torch.view_as_real gives them
    viewed: bool = False  # its memory is seen through another `Value`


class Element(torch.Tensor):
    """A tensor without data, on the CPU as far as the user's function can tell."""

    value: Value
    detached: bool  # no gradient passes
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, value: Value, detached: bool = False) -> Element:
        shape, dtype = value.sample.shape, value.sample.dtype
        element = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=torch.device("cpu"))
        element.value, element.detached = value, detached
        return element

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise FunctionError(f"a value of a recorded function was kept and used after the recording, in {func}")


def run_plainly(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    stand_in: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Any:
    """Run an operation for itself, on the samples of the elements or on what stands in for them."""

    def plain(argument: Any) -> Any:
        if not isinstance(argument, Element):
            return argument
        return argument.value.sample if stand_in is None else stand_in(argument.value.sample)

    return func(*map(plain, args), **{key: plain(value) for key, value in kwargs.items()})


def tensors_among(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors among an operation's arguments, in order, those in lists included."""
    found: list[Any] = []
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, (tuple, list)):
            found += [item for item in argument if isinstance(item, torch.Tensor)]
    return found


def fixed(argument: Any) -> Any:
    """A number that torch keeps open while it traces, an extent say, as a constant; torch then guards on it."""
    if isinstance(argument, torch.SymInt):
        return int(argument)
    return float(argument) if isinstance(argument, torch.SymFloat) else argument
