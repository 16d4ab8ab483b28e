"""The common part of layers: an activation, and functions made of it that are not part of the layer's state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from weft.base.memory import new_tensor
from weft.errors import DTypeError, ShapeError
from weft.nn.activations import Activation, Function, activation, activation_text
from weft.spec.dtypes import dtype_name
from weft.spec.type_names import DTypeLike, read_dtype


class Fused(torch.nn.Module):
    """A layer with functions fused into its products.

    Those functions are made of `activation` by `_functions`, and again where a layer is loaded or copied: functions
    made here do not pickle.
    """

    def __init__(self, given: Activation) -> None:
        super().__init__()
        self.activation = given

    def _functions(self, function: Function | None) -> dict[str, Function | None]:
        """The functions to fuse, by the name of the attribute that keeps them."""
        raise NotImplementedError

    def _fuse(self) -> None:
        """Make the functions: the last step of a constructor."""
        self._made = tuple(self._functions(activation(self.activation)).items())
        for name, function in self._made:
            self.__dict__[name] = function

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "activation" and "_made" in self.__dict__:
            self._fuse()

    def __getstate__(self) -> dict[str, Any]:
        made = {"_made", *(name for name, _ in self._made)}
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._fuse()

    def _activation_text(self) -> str:
        return "" if self.activation is None else f", activation={activation_text(self.activation)}"


def uniform(parameter: torch.Tensor | None, fan_in: int) -> None:
    """Fill with torch's usual initial values: uniform within 1 / sqrt(fan_in) either way."""
    if parameter is not None:
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        torch.nn.init.uniform_(parameter, -bound, bound)


def empty(shape: Sequence[int], device: torch.device | str | None, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a parameter, where torch makes new tensors by default."""
    if any(extent < 0 for extent in shape):
        raise ShapeError(f"a parameter of shape {tuple(shape)}: numbers of features are not negative")
    if not (dtype.is_floating_point or dtype.is_complex):
        raise DTypeError(f"parameters are of a floating type, not of {dtype_name(dtype)}")
    place = torch.get_default_device() if device is None else torch.device(device)
    return new_tensor(shape, dtype, place)


def parameter_type(dtype: DTypeLike | None) -> torch.dtype:
    """A type by any of its names; torch's default where none is given."""
    return torch.get_default_dtype() if dtype is None else read_dtype("dtype", dtype)
