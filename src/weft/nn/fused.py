"""The common part of layers: an activation, by name or as a function, and the functions made of it that a layer fuses
behind its product, which are not part of its state.

On a CPU torch's own operations are at par with fused ones in float32 and float64, and the backward pass that autograd
makes of them is faster: there layers are written in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from weft import functions
from weft.base.arrays import any_autocast
from weft.base.dispatch import is_dynamo_compiling
from weft.base.figures import nearest
from weft.base.memory import new_tensor
from weft.errors import ArgumentError, DTypeError, ShapeError, WeftError
from weft.fn import trace
from weft.fn.pointwise import RecordedFunction
from weft.machine.exactness import shortened
from weft.spec.dtypes import DTypeLike, dtype_name, read_dtype

Function: TypeAlias = Callable[..., torch.Tensor]
Activation: TypeAlias = str | Function | None

#: By the names that torch and the configurations of models use.
NAMED: dict[str, Function] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "swish": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "elu": functional.elu,
    "selu": functional.selu,
    "mish": functional.mish,
    "softplus": functional.softplus,
    "leaky_relu": functional.leaky_relu,
    "hardswish": functional.hardswish,
}
_NOTHING = (None, "linear", "identity")


def activation(given: Activation) -> Function | None:
    """The function that `given` names or is; `ArgumentError` with the nearest name where there is none."""
    if isinstance(given, torch.nn.Module):
        trace(given, (torch.float32,), hook="activation")  # refuses one with parameters
        return given
    if given is None or (isinstance(given, str) and given in _NOTHING):
        return None
    if callable(given):
        return given
    if not isinstance(given, str) or given not in NAMED:
        raise ArgumentError(f"no activation is called {given!r}{nearest(str(given), NAMED)}")
    return NAMED[str(given)]


def is_eager(function: Function | None) -> bool:
    """Whether an activation is of torch operations, element by element, so that it may be called on a tensor."""
    if function is None or function in NAMED.values():
        return True
    try:
        return isinstance(trace(function, (torch.float32,), hook="activation"), RecordedFunction)
    except WeftError:  # a call says why
        return False


def finish(scaled: bool, biased: bool, function: Function | None) -> Function | None:
    """The function of each sum: its scale, its bias and the activation, where there are any."""
    steps: list[Any] = [functions.scale] if scaled else []
    steps += [functions.bias] if biased else []
    steps += [function] if function is not None else []
    if len(steps) > 1:
        return functions.chain(*steps)
    return steps[0] if steps else None


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
        function = activation(self.activation)
        self._made: dict[str, Any] = {
            **self._functions(function), "_is_eager": is_eager(function),
            "_activated": function if function is not None else lambda value: value,
        }
        self.__dict__.update(self._made)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "activation" and "_made" in self.__dict__:
            self._fuse()

    def __getstate__(self) -> dict[str, Any]:
        made = {"_made", *self._made}
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._fuse()

    _activated: Function  # the activation of a tensor
    _is_eager: bool  # whether that is done by torch's operations

    def _is_torchs(self, x: Any, features: int, *parameters: torch.Tensor | None) -> bool:
        """Whether the layer is written in torch's operations: they promise the same of these tensors."""
        if not (self._is_eager and isinstance(x, torch.Tensor) and x.is_cpu and x.dtype in _WIDE) or x.is_nested:
            return False
        if x.dim() == 0 or x.shape[-1] != features or any_autocast():
            return False
        for each in parameters:
            if each is not None and not (each.is_cpu and each.dtype is x.dtype):
                return False
        return x.dtype is torch.float64 or is_dynamo_compiling() or not shortened()

    def _activation_text(self) -> str:
        """The activation as `extra_repr` shows it."""
        given = self.activation
        shown = repr(given) if isinstance(given, str) else getattr(given, "__name__", repr(given))
        return "" if given is None else f", activation={shown}"


class Weighted(Fused):
    """A layer of one weight and one bias, with torch's initial values."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    _epilogue: Function | None

    def _hold(
        self, weight: Sequence[int], bias: Sequence[int] | None, fan_in: int, device: Any, dtype: DTypeLike | None
    ) -> None:
        """Make the parameters, of these shapes, and the functions: the last step of a constructor."""
        kind, self._fan_in = parameter_type(dtype), fan_in
        self.weight = torch.nn.Parameter(empty(weight, device, kind))
        self.bias = None if bias is None else torch.nn.Parameter(empty(bias, device, kind))
        self.reset_parameters()
        self._fuse()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        uniform(self.weight, self._fan_in)
        uniform(self.bias, self._fan_in)

    def _functions(self, function: Function | None) -> dict[str, Function | None]:
        return {"_epilogue": finish(False, self.bias is not None, function)}


_WIDE = (torch.float32, torch.float64)


def check_features(name: str, x: Any, features: int) -> None:
    """`ShapeError` where an input has another number of features: a single one would be broadcast."""
    if getattr(x, "is_nested", False):  # has no shape: the call that follows says what it takes
        return
    shape = getattr(x, "shape", None)
    if isinstance(shape, tuple) and shape[-1:] != (features,):
        raise ShapeError(f"{name} of shape {tuple(shape)} has not the {features} features of the layer")


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
