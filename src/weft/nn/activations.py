"""Activations by name or as functions, and the one function that a layer fuses behind its product."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from weft import functions
from weft.base.figures import nearest
from weft.errors import ArgumentError, WeftError
from weft.fn import trace
from weft.fn.pointwise import RecordedFunction

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


def activated(function: Function | None) -> Function:
    """An activation as a function of tensors."""
    return function if function is not None else lambda value: value


def is_eager(function: Function | None) -> bool:
    """Whether an activation is of torch operations, element by element, so that it may be called on a tensor."""
    if function is None or function in NAMED.values():
        return True
    try:
        return isinstance(trace(function, (torch.float32,), hook="activation"), RecordedFunction)
    except WeftError:  # a call says why
        return False


def activation_text(given: Activation) -> str:
    """An activation as `extra_repr` shows it."""
    if given is None or isinstance(given, str):
        return repr(given)
    return getattr(given, "__name__", repr(given))


def finish(scaled: bool, biased: bool, function: Function | None) -> Function | None:
    """The function of each sum: its scale, its bias and the activation, where there are any."""
    steps: list[Any] = [functions.scale] if scaled else []
    steps += [functions.bias] if biased else []
    steps += [function] if function is not None else []
    if len(steps) > 1:
        return functions.chain(*steps)
    return steps[0] if steps else None


def gate(biased: bool, function: Function | None) -> Function:
    """The sum, its bias added, times the activation of `gate`, which is converted to the type of sums first."""

    def gated(total: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        gate = gate.to(total.dtype)
        return total * (function(gate) if function is not None else gate)

    return functions.chain(functions.bias, gated) if biased else gated


def gate_of_parts(biased: bool, function: Function | None) -> Function:
    """The function of a complex sum whose real part is the gate."""

    def gated(total: torch.Tensor) -> torch.Tensor:
        return total.imag * (function(total.real) if function is not None else total.real)

    return functions.chain(functions.bias, gated) if biased else gated
